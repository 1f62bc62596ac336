"""A template over a sampler: what is rendered, and what is made of the text that comes back."""

from collections.abc import Sequence
from typing import Any

import pytest

from simulators.chat_models.chat_template import ChatTemplate
from simulators.chat_models.protocol import ChatModel, ChatRequest, Completion, SamplingSettings
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.chat_models.template_model import TemplateChatModel
from simulators.chat_models.token_sampler import SampledReply, SamplingCounts
from simulators.conversation import Message, ToolCall
from tests.scripted_environment import says
from tests.training.tiny_models import tiny_tokenizer

TOOLS = ({"type": "function", "function": {"name": "find", "description": "Find it.", "parameters": {"type": "object"}}},)
CALL = '<tool_call>{"name": "find", "arguments": {"what": "keys"}}</tool_call>'
TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}"
    "{% for call in message.tool_calls or [] %}({{ call.function.name }} {{ call.function.arguments | tojson }}){% endfor %}{% endfor %}"
    "{% if tools %}tools:{{ tools[0].function.name }}{% endif %}[assistant]"
)


class Says:
    """A sampler that says one thing."""

    def __init__(self, text: str) -> None:
        self.counts = SamplingCounts()
        self.text = text
        self.prompts: list[str] = []

    async def sample(self, prompt_ids: Sequence[int], *rest: Any) -> list[SampledReply]:
        self.prompts.append(tiny_tokenizer().decode(prompt_ids))
        return [SampledReply((1, 2), None, self.text, "stop")]

    async def aclose(self) -> None:
        """Nothing to release."""


def model_saying(text: str, template: str = TEMPLATE) -> tuple[TemplateChatModel, Says]:
    sampler = Says(text)
    return TemplateChatModel(sampler, ChatTemplate(tiny_tokenizer(), "m", template), "m", lambda: "3"), sampler


async def reply(text: str, template: str = TEMPLATE, **rest: Any) -> Completion:
    model, _ = model_saying(text, template)
    assert isinstance(model, ChatModel)
    (completion,) = await model.complete(ChatRequest(says("hi"), SamplingSettings(4), **rest))
    return completion


async def test_thoughts_are_no_part_of_the_visible_text() -> None:
    completion = await reply("<think>\nHm.\n</think>\n\nYes.")
    assert (completion.text, completion.reasoning, completion.weights_version) == ("Yes.", "Hm.", "3")
    assert completion.token_ids == (1, 2) and completion.logprobs is None


@pytest.mark.parametrize(
    ("raw", "text", "reasoning"), [("Hm.\n</think>\nYes.", "Yes.", "Hm."), ("Hm, still going", "", "Hm, still going")]
)
async def test_a_template_may_open_the_thought(raw: str, text: str, reasoning: str) -> None:
    completion = await reply(raw, TEMPLATE + "<think>\n")
    assert (completion.text, completion.reasoning) == (text, reasoning)


async def test_calls_are_read_where_tools_were_offered() -> None:
    called = await reply("I look." + CALL, tools=TOOLS)
    assert (called.text, called.tool_calls) == ("I look.", (ToolCall("find", '{"what": "keys"}'),))
    assert (await reply(CALL)).tool_calls == ()


async def test_the_template_gets_tools_and_arguments_as_objects_and_no_reasoning() -> None:
    model, sampler = model_saying("ok")
    history = (
        Message("user", "Keys?"),
        Message("assistant", "", "I wonder.", (ToolCall("find", '{"what": "keys"}', "1"), ToolCall("find", "not JSON", "2"))),
        Message("tool", "in the hall", tool_call_id="1"),
    )
    await model.complete(ChatRequest(history, tools=TOOLS))
    assert sampler.prompts == [
        '[user]Keys?[assistant](find {"what": "keys"})(find {"unreadable": "not JSON"})[tool]in the halltools:find[assistant]'
    ]


async def test_a_script_is_taken_apart_like_any_model() -> None:
    scripted = ScriptedChatModel(lambda request, rng: "<think>Hm.</think>I look." + CALL)
    (completion,) = await scripted.complete(ChatRequest(says("hi"), tools=TOOLS))
    assert (completion.text, completion.reasoning) == ("I look.", "Hm.")
    assert [call.name for call in completion.tool_calls] == ["find"]


async def test_a_text_with_a_lone_surrogate_can_be_written() -> None:
    completion = await reply("half a face: \ud83d")
    assert completion.text.encode() == "half a face: \ufffd".encode()
