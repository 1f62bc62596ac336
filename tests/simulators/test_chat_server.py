"""ChatServer against a loopback server: what is sent, what is read, and what each failure becomes."""

import asyncio
import email.utils
import gc
import random
import time
import warnings

import pytest

from simulators.chat_models.protocol import ChatRequest, SamplingSettings
from simulators.chat_models.retry import backoff_s, retry_after_s
from simulators.chat_models.server import ChatServer, ServerOptions
from simulators.chat_models.server_options import api_urls
from simulators.conversation import Message, Usage
from simulators.errors import ChatModelError, ConfigurationError, ContextOverflow
from tests.simulators.fault_server import FAULTS, Body, FaultServer

FAST = ServerOptions(first_backoff_s=0.01, attempt_timeout_s=0.4, deadline_s=2.5, max_attempts=3)
HELLO = ChatRequest((Message("user", "hello"),), SamplingSettings(max_tokens=16, temperature=0.5), seed=2**40 + 3)


async def bodies_of(server: FaultServer, request: ChatRequest, options: ServerOptions) -> list[Body]:
    model = ChatServer(server.url, "m", options)
    await model.complete(request)
    await model.aclose()
    return server.requests


async def test_a_plain_request_holds_what_every_server_knows_and_no_more(fault_server: FaultServer) -> None:
    (body,) = await bodies_of(fault_server, HELLO, FAST)
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 16,
        "temperature": 0.5,
        "top_p": 1.0,
        "seed": 3,
    }
    assert "Authorization" not in fault_server.headers[0]


async def test_settings_are_sent_where_they_are_set(fault_server: FaultServer) -> None:
    request = ChatRequest(
        (Message("system", "s"), Message("user", "u\ud800é")),
        SamplingSettings(top_k=5, top_p=0.9, stop=("?",)),
        n=2,
        json_schema={"type": "object"},
    )
    (body,) = await bodies_of(fault_server, request, ServerOptions(send_seed=False))
    assert "seed" not in body
    assert (body["top_k"], body["top_p"], body["stop"], body["n"]) == (5, 0.9, ["?"], 2)
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}


async def test_vllm_gets_its_extensions(fault_server: FaultServer) -> None:
    request = ChatRequest((Message("user", "u"),), SamplingSettings(stop=("?",), include_stop=True), reply_prefix="What is")
    fault_server.reply = lambda body: " it?"
    model = ChatServer(fault_server.url, "m", ServerOptions(extensions=True))
    (completion,) = await model.complete(request)
    assert completion.text == "What is it?"
    (body,) = fault_server.requests
    assert body["messages"][-1] == {"role": "assistant", "content": "What is"}
    assert body["continue_final_message"] is True
    assert body["add_generation_prompt"] is False
    assert body["include_stop_str_in_output"] is True
    assert body["top_k"] == 0  # else the server takes the one of the model's generation config
    await model.aclose()


@pytest.mark.parametrize(
    "request_", [ChatRequest((), reply_prefix="What"), ChatRequest((), SamplingSettings(stop=("?",), include_stop=True))]
)
async def test_what_a_server_cannot_do_is_refused_in_one_sentence(request_: ChatRequest) -> None:
    with pytest.raises(ConfigurationError, match="vLLM"):
        await ChatServer("http://127.0.0.1:9", "m").complete(request_)


