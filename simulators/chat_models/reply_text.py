"""What a model's raw text holds: the visible reply, the thought before it, and calls of tools.

The one place where they are taken apart, whichever backend wrote the text. Thoughts stand between <think> and </think>, as
Qwen 3, DeepSeek R1 and their kin write them; a template may open the thought itself, and a reply that was cut in the middle of
one has nothing visible. Calls are read where tools were offered: Hermes and Qwen write JSON between <tool_call> and </tool_call>,
Llama 3 writes nothing but JSON. A call that cannot be read keeps its text and has no name, so that the model can be told.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from simulators.conversation import ToolCall

THOUGHT_OPENS, THOUGHT_CLOSES = "<think>", "</think>"

_THOUGHT = re.compile(r"<think>(.*?)</think>\s*", re.DOTALL)
_OPEN_THOUGHT = re.compile(r"(?:^|\n)[ \t]*<think>(.*)\Z", re.DOTALL)
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ReplyText:
    """The parts of a raw text. `cut_thought` says that the thought never ended: nothing was meant to be seen yet."""

    text: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    cut_thought: bool = False


def read_reply(raw: str, *, thought_open: bool = False, tools: bool = False) -> ReplyText:
    """Take a raw text apart. `thought_open`: the prompt ended in an opened thought; `tools`: calls are to be read."""
    text, reasoning, cut = _without_thoughts(well_formed(raw), thought_open)
    text, calls = _without_calls(text) if tools else (text, ())
    return ReplyText(text, reasoning, calls, cut)


def well_formed(text: str) -> str:
    """Replace lone surrogates: JSON may hold them, and no file can."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _without_thoughts(raw: str, thought_open: bool) -> tuple[str, str, bool]:
    if not thought_open and "think>" not in raw:
        return raw, "", False
    if thought_open and THOUGHT_CLOSES not in raw:
        return "", raw.strip(), True
    thoughts = []
    head, closes, rest = raw.partition(THOUGHT_CLOSES)
    if closes and THOUGHT_OPENS not in head:  # the template opened it
        thoughts.append(head)
        raw = rest.lstrip()
    thoughts += [match[1] for match in _THOUGHT.finditer(raw)]
    text = _THOUGHT.sub("", raw)
    cut = _OPEN_THOUGHT.search(text)
    if cut:
        thoughts.append(cut[1])
        text = text[: cut.start()]
    reasoning = "\n\n".join(thought.strip() for thought in thoughts if thought.strip())
    return text.strip() if thoughts else text, reasoning, bool(cut)


def _without_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    found = [_call(match[1]) for match in _CALL.finditer(text)]
    if found:
        return _CALL.sub("", text).strip(), tuple(found)
    bare = text.strip().removeprefix("<|python_tag|>").strip()
    if bare.startswith("{") and bare.endswith("}"):
        calls = tuple(_call(line) for line in (bare, *bare.split(";")) if line.strip())
        whole, parts = calls[:1], calls[1:]
        for several in (whole, parts):  # Llama 3 puts a semicolon between calls
            if several and all(call.name for call in several):
                return "", several
    return text, ()


def _call(raw: str) -> ToolCall:
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        return ToolCall("", raw.strip())
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        return ToolCall("", raw.strip())
    arguments = data.get("arguments", data.get("parameters", {}))
    if isinstance(arguments, str):  # some write the JSON of the arguments as a text
        return ToolCall(data["name"], arguments)
    return ToolCall(data["name"], json.dumps(arguments, ensure_ascii=False))
