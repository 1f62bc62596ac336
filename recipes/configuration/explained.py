"""What `collab COMMAND --help` prints: how the command is called, what its groups may be, and what its keys mean."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import get_type_hints

from recipes.configuration.choices import groups
from recipes.configuration.schema import SCHEMAS


def explained(words: tuple[str, ...], what: str, module: ModuleType) -> str:
    """Return the help of a command, from the docstrings of its module and of its configuration."""
    command = f"collab {' '.join(words)}"
    about = inspect.cleandoc(module.__doc__ or what)
    schema = SCHEMAS.get(module.__name__.removeprefix("recipes."))
    if schema is None:
        return f"{getattr(module, 'USAGE', f'usage: {command}')}\n\n{about}\n"
    lines = [f"usage: {command} [KEY=VALUE ...] [--cfg job] [--multirun]", "", about]
    known = get_type_hints(schema)
    if chosen := [f"{name}={'|'.join(choices)}" for name, choices in sorted(groups().items()) if name in known]:
        lines += ["", "groups:", *map(_indented, chosen)]
    lines += ["", f"keys (`{command} --cfg job` shows them with their values):", *_keys(schema, "", set())]
    return "\n".join(lines) + "\n"


def _keys(schema: type, prefix: str, seen: set[type]) -> Iterator[str]:
    """Yield what each class that a schema is made of says about the keys it adds, and then the same of the groups among them."""
    for kind in schema.__mro__:
        names = list(vars(kind).get("__annotations__", ())) if is_dataclass(kind) and kind not in seen else []
        own = [each.name for each in fields(schema) if each.name in names]
        seen.add(kind)
        if own:
            yield _indented(", ".join(prefix + name for name in own))
            yield textwrap.indent(inspect.cleandoc(kind.__doc__ or ""), "      ")
    for name, kind in get_type_hints(schema).items():
        if isinstance(kind, type) and is_dataclass(kind):
            yield from _keys(kind, f"{prefix}{name}.", seen)


def _indented(text: str) -> str:
    return textwrap.fill(text.replace("|", " | "), 126, initial_indent="  ", subsequent_indent="    ").replace(" | ", "|")