async def test_replies_carry_usage_tokens_and_logprobs(fault_server: FaultServer) -> None:
    logprobs = {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -0.25}]}
    choice = {"index": 0, "finish_reason": "length", "message": {"content": " it"}, "token_ids": [7, 8], "logprobs": logprobs}
    fault_server.extra = lambda body: {"choices": [choice], "prompt_token_ids": [1, 2, 3, 4, 5]}
    fault_server.admin = lambda path, body: (200, {"tokens": [1, 2, 3]})
    model = ChatServer(fault_server.url, "m", ServerOptions(extensions=True, token_ids=True, logprobs="raw"))
    (completion,) = await model.complete(ChatRequest((Message("user", "u"),), reply_prefix="What is"))
    assert completion.token_ids == (4, 5, 7, 8)  # the prefix's own tokens first
    assert completion.logprobs == (0.0, 0.0, -0.5, -0.25)
    assert completion.finish_reason == "length"
    assert completion.usage == Usage(10, 2, 6)
    assert fault_server.other == [
        ("/tokenize", {"model": "m", "messages": [{"role": "user", "content": "u"}], "add_generation_prompt": True})
    ]
    (cool,) = await model.complete(ChatRequest((Message("user", "u"),), SamplingSettings(temperature=0.5)))
    assert cool.token_ids == (7, 8)
    assert cool.logprobs is None  # raw log-probs are not the sampling distribution's at another temperature than 1
    await model.aclose()


async def test_tokens_are_unknown_where_the_prefix_is_merged_into_the_prompt(fault_server: FaultServer) -> None:
    choice = {"index": 0, "message": {"content": " it"}, "token_ids": [7], "logprobs": None}
    fault_server.extra = lambda body: {"choices": [choice], "prompt_token_ids": [1, 9, 5]}
    fault_server.admin = lambda path, body: (200, {"tokens": [1, 2, 3]})
    model = ChatServer(fault_server.url, "m", ServerOptions(extensions=True, token_ids=True))
    (completion,) = await model.complete(ChatRequest((Message("user", "u"),), reply_prefix="What is"))
    assert (completion.text, completion.token_ids) == ("What is it", None)
    await model.aclose()


async def test_n_samples_come_from_one_call_and_tokens_are_counted_once(fault_server: FaultServer) -> None:
    model = ChatServer(fault_server.url, "m", FAST)
    completions = await model.complete(ChatRequest((Message("user", "u"),), n=3))
    assert len(fault_server.requests) == 1
    assert [completion.usage for completion in completions] == [Usage(10, 2, 6), Usage(0, 1, 0), Usage(0, 1, 0)]
    await model.aclose()


async def test_a_server_without_n_is_asked_once_a_sample(fault_server: FaultServer) -> None:
    one = [{"index": 0, "message": {"content": "x"}}]
    fault_server.extra = lambda body: {"choices": one}
    model = ChatServer(fault_server.url, "m", FAST)
    for _ in range(2):
        assert len(await model.complete(ChatRequest((Message("user", "u"),), n=3, seed=5))) == 3
    assert [body["seed"] for body in fault_server.requests[:3]] == [5, 6, 7]
    assert ["n" in body for body in fault_server.requests] == [True, *[False] * 5]  # it is tried once
    await model.aclose()


async def test_greedy_samples_are_one_call(fault_server: FaultServer) -> None:
    model = ChatServer(fault_server.url, "m", FAST)
    completions = await model.complete(ChatRequest((Message("user", "u"),), SamplingSettings(temperature=0), n=3))
    assert len(fault_server.requests) == 1
    assert len({completion.text for completion in completions}) == 1
    assert sum(completion.usage.completion_tokens for completion in completions) == 4
    await model.aclose()


async def test_a_refused_schema_is_left_out_from_then_on(fault_server: FaultServer) -> None:
    fault_server.plan = lambda number, body: "400 response_format?" if "response_format" in body else None
    model = ChatServer(fault_server.url, "m", FAST)
    request = ChatRequest((Message("user", "u"),), json_schema={"type": "object"})
    for _ in range(2):
        await model.complete(request)
    assert ["response_format" in body for body in fault_server.requests] == [True, False, False]
    await model.aclose()


async def test_a_refusal_for_another_reason_does_not_cost_the_schema(fault_server: FaultServer) -> None:
    fault_server.plan = lambda number, body: "400 rude words" if number < 2 else None
    model = ChatServer(fault_server.url, "m", FAST)
    request = ChatRequest((Message("user", "u"),), json_schema={"type": "object"})
    with pytest.raises(ChatModelError, match="rude words"):
        await model.complete(request)
    await model.complete(request)
    assert "response_format" in fault_server.requests[-1]
    await model.aclose()


