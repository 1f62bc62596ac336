"""Tools are typed functions: what the model is told of them, and what comes back."""

from typing import Literal

import pytest

from simulators.conversation import Conversation, Message, ToolCall
from simulators.errors import ConfigurationError, ToolError
from simulators.tools import MAX_RESULT_CHARACTERS, Toolbox


def look_up(word: str, conversation: Conversation, language: Literal["en", "de"] = "en", most: int = 3) -> dict[str, object]:
    """Look a word up
    in the dictionary.

    Args:
        word: the word, in its basic form
        most (int): how many meanings: at most ten

    Returns:
        what stands there
    """
    return {"word": word, "language": language, "most": most, "said": len(conversation)}


async def fetch(page: str) -> str:
    """Fetch a page."""
    if page == "away":
        raise ToolError("the index is away")
    return page * 5000


BOX = Toolbox.of([look_up, fetch], max_calls=2)


def test_the_schema_comes_from_signature_and_docstring() -> None:
    first, second = BOX.schemas
    assert first == {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look a word up in the dictionary.",
            "parameters": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "word": {"type": "string", "description": "the word, in its basic form"},
                    "language": {"type": "string", "enum": ["en", "de"], "default": "en"},
                    "most": {"type": "integer", "description": "how many meanings: at most ten", "default": 3},
                },
                "required": ["word"],
            },
        },
    }
    assert second["function"]["parameters"]["required"] == ["page"]


async def test_arguments_are_checked_and_the_conversation_is_given() -> None:
    said = (Message("user", "hi"),)
    result = await BOX.call(ToolCall("look_up", '{"word": "Zug", "language": "de"}'), said)
    assert result == '{"word": "Zug", "language": "de", "most": 3, "said": 1}'


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (ToolCall("", "{name: look_up"), "That was no call"),
        (ToolCall("look", "{}"), "There is no tool 'look'; there are look_up, fetch."),
        (ToolCall("look_up", "{}"), "The arguments of look_up do not fit: word: Field required."),
        (ToolCall("look_up", "[1]"), "The arguments of look_up do not fit"),
        (ToolCall("look_up", "word"), "Invalid JSON"),
        (ToolCall("look_up", '{"word": "a", "conversation": []}'), "conversation: Extra inputs are not permitted"),
        (ToolCall("look_up", '{"word": "a", "most": "many"}'), "most: Input should be a valid integer"),
        (ToolCall("look_up", "[" * 5000), "do not fit"),
    ],
)
async def test_mistakes_of_the_model_are_told(call: ToolCall, told: str) -> None:
    assert told in await BOX.call(call, ())


async def test_a_tool_that_fails_is_not_the_models_mistake() -> None:
    with pytest.raises(ToolError, match="the index is away"):
        await BOX.call(ToolCall("fetch", '{"page": "away"}'), ())


async def test_long_results_are_cut_and_say_so() -> None:
    result = await BOX.call(ToolCall("fetch", '{"page": "abcd"}'), ())
    assert result.startswith("abcd" * 2000) and result.endswith("(12000 more characters are not shown)")
    assert len(result) < MAX_RESULT_CHARACTERS + 50


def test_what_cannot_be_a_tool_is_refused() -> None:
    def silent(word: str) -> str:
        return word

    def untyped(word) -> str:  # type: ignore[no-untyped-def]
        """Do something."""
        return str(word)

    for function in (silent, untyped):
        with pytest.raises(ConfigurationError, match=f"tool '{function.__name__}' needs a name, a docstring, and a type"):
            Toolbox.of([function])
    with pytest.raises(ConfigurationError, match="different names: fetch, fetch"):
        Toolbox.of([fetch, fetch])
    with pytest.raises(ConfigurationError, match="max_tool_calls is 0"):
        Toolbox.of([fetch], max_calls=0)
