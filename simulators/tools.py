"""Tools that a policy may call while it replies: typed Python functions, described by their signature and docstring.

    def look_up(word: str, language: str = "en") -> str:
        'Look a word up in the dictionary.'   (with a section "Args:" that says what each argument is)

    toolbox = Toolbox.of([look_up], max_calls=4)

A function may be a coroutine. A parameter of the type `Conversation` is not the model's to give: it is the conversation so far,
with the calls made in it. Tools hold no state, as users do not: whatever an earlier call changed is read from there, so that a
conversation can be forked anywhere.

A mistake of the model (no such tool, arguments that do not fit) is told to it as the call's result. A tool that cannot do its
work for other reasons raises `ToolError`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from simulators.conversation import Conversation, ToolCall
from simulators.errors import ConfigurationError

MAX_RESULT_CHARACTERS = 8_000
"""What is longer is cut: a result becomes part of every later prompt."""

_ARGUMENT = re.compile(r"^\s*(\w+)\s*(?:\([^)]*\))?\s*:\s*(.+)")


@dataclass(frozen=True)
class Tool:
    """A function that a model may call.

    Raises:
        ConfigurationError: when the function has no docstring, or a parameter without a type.
    """

    function: Callable[..., Any]
    name: str = field(init=False)
    schema: Mapping[str, Any] = field(init=False)
    _arguments: Any = field(init=False, repr=False)
    _given_conversation: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        name = getattr(self.function, "__name__", "")
        summary, described = _documentation(self.function)
        hints = {key: kind for key, kind in get_type_hints(self.function).items() if key != "return"}
        parameters = inspect.signature(self.function).parameters
        if not name.isidentifier() or not summary or any(key not in hints for key in parameters):
            raise ConfigurationError(f"tool {name!r} needs a name, a docstring, and a type for every parameter")
        given = tuple(key for key, kind in hints.items() if kind == Conversation)
        model = _arguments_model(name, {key: each for key, each in parameters.items() if key not in given}, hints, described)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "_arguments", model)
        object.__setattr__(self, "_given_conversation", given)
        function = {"name": name, "description": summary, "parameters": _without_titles(model.model_json_schema())}
        object.__setattr__(self, "schema", {"type": "function", "function": function})

    async def call(self, arguments: str, conversation: Conversation) -> str:
        """Call the function with arguments as JSON and return its result as text, or what is wrong with the arguments.

        Raises:
            ToolError: as the function does.
        """
        from pydantic import ValidationError

        try:
            checked = self._arguments.model_validate_json(arguments or "{}")
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            return f"The arguments of {self.name} do not fit: {f'{where}: ' if where else ''}{first['msg']}."
        values = {key: getattr(checked, key) for key in type(checked).model_fields}
        result = self.function(**values, **dict.fromkeys(self._given_conversation, conversation))
        if inspect.isawaitable(result):
            result = await result
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
        cut = len(text) - MAX_RESULT_CHARACTERS
        return text if cut <= 0 else f"{text[:MAX_RESULT_CHARACTERS]}\n({cut} more characters are not shown)"


@dataclass(frozen=True)
class Toolbox:
    """The tools of one task. A policy that wants more than `max_calls` calls in one turn ends its conversation (`tool_limit`)."""

    tools: Mapping[str, Tool]
    max_calls: int = 8

    @classmethod
    def of(cls, functions: Sequence[Callable[..., Any]], max_calls: int = 8) -> Toolbox:
        """Make a toolbox of functions.

        Raises:
            ConfigurationError: when one cannot be a tool, two have one name, or there may be no call at all.
        """
        tools = [Tool(function) for function in functions]
        if len({tool.name for tool in tools}) < len(tools):
            raise ConfigurationError(f"tools must have different names: {', '.join(tool.name for tool in tools)}")
        if max_calls < 1:
            raise ConfigurationError(f"max_tool_calls is {max_calls}; it must be at least 1")
        return cls({tool.name: tool for tool in tools}, max_calls)

    @property
    def schemas(self) -> list[Mapping[str, Any]]:
        """The tools as JSON schemas, in OpenAI's form."""
        return [tool.schema for tool in self.tools.values()]

    async def call(self, call: ToolCall, conversation: Conversation) -> str:
        """Return the result of a call, or what is wrong with it: both are for the model to read.

        Raises:
            ToolError: the tool could not do its work.
        """
        if not call.name:
            return 'That was no call: write {"name": NAME, "arguments": {...}} as valid JSON.'
        if call.name not in self.tools:
            return f"There is no tool {call.name!r}; there are {', '.join(self.tools)}."
        return await self.tools[call.name].call(call.arguments, conversation)


def _documentation(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the text before the sections of a docstring, and what it says of each argument."""
    lines = (inspect.getdoc(function) or "").splitlines()
    heads = [place for place, line in enumerate(lines) if re.fullmatch(r"(Args|Arguments|Returns|Raises):", line.strip())]
    summary = " ".join(" ".join(lines[: heads[0] if heads else len(lines)]).split())
    described: dict[str, str] = {}
    for place in heads:
        if lines[place].strip().startswith("Arg"):
            end = next((later for later in heads if later > place), len(lines))
            described = {found[1]: found[2].strip() for line in lines[place + 1 : end] if (found := _ARGUMENT.match(line))}
    return summary, described


def _arguments_model(name: str, parameters: Mapping[str, Any], hints: Mapping[str, Any], described: Mapping[str, str]) -> Any:
    from pydantic import ConfigDict, Field, create_model

    fields: dict[str, Any] = {}
    for key, parameter in parameters.items():
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[key] = (hints[key], Field(default, description=described.get(key)))
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


def _without_titles(schema: Any) -> Any:
    """Leave out pydantic's titles, which repeat the names."""
    if isinstance(schema, dict):
        return {key: _without_titles(value) for key, value in schema.items() if not (key == "title" and isinstance(value, str))}
    return [_without_titles(each) for each in schema] if isinstance(schema, list) else schema