async def test_newer_apis_get_their_name_for_max_tokens(fault_server: FaultServer) -> None:
    fault_server.plan = lambda number, body: "400 use max_completion_tokens" if "max_tokens" in body else None
    model = ChatServer(fault_server.url, "m", FAST)
    await model.complete(HELLO)
    await model.complete(HELLO)
    assert ["max_tokens" in body for body in fault_server.requests] == [True, False, False]
    assert fault_server.requests[-1]["max_completion_tokens"] == 16
    await model.aclose()


async def test_the_api_key_is_sent_and_never_shown(fault_server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ServerOptions(api_key_env="COLLAB_TEST_KEY")
    monkeypatch.delenv("COLLAB_TEST_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="COLLAB_TEST_KEY"):
        ChatServer(fault_server.url, "m", options)
    monkeypatch.setenv("COLLAB_TEST_KEY", "sk-öh")
    with pytest.raises(ConfigurationError, match="COLLAB_TEST_KEY") as caught:
        ChatServer(fault_server.url, "m", options)
    assert "sk-" not in str(caught.value)
    monkeypatch.setenv("COLLAB_TEST_KEY", "sk-secret\n")
    model = ChatServer(fault_server.url, "m", options)
    await model.complete(HELLO)
    assert fault_server.headers[0]["Authorization"] == "Bearer sk-secret"
    fault_server.plan = lambda number, body: "401 Incorrect API key provided: sk-secret"
    with pytest.raises(ConfigurationError, match="401") as refused:
        await model.complete(HELLO)
    for shown in (repr(model), repr(options), str(refused.value), str(vars(model)["_options"])):
        assert "sk-secret" not in shown
    await model.aclose()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_passing_fault_is_overcome(fault_server: FaultServer, fault: str) -> None:
    fault_server.plan = lambda number, body: fault if number == 0 else None
    model = ChatServer(fault_server.url, "m", FAST)
    (completion,) = await model.complete(HELLO)
    assert completion.text.startswith("Reply to 5")
    assert (len(fault_server.requests), fault_server.answered) == (2, 1)
    await model.aclose()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_lasting_fault_fails_the_call_within_its_deadline(fault_server: FaultServer, fault: str) -> None:
    fault_server.plan = lambda number, body: fault
    model = ChatServer(fault_server.url, "m", FAST)
    started = time.monotonic()
    with pytest.raises(ChatModelError) as caught:
        await model.complete(HELLO)
    assert time.monotonic() - started < FAST.deadline_s + 1
    assert "given up after" in str(caught.value)
    if not fault.startswith(("429", "503")):  # what may cost money is not tried for ever
        assert len(fault_server.requests) == FAST.max_attempts
    await model.aclose()


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        ("401 bad key", ConfigurationError, "bad key"),
        ("402", ConfigurationError, "credit"),
        ("403", ConfigurationError, "API key"),
        ("404 no such model", ConfigurationError, "'m'"),
        ("405", ConfigurationError, "base URL"),
        ("302", ConfigurationError, "base URL"),
        ("400 context", ContextOverflow, "maximum context length"),
        ("400 the prompt is too long", ContextOverflow, "too long"),
        ("400 nonsense", ChatModelError, "nonsense"),
        ("422 nonsense", ChatModelError, "nonsense"),
    ],
)
async def test_a_refusal_is_not_tried_again(fault_server: FaultServer, fault: str, error: type[Exception], text: str) -> None:
    fault_server.plan = lambda number, body: fault
    model = ChatServer(fault_server.url, "m", FAST)
    with pytest.raises(error, match=text) as caught:
        await model.complete(HELLO)
    assert len(fault_server.requests) == 1
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ContextOverflow) == (error is ContextOverflow)
    await model.aclose()


async def test_an_exhausted_quota_stops_the_run(fault_server: FaultServer) -> None:
    model = ChatServer(fault_server.url, "m", FAST)
    fault_server.plan = lambda number, body: "429 quota"
    fault_server.error_code = "insufficient_quota"
    with pytest.raises(ConfigurationError, match="no credit"):
        await model.complete(HELLO)
    await model.aclose()


