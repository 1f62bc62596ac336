"""The thread that feeds a vLLM engine, with an engine of straw; the real one is in tests/vllm."""

import asyncio
import importlib.util
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from simulators.chat_models.vllm_engine import EngineThread, Submission
from simulators.chat_models.vllm_model import VLLMChatModel, VLLMOptions
from simulators.errors import ChatModelError, ConfigurationError


class StrawEngine:
    """Finishes a request after as many steps as its prompt is long; `events` is what happened, in order."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}
        self.events: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.broken = False
        self.endless = False
        self.engine_core = SimpleNamespace(shutdown=lambda: self.events.append("shutdown"))

    def add_request(self, request_id: str, prompt: dict[str, list[int]], sampling: Any, lora_request: Any) -> None:
        if not prompt["prompt_token_ids"]:
            raise ValueError("an empty prompt")
        self.events.append(f"add {sampling}")
        self.left[request_id] = len(prompt["prompt_token_ids"])

    def abort_request(self, ids: list[str]) -> None:
        self.events.append("abort")
        for request_id in ids:
            del self.left[request_id]

    def step(self) -> list[Any]:
        self.gate.wait(5)
        if self.broken:
            raise RuntimeError("CPU Generator does not use offset\nand so on")
        self.events.append(f"step {len(self.left)}")
        if not self.endless:
            self.left = {request_id: count - 1 for request_id, count in self.left.items()}
        done = [request_id for request_id, count in self.left.items() if count == 0]
        for request_id in done:
            del self.left[request_id]
        return [SimpleNamespace(request_id=request_id, finished=True) for request_id in done]


@pytest.fixture
def straw() -> StrawEngine:
    return StrawEngine()


@pytest.fixture
def thread(straw: StrawEngine) -> Iterator[EngineThread]:
    engine_thread = EngineThread(lambda: straw, "straw")
    yield engine_thread
    straw.gate.set()
    engine_thread.close()
    assert straw.events[-1] == "shutdown"


def request(name: str, steps: int = 1) -> Submission:
    return Submission([0] * steps, name, None, asyncio.get_running_loop().create_future())


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came about")


async def test_what_is_submitted_together_is_in_the_same_step(straw: StrawEngine, thread: EngineThread) -> None:
    both = [request("a"), request("b")]
    thread.submit(both)
    await asyncio.gather(*(each.answer for each in both))
    assert straw.events == ["add a", "add b", "step 2"]


async def test_a_later_request_joins_and_may_finish_first(straw: StrawEngine, thread: EngineThread) -> None:
    long, short = request("long", 10_000), request("short")
    thread.submit([long])
    await until(lambda: "step 1" in straw.events)
    thread.submit([short])
    await short.answer
    assert not long.answer.done()
    thread.abort([long])
    await asyncio.wrap_future(thread.call(lambda engine: None))
    assert straw.left == {}


async def test_a_call_when_idle_divides_before_from_after(straw: StrawEngine, thread: EngineThread) -> None:
    straw.gate.clear()
    before, after = request("before", 3), request("after")
    thread.submit([before])
    update = thread.call(lambda engine: engine.events.append("update"), when_idle=True)
    thread.submit([after])
    straw.gate.set()
    await asyncio.gather(before.answer, after.answer, asyncio.wrap_future(update))
    assert straw.events == ["add before", "step 1", "step 1", "step 1", "update", "add after", "step 1"]


async def test_a_request_the_engine_refuses_fails_alone(straw: StrawEngine, thread: EngineThread) -> None:
    bad, good = request("bad", 0), request("good")
    thread.submit([bad, good])
    with pytest.raises(ChatModelError, match="refuses a request to straw: an empty prompt"):
        await bad.answer
    await good.answer


async def test_a_request_given_up_before_it_got_in_is_not_run(straw: StrawEngine, thread: EngineThread) -> None:
    gone, good = request("gone"), request("good")
    gone.answer.cancel()
    thread.submit([gone, good])
    await good.answer
    assert "add gone" not in straw.events


async def test_an_engine_that_fails_is_not_used_again(straw: StrawEngine, thread: EngineThread) -> None:
    straw.broken = True
    running, later = request("running"), request("later")
    thread.submit([running])
    with pytest.raises(ConfigurationError, match=r"does not use offset and so on\); start the run again"):
        await running.answer
    thread.submit([later])
    with pytest.raises(ConfigurationError, match="straw failed"):
        await later.answer
    with pytest.raises(ConfigurationError, match="straw failed"):
        await asyncio.wrap_future(thread.call(lambda engine: None))


async def test_a_call_that_raises_fails_alone(thread: EngineThread) -> None:
    with pytest.raises(KeyError):
        await asyncio.wrap_future(thread.call(lambda engine: {}["no"]))
    fine = request("fine")
    thread.submit([fine])
    await fine.answer


async def test_closing_cancels_what_is_under_way(straw: StrawEngine) -> None:
    straw.endless = True
    engine_thread = EngineThread(lambda: straw, "straw")
    long = request("long")
    engine_thread.submit([long])
    await until(lambda: "step 1" in straw.events)
    await asyncio.to_thread(engine_thread.close)
    with pytest.raises(asyncio.CancelledError):
        await long.answer


def test_an_engine_that_cannot_be_built_raises_where_it_was_asked_for() -> None:
    def build() -> Any:
        raise OSError("no such folder")

    with pytest.raises(OSError, match="no such folder"):
        EngineThread(build, "straw")


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_the_extra_is_named(tiny_model_folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"collab\[vllm\]"):
        VLLMChatModel(str(tiny_model_folder))


@pytest.mark.parametrize("wrong", [{"max_batch_size": 0}, {"context_tokens": 1}])
def test_options_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="vllm: "):
        VLLMOptions(**wrong)  # type: ignore[arg-type]
