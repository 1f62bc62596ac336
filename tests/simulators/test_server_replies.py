"""What servers do not take and what they answer beside plain text: nothing of it fails a call that can be answered."""

import asyncio
from typing import Any

import pytest

from simulators.chat_models.protocol import ChatRequest, Completion, SamplingSettings
from simulators.chat_models.server import ChatServer, ServerOptions
from simulators.conversation import Message, ToolCall
from simulators.errors import ChatModelError, ConfigurationError
from tests.simulators.fault_server import Body, FaultServer

FAST = ServerOptions(first_backoff_s=0.01, attempt_timeout_s=5, deadline_s=5, max_attempts=3)
VLLM = ServerOptions(first_backoff_s=0.01, extensions=True, token_ids=True, logprobs="processed")
HELLO = ChatRequest((Message("user", "hello"),), SamplingSettings(max_tokens=16))
TOOLS = ({"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}},)


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        ("max_tokens", "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."),
        ("seed", "Unrecognized request argument supplied: seed"),
        ("logprobs", "This model does not support logprobs"),
    ],
)
async def test_calls_in_flight_that_meet_a_refusal_adapt_each_by_itself(
    fault_server: FaultServer, monkeypatch: pytest.MonkeyPatch, part: str, complaint: str
) -> None:
    everybody, respond = asyncio.Barrier(64), fault_server._respond

    async def together(request: Any, body: Body, fault: str | None) -> Any:
        if fault is not None:
            await everybody.wait()  # all are under way before the first is refused
        return await respond(request, body, fault)

    monkeypatch.setattr(fault_server, "_respond", together)
    fault_server.plan = lambda number, body: f"400 {complaint}" if part in body else None
    model = ChatServer(fault_server.url, "m", VLLM)
    calls = [ChatRequest((Message("user", f"say {number}"),), seed=number) for number in range(64)]
    assert len(await asyncio.gather(*map(model.complete, calls))) == 64
    assert len(fault_server.requests) == 128
    assert sum(part in body for body in fault_server.requests) == 64
    await model.complete(HELLO)
    assert len(fault_server.requests) == 129  # it is known from then on
    await model.aclose()


async def test_all_that_is_refused_one_after_another_is_left_out(fault_server: FaultServer) -> None:
    complaints = {
        "max_tokens": "use max_completion_tokens",
        "seed": "no seed",
        "logprobs": "no logprobs",
        "response_format": "hm",
    }
    fault_server.plan = lambda number, body: next((f"400 {said}" for part, said in complaints.items() if part in body), None)
    model = ChatServer(fault_server.url, "m", VLLM)
    await model.complete(ChatRequest((Message("user", "u"),), json_schema={"type": "object"}))
    assert len(fault_server.requests) == 5
    await model.aclose()


async def test_a_word_in_a_refusal_for_another_reason_costs_nothing_for_good(fault_server: FaultServer) -> None:
    fault_server.plan = lambda number, body: "400 we do not talk about seed oil" if number < 2 else None
    model = ChatServer(fault_server.url, "m", FAST)
    with pytest.raises(ChatModelError, match="seed oil"):
        await model.complete(HELLO)
    await model.complete(HELLO)
    assert ["seed" in body for body in fault_server.requests] == [True, False, True]
    await model.aclose()


async def answer(server: FaultServer, message: Body, finish: str = "stop", tokens: int = 4, **rest: Any) -> Completion:
    server.extra = lambda body: {
        "choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant"} | message}],
        "usage": {"prompt_tokens": 10, "completion_tokens": tokens},
    }
    model = ChatServer(server.url, "m", FAST)
    try:
        (completion,) = await model.complete(ChatRequest((Message("user", "hello"),), **rest))
        return completion
    finally:
        await model.aclose()


CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"what": "keys"}'}}
FOUND = (ToolCall("find", '{"what": "keys"}', "c1"),)