async def test_a_model_that_says_nothing_is_no_server_fault(fault_server: FaultServer) -> None:
    fault_server.reply = lambda body: ""
    model = ChatServer(fault_server.url, "m", FAST)
    (completion,) = await model.complete(HELLO)
    assert completion.text == ""  # tokens were sampled: it ended its reply at once, which is the policy's own doing
    await model.aclose()


async def test_no_server_at_first_contact_stops_the_run_naming_the_url(fault_server: FaultServer) -> None:
    await fault_server.stop()
    model = ChatServer(fault_server.url, "m", FAST)
    with pytest.raises(ConfigurationError, match=f"no server at {fault_server.url}/v1"):
        await model.complete(HELLO)
    await model.aclose()


async def test_a_server_that_was_there_is_waited_for(fault_server: FaultServer) -> None:
    model = ChatServer(fault_server.url, "m", FAST)
    await model.complete(HELLO)
    await fault_server.stop()
    call = asyncio.create_task(model.complete(HELLO))
    await asyncio.sleep(0.1)
    assert not call.done()
    await fault_server.start()
    (completion,) = await call
    assert completion.text
    await model.aclose()


async def test_a_server_that_stays_away_fails_everything_that_waits_for_it(fault_server: FaultServer) -> None:
    options = ServerOptions(first_backoff_s=0.01, deadline_s=0.6, initial_concurrency=1, max_concurrency=1)
    model = ChatServer(fault_server.url, "m", options)
    await model.complete(HELLO)
    await fault_server.stop()
    started = time.monotonic()
    results = await asyncio.gather(*(model.complete(HELLO) for _ in range(50)), return_exceptions=True)
    assert all(isinstance(result, ChatModelError) for result in results)
    assert time.monotonic() - started < 5  # not 50 calls times their deadline
    await model.aclose()


async def test_retry_after_holds_all_calls_back(fault_server: FaultServer) -> None:
    moments: list[float] = []

    def plan(number: int, body: Body) -> str | None:
        moments.append(time.monotonic())
        return "429 with Retry-After" if number == 0 else None

    fault_server.plan = plan
    fault_server.retry_after = "0.2"
    model = ChatServer(fault_server.url, "m", FAST)
    first = asyncio.create_task(model.complete(HELLO))
    await asyncio.sleep(0.1)
    await asyncio.gather(first, model.complete(HELLO))
    assert all(moment - moments[0] >= 0.19 for moment in moments[1:])
    await model.aclose()


async def test_a_retry_after_beyond_the_deadline_is_not_waited_for(fault_server: FaultServer) -> None:
    fault_server.plan = lambda number, body: "429 with Retry-After"
    fault_server.retry_after = "3600"
    model = ChatServer(fault_server.url, "m", FAST)
    started = time.monotonic()
    with pytest.raises(ChatModelError, match="429"):
        await model.complete(HELLO)
    assert time.monotonic() - started < 1
    await model.aclose()


async def test_calls_under_way_keep_within_the_limit_and_all_are_answered(fault_server: FaultServer) -> None:
    fault_server.latency_s = 0.01
    model = ChatServer(fault_server.url, "m", ServerOptions(initial_concurrency=4, max_concurrency=8))
    await asyncio.gather(*(model.complete(HELLO) for _ in range(60)))
    assert fault_server.answered == 60
    assert 4 < fault_server.peak <= 8
    await model.aclose()


async def test_an_overloaded_server_gets_fewer_calls_at_once(fault_server: FaultServer) -> None:
    fault_server.latency_s = 0.005
    fault_server.plan = lambda number, body: "429" if fault_server.in_flight > 4 else None
    options = ServerOptions(first_backoff_s=0.01, deadline_s=30, initial_concurrency=64, max_concurrency=64)
    model = ChatServer(fault_server.url, "m", options)
    await asyncio.gather(*(model.complete(HELLO) for _ in range(100)))
    assert fault_server.answered == 100
    assert model.endpoints[0].limit.limit <= 8
    await model.aclose()


