"""Tools in words, for models whose chat template knows none: the Hermes convention, which `reply_text` reads back.

The tools stand in the system message, a call is JSON between <tool_call> and </tool_call> in the reply, results come back in a
message of the user's. Templates that render tools themselves (Qwen 2.5 and 3, Llama 3.1 and later, Hermes, ...) are asked to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from simulators.conversation import Conversation, Message, ToolCall

Tools = Sequence[Mapping[str, Any]]

_PROBE = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "Probe.",
        "parameters": {"type": "object", "properties": {"probe": {"type": "string"}}, "required": ["probe"]},
    },
}

_INSTRUCTIONS = """You may call tools before you reply. These are the tools, as JSON schemas:
{tools}
To call one, write nothing but
<tool_call>
{{"name": NAME, "arguments": {{...}}}}
</tool_call>
You then see the result. When you know enough, reply to the user in plain words."""


def renders_tools(tokenizer: Any, template: str | None = None) -> bool:
    """True where a chat template (None: the tokenizer's own) renders the tools that are offered, the calls, and their results."""
    called = {"id": "probe0001", "type": "function", "function": {"name": "probe_tool", "arguments": {"probe": "x"}}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "content": "Probed.", "tool_call_id": "probe0001"},
    ]
    try:
        text = tokenizer.apply_chat_template(messages, tools=[_PROBE], chat_template=template, tokenize=False)
    except Exception:  # templates raise whatever they like
        return False
    return "Probed." in text and text.count("probe_tool") >= 2


def for_template(messages: Conversation, *, in_words: bool, tools: Tools = ()) -> list[dict[str, Any]]:
    """Return messages as a chat template takes them, with the tools and their use in words where it knows none."""
    if in_words:
        messages = tools_in_words(messages, tools)
    return [_parsed(message) for message in messages]


def tools_in_words(messages: Conversation, tools: Tools = ()) -> Conversation:
    """Return a conversation in which tools, calls and results are text of the system, the assistant and the user."""
    written: list[Message] = []
    if tools:
        said = _INSTRUCTIONS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        if messages and messages[0].role == "system":
            said, messages = f"{messages[0].content}\n\n{said}", messages[1:]
        written.append(Message("system", said))
    for message in messages:
        if message.role != "tool":
            calls = "".join(f"\n{_called(call)}" for call in message.tool_calls)
            written.append(replace(message, content=f"{message.content}{calls}".strip("\n"), tool_calls=()) if calls else message)
        elif written and written[-1].content.endswith("</tool_response>"):  # several results are one message
            written[-1] = replace(written[-1], content=f"{written[-1].content}\n{_result(message)}")
        else:
            written.append(Message("user", _result(message)))
    return tuple(written)


def _called(call: ToolCall) -> str:
    body = call.arguments if not call.name else f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}'
    return f"<tool_call>\n{body}\n</tool_call>"


def _result(message: Message) -> str:
    return f"<tool_response>\n{message.content}\n</tool_response>"


def _parsed(message: Message) -> dict[str, Any]:
    """Return a message with the arguments of its calls as objects, which is how templates write them."""
    data = message.as_dict()
    for call in data.get("tool_calls", ()):
        try:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        except ValueError:
            call["function"]["arguments"] = {"unreadable": call["function"]["arguments"]}
    return data
