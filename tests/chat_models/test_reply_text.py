"""A raw text is taken apart in one place: what is seen, what was thought, which tools are called."""

import pytest

from simulators.chat_models.reply_text import read_reply
from simulators.chat_models.tool_text import renders_tools, tools_in_words
from simulators.conversation import Message, ToolCall
from tests.training.tiny_models import FAMILIES, tiny_tokenizer


@pytest.mark.parametrize(
    ("raw", "text", "reasoning", "cut"),
    [
        ("Plain.", "Plain.", "", False),
        ("  spaces stay  ", "  spaces stay  ", "", False),
        ("<think>\nhm\n</think>\n\nFour.", "Four.", "hm", False),
        ("hm, so</think>\nFour.", "Four.", "hm, so", False),
        ("<think>a</think>One. <think>b</think>Two.", "One. Two.", "a\n\nb", False),
        ("<think>never ended \\boxed{4}", "", "never ended \\boxed{4}", True),
        ("Said.\n<think>cut", "Said.", "cut", True),
        ("<think>\n\n</think>\n\nFour.", "Four.", "", False),
        ("Write `<think>` to think.", "Write `<think>` to think.", "", False),
        ("", "", "", False),
    ],
)
def test_thoughts_are_no_part_of_the_visible_text(raw: str, text: str, reasoning: str, cut: bool) -> None:
    found = read_reply(raw)
    assert (found.text, found.reasoning, found.cut_thought) == (text, reasoning, cut)


def test_a_thought_that_the_template_opened() -> None:
    assert read_reply("hm\n</think>Four.", thought_open=True).text == "Four."
    cut = read_reply("it is \\boxed{4}", thought_open=True)
    assert (cut.text, cut.reasoning, cut.cut_thought) == ("", "it is \\boxed{4}", True)


TWO = [("a", "{}"), ("b", "{}")]


@pytest.mark.parametrize(
    ("raw", "text", "calls"),
    [
        ('Look.\n<tool_call>\n{"name": "find", "arguments": {"k": "x"}}\n</tool_call>', "Look.", [("find", '{"k": "x"}')]),
        ('<tool_call>{"name": "a", "arguments": {}}</tool_call><tool_call>{"name": "b"}</tool_call>', "", TWO),
        ('<tool_call>{"name": "a", "arguments": "{\\"k\\": 1}"}</tool_call>', "", [("a", '{"k": 1}')]),
        ("<tool_call>{not json}</tool_call>", "", [("", "{not json}")]),
        ('<tool_call>\n{"name": "cut", "argu', "", [("", '{"name": "cut", "argu')]),
        ('{"name": "find", "parameters": {"word": "x"}}', "", [("find", '{"word": "x"}')]),
        ('{"name": "a", "parameters": {}}; {"name": "b", "parameters": {}}', "", [("a", "{}"), ("b", "{}")]),
        ('The JSON is {"name": "find"}.', 'The JSON is {"name": "find"}.', []),
        ('{"answer": 4}', '{"answer": 4}', []),
        ("[" * 3000, "[" * 3000, []),
    ],
)  # fmt: skip
def test_calls_are_read_where_tools_were_offered(raw: str, text: str, calls: list[tuple[str, str]]) -> None:
    found = read_reply(raw, tools=True)
    assert (found.text, [(call.name, call.arguments) for call in found.tool_calls]) == (text, calls)
    assert read_reply(raw).tool_calls == () and read_reply(raw).text == raw


TOOLS = [{"type": "function", "function": {"name": "find", "description": "Find it.", "parameters": {"type": "object"}}}]
CALLED = (
    Message("user", "Where?"),
    Message("assistant", "Let me look.", tool_calls=(ToolCall("find", '{"word": "x"}', "1"), ToolCall("find", "{}", "2"))),
    Message("tool", "here", tool_call_id="1"),
    Message("tool", "there", tool_call_id="2"),
    Message("assistant", "Here."),
)


def test_words_are_read_back_as_the_calls_they_were() -> None:
    system, user, asked, told, _ = tools_in_words(CALLED, TOOLS)
    assert system.role == "system" and '"name": "find"' in system.content and user == CALLED[0]
    assert (
        (told.role, told.content.count("<tool_response>")) == ("user", 2) and "here" in told.content and "there" in told.content
    )
    found = read_reply(asked.content, tools=True)
    assert (found.text, [(call.name, call.arguments) for call in found.tool_calls]) == (
        "Let me look.",
        [("find", '{"word": "x"}'), ("find", "{}")],
    )
    given = tools_in_words((Message("system", "Be brief."), *CALLED), TOOLS)
    assert given[0].content.startswith("Be brief.\n\nYou may call tools") and len(given) == len(tools_in_words(CALLED, TOOLS))


def test_a_template_renders_tools_or_it_does_not() -> None:
    assert not any(renders_tools(tiny_tokenizer(family)) for family in FAMILIES)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}"
    )
    assert renders_tools(tokenizer)