async def test_cancelled_calls_give_their_places_back(fault_server: FaultServer) -> None:
    fault_server.latency_s = 0.1
    model = ChatServer(fault_server.url, "m", ServerOptions(initial_concurrency=1, max_concurrency=1))
    calls = [asyncio.create_task(model.complete(HELLO)) for _ in range(5)]
    await asyncio.sleep(0.05)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    fault_server.latency_s = 0
    async with asyncio.timeout(2):
        await model.complete(HELLO)
    assert model.endpoints[0].in_flight == 0
    await model.aclose()


async def test_two_servers_share_the_work_and_a_dead_one_is_left_alone(fault_server: FaultServer) -> None:
    other = FaultServer()
    await other.start()
    model = ChatServer([fault_server.url, other.url + "/v1"], "m", ServerOptions(first_backoff_s=0.01, deadline_s=10))
    requests = [ChatRequest((Message("system", "s"), Message("user", f"task {task}"))) for task in range(40)]
    await asyncio.gather(*(model.complete(request) for request in requests for _ in range(3)))
    seen = [{body["messages"][1]["content"] for body in server.requests} for server in (fault_server, other)]
    assert seen[0] and seen[1]
    assert not seen[0] & seen[1]  # what shares a prefix went to one server
    await other.stop()
    before = fault_server.answered
    await asyncio.gather(*(model.complete(request) for request in requests))
    assert fault_server.answered == before + 40
    await model.aclose()


def test_each_event_loop_gets_a_session_that_ends_with_it() -> None:
    server = FaultServer()
    models: list[ChatServer] = []

    async def one_run() -> None:
        await server.start()  # the second time on the same port
        if not models:
            models.append(ChatServer(server.url, "m", FAST))
        await models[0].complete(HELLO)
        await server.stop()

    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        for _ in range(2):
            asyncio.run(one_run())
            session = models[0]._client.connection._session
            assert session is not None and session.closed
        models.clear()
        gc.collect()
    assert server.answered == 2


def test_base_urls_are_checked() -> None:
    assert api_urls("http://h:8000/") == [("http://h:8000/v1", "http://h:8000")]
    assert api_urls(["https://h/api/v1"]) == [("https://h/api/v1", "https://h/api")]
    for wrong in ("localhost:8000", "ftp://h", "http://", "http://h:port", "http://h/v1?key=1", [], ["http://h", "http://h/v1"]):
        with pytest.raises(ConfigurationError):
            api_urls(wrong)
    for secret in ("https://me:hunter2@h", "https://h/v1?key=hunter2", "ftp://me:hunter2@h", "https://me:hunter2@h:port/v1"):
        with pytest.raises(ConfigurationError) as caught:
            api_urls(secret)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"deadline_s": 0},
        {"attempt_timeout_s": float("nan")},
        {"max_attempts": 0},
        {"max_concurrency": 0},
        {"logprobs": "yes"},
        {"json_schema": "always"},
        {"token_ids": True},
        {"logprobs": "raw", "extensions": True},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        ServerOptions(**options)


def test_retry_after_is_read_in_both_forms() -> None:
    now = 1_700_000_000.0
    assert retry_after_s("7") == 7
    assert retry_after_s(" 0.25 ") == 0.25
    assert retry_after_s(email.utils.formatdate(now + 30, usegmt=True), now) == pytest.approx(30)
    assert retry_after_s(email.utils.formatdate(now - 30, usegmt=True), now) == 0
    for unreadable in (None, "", "soon", "-3", "١", "9" * 400, "Wed, 99 Foo 2020 00:00:00 GMT"):
        assert retry_after_s(unreadable) is None


def test_backoff_doubles_with_jitter_up_to_a_ceiling() -> None:
    rng = random.Random(0)
    for failures, longest in ((1, 0.5), (2, 1.0), (3, 2.0), (20, 20.0), (10_000, 20.0)):
        waits = [backoff_s(failures, 0.5, rng) for _ in range(100)]
        assert longest / 2 <= min(waits) < max(waits) <= longest