@pytest.mark.parametrize(
    ("message", "text", "reasoning", "calls"),
    [
        ({"content": None, "reasoning_content": "Hm"}, "", "Hm", ()),
        ({"content": "", "reasoning": "Hm"}, "", "Hm", ()),
        ({"content": "Yes.", "reasoning_content": "Hm"}, "Yes.", "Hm", ()),
        ({"content": "<think>Hm</think>\n\nYes."}, "Yes.", "Hm", ()),
        ({"content": "<think>Hm"}, "", "Hm", ()),
        ({"content": [{"type": "text", "text": "Ye"}, {"type": "text", "text": "s."}]}, "Yes.", "", ()),
        (
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}, {"type": "text", "text": "Yes."}]},
            "Yes.",
            "Hm",
            (),
        ),
        ({"content": None, "tool_calls": [CALL]}, "", "", FOUND),
        ({"content": "I look.", "tool_calls": [CALL]}, "I look.", "", FOUND),
        ({"content": None, "tool_calls": [CALL | {"function": {"name": "find", "arguments": {"what": "keys"}}}]}, "", "", FOUND),
        ({"content": None, "refusal": "No."}, "No.", "", ()),
        ({"content": None}, "", "", ()),
        ({"content": "half a face: \ud83d"}, "half a face: \ufffd", "", ()),
    ],
)
async def test_what_a_reply_holds_is_told_apart(
    fault_server: FaultServer, message: Body, text: str, reasoning: str, calls: tuple[ToolCall, ...]
) -> None:
    completion = await answer(fault_server, message)
    assert (completion.text, completion.reasoning, completion.tool_calls) == (text, reasoning, calls)
    assert len(fault_server.requests) == 1


async def test_a_thought_that_was_cut_is_a_reply_of_no_text_and_a_length(fault_server: FaultServer) -> None:
    completion = await answer(fault_server, {"content": None, "reasoning_content": "Let me see"}, "length")
    assert (completion.text, completion.reasoning, completion.finish_reason) == ("", "Let me see", "length")


async def test_a_reply_of_nothing_without_tokens_is_the_servers_fault(fault_server: FaultServer) -> None:
    with pytest.raises(ChatModelError, match="the reply is empty"):
        await answer(fault_server, {"content": None}, tokens=0)
    assert len(fault_server.requests) == FAST.max_attempts


@pytest.mark.parametrize("message", [{"content": 7}, {"content": "x", "reasoning": ["y"]}, {"content": None, "tool_calls": [3]}])
async def test_what_is_no_message_is_asked_for_again(fault_server: FaultServer, message: Body) -> None:
    with pytest.raises(ChatModelError, match="not one of chat completions"):
        await answer(fault_server, message)


async def test_tools_are_offered_and_calls_in_the_history_are_text(fault_server: FaultServer) -> None:
    history = (
        Message("user", "Keys?"),
        Message("assistant", "", "I wonder.", FOUND),
        Message("tool", "in the hall", tool_call_id="c1"),
    )
    model = ChatServer(fault_server.url, "m", FAST)
    fault_server.reply = lambda body: 'Well: <tool_call>{"name": "find", "arguments": {}}</tool_call>'
    (completion,) = await model.complete(ChatRequest(history, tools=TOOLS))
    await model.aclose()
    (body,) = fault_server.requests
    assert (body["tools"], body["tool_choice"]) == (list(TOOLS), "auto")
    assert body["messages"][1:] == [
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "in the hall", "tool_call_id": "c1"},
    ]
    assert (completion.text, [call.name for call in completion.tool_calls]) == ("Well:", ["find"])  # a server without a parser


async def test_a_web_page_stops_the_run_at_the_first_answer(fault_server: FaultServer) -> None:
    fault_server.plan = lambda number, body: "200 page"
    model = ChatServer(fault_server.url, "m", FAST)
    with pytest.raises(ConfigurationError, match="answers with a web page; check the base URL, which mostly ends in /v1"):
        await model.complete(HELLO)
    assert len(fault_server.requests) == 1
    await model.aclose()


async def test_a_web_page_from_a_server_that_answered_before_is_a_passing_fault(fault_server: FaultServer) -> None:
    fault_server.plan = lambda number, body: "200 page" if number == 1 else None
    model = ChatServer(fault_server.url, "m", FAST)
    await model.complete(HELLO)
    await model.complete(HELLO)
    assert (len(fault_server.requests), fault_server.answered) == (3, 2)
    await model.aclose()
