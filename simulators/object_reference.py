"""Objects of Python named in a configuration as `module:name`: how all doors of the house are opened for code of one's own.

What a person types is theirs to run. What stands in a file that somebody else wrote is not: within `built_in_names_only` every
such name is refused, and nothing is imported.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, get_type_hints

from simulators.errors import ConfigurationError, did_you_mean

_OURS = ("simulators", "collab", "recipes")
_BUILT_IN_ONLY = ContextVar("built_in_only", default=False)


@contextmanager
def built_in_names_only(active: bool = True) -> Iterator[None]:
    """Refuse every `module:name` that is looked up within (unless not `active`)."""
    token = _BUILT_IN_ONLY.set(active)
    try:
        yield
    finally:
        _BUILT_IN_ONLY.reset(token)


def refuse_foreign(what: str, name: object) -> None:
    """Refuse a program that the configuration names, where only built-in names may be looked up.

    Raises:
        ConfigurationError: so it is.
    """
    if _BUILT_IN_ONLY.get():
        raise ConfigurationError(
            f"{what} {name!r} is code that a stored configuration names, and is not run unasked; give --trust if you know it"
        )


def load_object(name: str, what: str, built_in: Mapping[str, str] | None = None) -> Callable[..., Any]:
    """Return the function or class of a built-in name or of `module:name`; `what` it is stands in the errors.

    `built_in` maps names to references of the same form. Modules in the current folder are found, as `python -m` would find them.

    Raises:
        ConfigurationError: an unknown name (the nearest is named), a reference that cannot be loaded or called, or one of
            somebody else's (`built_in_names_only`).
    """
    built_in = built_in or {}
    if name in built_in:
        return _imported(built_in[name], what)
    if ":" not in name:
        names = (" and " if len(built_in) == 2 else ", ").join(built_in)
        known = f"known are {names}, and any module:function" if names else "write module:function"
        raise ConfigurationError(f"unknown {what} {name!r}{did_you_mean(name, built_in)}; {known}")
    refuse_foreign(what, name)
    if name.partition(".")[0] not in _OURS and (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # not without need: what lies there stands before a library of the same name
    found = _imported(name, what)
    if not callable(found):
        raise ConfigurationError(f"{what} {name!r} is not a function or a class")
    return found


def _imported(reference: str, what: str) -> Callable[..., Any]:
    module, _, name = reference.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, SyntaxError, ValueError) as error:
        raise ConfigurationError(f"{what} {reference!r} cannot be loaded: {error}") from None
    return found


def checked_arguments(
    function: Callable[..., Any], arguments: Mapping[str, Any], what: str, *, word: str = "option", given: int = 0
) -> dict[str, Any]:
    """Return arguments for a function, each of the type that its signature asks for; `word` is what they are called.

    The first `given` parameters are the caller's own.

    Raises:
        ConfigurationError: an argument that it does not have (the nearest is named), or of the wrong type.
    """
    from pydantic import TypeAdapter, ValidationError

    if not arguments:
        return {}
    parameters = list(inspect.signature(function).parameters.values())[given:]
    known = [each.name for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)]
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
    try:
        hints = get_type_hints(function)
    except NameError:  # a function of your own whose annotations cannot be resolved is taken as it is
        hints = {}
    checked = {}
    for name, value in arguments.items():
        if name not in known and not takes_all:
            listing = f"; it has {', '.join(known)}" if known else "; it has none"
            raise ConfigurationError(f"{what} has no {word} {name!r}{did_you_mean(name, known)}{listing}")
        try:
            checked[name] = TypeAdapter(hints.get(name, Any)).validate_python(value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].lower()
            raise ConfigurationError(f"{what}: {word} {name} is {value!r}; {reason}") from None
    return checked
