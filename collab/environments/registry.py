"""The domains by name. Each entry is `module:function`; the function takes the domain's options and returns a `Domain`.

A domain of your own needs no entry: name it as `module:function` wherever a name is asked for (docs/own_domain.md).
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from collab.environments.domain import Domain, Environment, Resources
from simulators.errors import ConfigurationError, did_you_mean

DOMAINS: dict[str, str] = {
    "abg_coqa": "collab.environments.collabllm.abg_coqa:domain",
    "code_chat": "collab.environments.collabllm.code_chat:domain",
    "doc_edit": "collab.environments.collabllm.doc_edit:domain",
    "errands": "collab.environments.errands:domain",
    "evolving_calls": "collab.environments.evolving_intent.calls.domain:domain",
    "evolving_gsm8k": "collab.environments.evolving_intent.gsm8k.domain:domain",
    "evolving_search": "collab.environments.evolving_intent.agentic.search:domain",
    "evolving_software": "collab.environments.evolving_intent.agentic.software:domain",
    "evolving_sql": "collab.environments.evolving_intent.sql.domain:domain",
    "lost_in_conversation": "collab.environments.lost_in_conversation.domain:domain",
    "math_chat": "collab.environments.collabllm.math_chat:domain",
}


def load_domain(name: str, options: Mapping[str, Any] | None = None) -> Domain:
    """Return a domain by name (or `module:function`), with its options set.

    Raises:
        ConfigurationError: for an unknown name or option (it names the nearest one), or an option of the wrong type.
    """
    factory = _factory(name)
    parameters = inspect.signature(factory).parameters
    for option in options or {}:
        if option not in parameters:
            raise ConfigurationError(f"environment {name} has no option {option!r}{did_you_mean(option, parameters)}")
    domain = factory(**_checked(name, factory, options or {}))
    if not isinstance(domain, Domain):
        raise ConfigurationError(f"environment {name} is not a domain: its function returned a {type(domain).__name__}")
    return domain


def _factory(name: str) -> Callable[..., Any]:
    if ":" in name:
        return _factory_of_your_own(name)
    if name not in DOMAINS:
        known = ", ".join(sorted(DOMAINS))
        raise ConfigurationError(
            f"unknown environment {name!r}{did_you_mean(name, DOMAINS)}; known are {known} and any module:function"
        )
    module, function = DOMAINS[name].split(":")
    factory: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return factory


def _factory_of_your_own(name: str) -> Callable[..., Any]:
    """Import `module:function`; modules in the current folder are found too, as `python -m` would find them."""
    module, _, function = name.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        factory = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, SyntaxError, ValueError) as error:
        raise ConfigurationError(f"environment {name!r} cannot be loaded: {error}") from None
    if not callable(factory):
        raise ConfigurationError(f"environment {name!r} is not a function that returns a domain")
    checked: Callable[..., Any] = factory
    return checked


def _checked(name: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, each of the type that the function's signature asks for."""
    from pydantic import TypeAdapter, ValidationError

    try:
        hints = get_type_hints(factory) if options else {}
    except NameError:  # a domain of your own whose annotations cannot be resolved is taken as it is
        hints = {}
    checked = {}
    for option, value in options.items():
        try:
            checked[option] = TypeAdapter(hints.get(option, Any)).validate_python(value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].lower()
            raise ConfigurationError(f"environment {name}: option {option} is {value!r}; {reason}") from None
    return checked


def load_environment(name: str, resources: Resources, options: Mapping[str, Any] | None = None) -> Environment:
    """Return an environment ready to run.

    Raises:
        ConfigurationError: as `load_domain` does, or when the domain needs a model that `resources` lacks.
    """
    return Environment(load_domain(name, options), resources)
