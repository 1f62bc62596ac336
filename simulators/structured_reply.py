"""Structured replies: ask a model for a few named fields, get them typed and checked, or a clear refusal.

Shared by role-play users and judges. Where the server can enforce a JSON schema it does; everywhere the reply is read by a
parser that survives what models do (`simulators.lenient_json`). A reply that cannot be used is asked for once more, with the
reason, and then given up: `UnusableReply`. No value is ever made up.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from simulators.chat_models.protocol import ChatModel, ChatRequest, Completion
from simulators.conversation import Message
from simulators.errors import UnusableReply
from simulators.lenient_json import Number, Value, find_objects, read_plain_object
from simulators.seeds import derive_seed

FieldValue = str | float | int | bool

_QUOTED_REPLY_CHARACTERS = 4000
_LONGEST_NUMBER = 40
_FENCE = re.compile(r"^\s*```[a-zA-Z0-9]*[ \t]*\n?|\n?\s*```\s*$")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?", re.ASCII)

_JSON_TYPES = {"text": "string", "number": "number", "integer": "integer", "boolean": "boolean"}


@dataclass(frozen=True, slots=True)
class ReplyField:
    """One field of a structured reply. `minimum` and `maximum` (both included) bound numbers; `choices` bounds texts.

    `description` is what the model is told about the field.
    """

    kind: Literal["text", "number", "integer", "boolean"]
    description: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    required: bool = True


Schema = Mapping[str, ReplyField]


@dataclass(frozen=True, slots=True)
class StructuredReply:
    """The checked fields, and the completion they stand in. `asked_again` says that the first reply could not be used."""

    values: dict[str, FieldValue]
    completion: Completion
    asked_again: bool = False


async def ask_structured(model: ChatModel, request: ChatRequest, schema: Schema) -> StructuredReply:
    """Ask for a reply with the fields of `schema`; ask exactly once more if it cannot be used.

    The second question has the first as its prefix, and a seed of its own. `request.n` must be 1.

    Raises:
        UnusableReply: neither reply could be used; says why.
        ChatModelError, ConfigurationError: as the model does.
    """
    if request.n != 1:
        raise ValueError(f"a structured reply is asked for once at a time, not {request.n} times")
    if request.json_schema is None:
        request = replace(request, json_schema=json_schema(schema))
    (completion,) = await model.complete(request)
    try:
        return StructuredReply(parse_reply(completion.text, schema), completion)
    except UnusableReply as error:
        complaint = str(error)
    said = completion.text.strip()[:_QUOTED_REPLY_CHARACTERS] or "(nothing)"
    again = Message("user", f"I cannot use that reply: {complaint}. {reply_format(schema)}")
    second = replace(
        request,
        messages=(*request.messages, Message("assistant", said), again),
        seed=derive_seed(request.seed, "asked again"),
    )
    (completion,) = await model.complete(second)
    return StructuredReply(parse_reply(completion.text, schema), completion, asked_again=True)


def reply_format(schema: Schema) -> str:
    """Return the sentences that tell a model how to reply; put them in the static part of its prompt."""
    lines = []
    for name, reply_field in schema.items():
        optional = "" if reply_field.required else ", may be left out"
        lines.append(f'"{name}": {_kind_in_words(reply_field)}{optional}. {reply_field.description}'.rstrip())
    listing = "\n".join(f"- {line}" for line in lines)
    return f"Reply with one JSON object and nothing else, with these fields:\n{listing}"


def json_schema(schema: Schema) -> dict[str, Any]:
    """Return the JSON Schema of the replies, for servers that can enforce one."""
    properties: dict[str, Any] = {}
    for name, reply_field in schema.items():
        entry: dict[str, Any] = {"type": _JSON_TYPES[reply_field.kind]}
        if reply_field.minimum is not None:
            entry["minimum"] = reply_field.minimum
        if reply_field.maximum is not None:
            entry["maximum"] = reply_field.maximum
        if reply_field.choices:
            entry["enum"] = list(reply_field.choices)
        properties[name] = entry
    required = [name for name, reply_field in schema.items() if reply_field.required]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def parse_reply(text: str, schema: Schema) -> dict[str, FieldValue]:
    """Return the fields of the last object in `text` that fits the schema.

    The last one, because models think, quote and draft first and answer at the end; so where an object begins and cannot be read
    the reply is refused, whatever else it holds (`find_objects`). Where exactly one field is required and it is a number, a bare
    number will do.

    Raises:
        UnusableReply: nothing fits; says what was wrong with what came nearest.
    """
    answer = _without_thoughts(text).strip()
    for whole in (text.strip(), answer):
        if (plain := read_plain_object(whole)) is not None:
            with contextlib.suppress(UnusableReply):
                return _fit(plain, schema)
    complaint = "it holds no JSON object"
    for candidate in reversed(find_objects(text)):
        try:
            return _fit(candidate, schema)
        except UnusableReply as error:
            if complaint == "it holds no JSON object":
                complaint = str(error)
    if (number := _bare_number(answer, schema)) is not None:
        name, literal = number
        return {name: _number(name, literal, schema[name])}
    if not answer.strip():
        complaint = "it is empty"
    raise UnusableReply(complaint)


def _without_thoughts(text: str) -> str:
    """Drop what a reasoning model thought aloud, up to the last closing tag."""
    return text.rpartition("</think>")[2]


def _bare_number(answer: str, schema: Schema) -> tuple[str, str] | None:
    required = [name for name, reply_field in schema.items() if reply_field.required]
    if len(required) != 1 or schema[required[0]].kind not in ("number", "integer"):
        return None
    rest = _FENCE.sub("", answer[:400]).strip() if len(answer) <= 400 else ""
    rest = rest.strip(" \t\r\n*_`\"'").removesuffix(".").lower()
    for label in (required[0].lower(), required[0].lower().replace("_", " "), "score", "rating", "answer"):
        if rest.startswith(label):
            rest = rest[len(label) :].lstrip(" *_`\"'").removeprefix("is").lstrip(" :=*_`\"'")
            break
    return (required[0], rest) if _NUMBER.fullmatch(rest) else None


def _fit(candidate: dict[str, Value], schema: Schema) -> dict[str, FieldValue]:
    by_lower_case = {key.lower(): value for key, value in candidate.items()}
    result: dict[str, FieldValue] = {}
    for name, reply_field in schema.items():
        value = candidate.get(name, by_lower_case.get(name.lower()))
        if value is None:
            if reply_field.required:
                raise UnusableReply(f'the field "{name}" is missing')
            continue
        result[name] = _convert(name, value, reply_field)
    return result


def _convert(name: str, value: Value, reply_field: ReplyField) -> FieldValue:
    if reply_field.kind == "text":
        text = value.literal if isinstance(value, Number) else value
        if not isinstance(text, str):
            raise UnusableReply(f'the field "{name}" must be a text')
        if reply_field.choices and text not in reply_field.choices:
            raise UnusableReply(f'the field "{name}" must be one of {", ".join(reply_field.choices)}')
        return text
    if reply_field.kind == "boolean":
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
        if not isinstance(value, bool):
            raise UnusableReply(f'the field "{name}" must be true or false')
        return value
    literal = value.literal if isinstance(value, Number) else value
    if not isinstance(literal, str):
        raise UnusableReply(f'the field "{name}" must be a number')
    return _number(name, literal.strip(), reply_field)


def _number(name: str, literal: str, reply_field: ReplyField) -> float | int:
    if len(literal) > _LONGEST_NUMBER or not _NUMBER.fullmatch(literal):
        raise UnusableReply(f'the field "{name}" must be a number')
    number = float(literal)
    if not math.isfinite(number):
        raise UnusableReply(f'the field "{name}" must be a finite number')
    if reply_field.kind == "integer" and not number.is_integer():
        raise UnusableReply(f'the field "{name}" must be a whole number')
    if reply_field.minimum is not None and number < reply_field.minimum:
        raise UnusableReply(f'the field "{name}" is {literal}, below {reply_field.minimum:g}')
    if reply_field.maximum is not None and number > reply_field.maximum:
        raise UnusableReply(f'the field "{name}" is {literal}, above {reply_field.maximum:g}')
    return int(number) if reply_field.kind == "integer" else number


def _kind_in_words(reply_field: ReplyField) -> str:
    if reply_field.kind == "text":
        return "one of " + ", ".join(f'"{choice}"' for choice in reply_field.choices) if reply_field.choices else "a string"
    if reply_field.kind == "boolean":
        return "true or false"
    words = "a whole number" if reply_field.kind == "integer" else "a number"
    match reply_field.minimum, reply_field.maximum:
        case None, None:
            return words
        case None, high:
            return f"{words} of at most {high:g}"
        case low, None:
            return f"{words} of at least {low:g}"
        case low, high:
            return f"{words} from {low:g} to {high:g}"
