"""The dispatcher, over an engine of straw. What comes before what is told by events; nothing here measures time."""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from simulators.chat_models.dispatcher import Dispatcher, OutOfMemory, Row
from simulators.chat_models.protocol import SamplingSettings
from simulators.chat_models.token_sampler import SampledReply
from simulators.errors import ChatModelError, ConfigurationError, ContextOverflow
from tests.chat_models.straw import StrawEngine


@pytest.fixture
def straw() -> StrawEngine:
    return StrawEngine()


@pytest.fixture
async def dispatcher(straw: StrawEngine) -> AsyncIterator[Dispatcher]:
    made = Dispatcher(straw, "straw", 1000)
    yield made
    await made.aclose()
    assert straw.events[-1] == "close"


async def ask(dispatcher: Dispatcher, number: int, steps: int = 1, prompt: int = 1, n: int = 1) -> list[SampledReply]:
    return await dispatcher.sample([0] * prompt, SamplingSettings(steps), number, n)


def start(dispatcher: Dispatcher, number: int, steps: int = 1, prompt: int = 1) -> asyncio.Task[list[SampledReply]]:
    return asyncio.create_task(ask(dispatcher, number, steps, prompt))


class Gate:
    """Holds the engine up in front of a step until `open`."""

    def __init__(self, straw: StrawEngine) -> None:
        self.reached = asyncio.Event()
        self._opened = threading.Event()
        self._loop = asyncio.get_running_loop()
        straw.before_step = self._wait

    def _wait(self, rows: list[Row]) -> None:
        self._loop.call_soon_threadsafe(self.reached.set)
        assert self._opened.wait(10)

    def open(self) -> None:
        self._opened.set()


async def test_what_is_asked_together_is_in_the_same_step(straw: StrawEngine, dispatcher: Dispatcher) -> None:
    await asyncio.gather(ask(dispatcher, 1), ask(dispatcher, 2))
    assert straw.events == ["admit 1 2", "step", "finish 1", "finish 2"]
    assert dispatcher.counts.tokens == 2 and dispatcher.counts.busy_s > 0


async def test_a_later_request_joins_and_finishes_first(straw: StrawEngine, dispatcher: Dispatcher) -> None:
    gate = Gate(straw)
    long = start(dispatcher, 1, steps=50)
    await gate.reached.wait()
    short = start(dispatcher, 2, steps=2)
    await asyncio.sleep(0)
    gate.open()
    await short
    assert not long.done()
    await long
    assert straw.events[:2] == ["admit 1", "step"]
    assert straw.events.index("admit 2") < straw.events.index("finish 2") < straw.events.index("finish 1")


async def test_several_steps_are_taken_at_once_while_nobody_asks(straw: StrawEngine) -> None:
    class Counting(ThreadPoolExecutor):
        jobs = 0

        def submit(self, *arguments: Any, **named: Any) -> Any:
            Counting.jobs += 1
            return super().submit(*arguments, **named)

    dispatcher = Dispatcher(straw, "straw", 1000, executor=Counting(1))
    await ask(dispatcher, 1, steps=100)
    assert (straw.events.count("step"), Counting.jobs) == (100, 1)
    await dispatcher.aclose()


async def test_follow_ups_of_coroutines_here_join_at_the_same_step_in_every_run() -> None:
    async def conversation(dispatcher: Dispatcher, number: int) -> None:
        for turn in range(4):
            await asyncio.gather(asyncio.create_task(ask(dispatcher, 10 * number + turn, steps=1 + (number * 7 + turn * 3) % 5)))

    runs = []
    for _ in range(3):
        straw = StrawEngine()
        dispatcher = Dispatcher(straw, "straw", 1000, max_batch_size=4)
        await asyncio.gather(*(conversation(dispatcher, number) for number in range(9)))
        await dispatcher.aclose()
        runs.append(straw.events)
    assert runs[0] == runs[1] == runs[2]
    assert sum(event.startswith("finish") for event in runs[0]) == 36


async def test_the_nearest_in_length_go_together_and_the_oldest_never_waits_for_them(straw: StrawEngine) -> None:
    dispatcher = Dispatcher(straw, "straw", 1000, max_batch_size=2)
    lengths = [50, 100, 51, 99, 10, 49]
    await asyncio.gather(*(ask(dispatcher, number, prompt=length) for number, length in enumerate(lengths)))
    admitted = [event for event in straw.events if event.startswith("admit")]
    assert admitted == ["admit 0 2", "admit 1 3", "admit 4 5"]
    await dispatcher.aclose()


async def test_a_full_batch_is_refilled_by_the_quarter(straw: StrawEngine) -> None:
    dispatcher = Dispatcher(straw, "straw", 1000, max_batch_size=8)
    await asyncio.gather(*(ask(dispatcher, number, steps=1 + number) for number in range(12)))
    admitted = [event for event in straw.events if event.startswith("admit")]
    assert admitted == ["admit 0 1 2 3 4 5 6 7", "admit 8 9", "admit 10 11"]
    await dispatcher.aclose()


async def test_an_engine_that_cannot_take_more_in_is_left_to_finish(straw: StrawEngine, dispatcher: Dispatcher) -> None:
    straw.joins = False
    gate = Gate(straw)
    long = start(dispatcher, 1, steps=5)
    await gate.reached.wait()
    later = start(dispatcher, 2)
    gate.open()
    await asyncio.gather(long, later)
    assert straw.events.index("finish 1") < straw.events.index("admit 2")


async def test_who_gave_up_is_dropped_wherever_he_is(straw: StrawEngine) -> None:
    dispatcher = Dispatcher(straw, "straw", 1000, max_batch_size=1)
    gate = Gate(straw)
    running, waiting = start(dispatcher, 1, steps=10_000), start(dispatcher, 2)
    await gate.reached.wait()
    running.cancel()
    waiting.cancel()
    gate.open()
    await ask(dispatcher, 3)
    assert [event for event in straw.events if event != "step"] == ["admit 1", "abort 1", "admit 3", "finish 3"]
    await dispatcher.aclose()


async def test_too_little_memory_halves_the_batch_and_nobody_notices(straw: StrawEngine) -> None:
    dispatcher = Dispatcher(straw, "straw", 1000, max_batch_size=8)
    sizes: list[int] = []

    def small(rows: list[Row]) -> None:
        sizes.append(len(rows))
        if len(rows) > 2:
            raise OutOfMemory("CUDA out of memory")

    straw.before_step = small
    replies = await asyncio.gather(*(ask(dispatcher, number) for number in range(8)))
    assert [reply.text for (reply,) in replies] == [str(number) for number in range(8)]
    assert sizes == [8, 4, 2, 2, 2, 2]
    await dispatcher.aclose()


async def test_one_row_that_is_too_much_fails_alone(straw: StrawEngine, dispatcher: Dispatcher) -> None:
    def picky(rows: list[Row]) -> None:
        if any(row.seed == 1 for row in rows):
            raise OutOfMemory("CUDA out of memory")

    straw.before_step = picky
    results = await asyncio.gather(*(ask(dispatcher, number) for number in range(4)), return_exceptions=True)
    assert isinstance(results[1], ChatModelError) and "straw failed to decode: CUDA out of memory" in str(results[1])
    assert [isinstance(result, list) for result in results] == [True, False, True, True]


async def test_a_request_that_breaks_a_step_fails_alone(straw: StrawEngine, dispatcher: Dispatcher) -> None:
    def poisoned(rows: list[Row]) -> None:
        if any(row.seed == 1 for row in rows):
            raise IndexError("index out of range\nand a long story")

    straw.before_step = poisoned
    results = await asyncio.gather(*(ask(dispatcher, number, n=1) for number in range(3)), return_exceptions=True)
    assert str(results[1]) == "straw failed to decode: index out of range"
    assert [isinstance(result, list) for result in results] == [True, False, True]
    straw.events.clear()
    await asyncio.gather(ask(dispatcher, 4), ask(dispatcher, 5))
    assert straw.events[-4:] == ["admit 4 5", "step", "finish 4", "finish 5"]  # suspicion is of the requests, not of the engine


async def test_an_error_of_a_row_alone_is_its_requests(straw: StrawEngine, dispatcher: Dispatcher) -> None:
    def refuse(rows: list[Row]) -> None:
        for row in rows:
            if row.seed == 1:
                row.error = ChatModelError("no")

    straw.before_step = refuse
    results = await asyncio.gather(ask(dispatcher, 0, n=1), ask(dispatcher, 1, n=2), return_exceptions=True)
    assert isinstance(results[0], list) and str(results[1]) == "no"


async def test_an_engine_that_is_dead_is_not_used_again(straw: StrawEngine, dispatcher: Dispatcher) -> None:
    def die(rows: list[Row]) -> None:
        raise ConfigurationError("the engine failed; start the run again")

    straw.before_step = die
    for _ in range(2):
        results = await asyncio.gather(ask(dispatcher, 1), ask(dispatcher, 2), return_exceptions=True)
        assert [str(result) for result in results] == ["the engine failed; start the run again"] * 2
    with pytest.raises(ConfigurationError):
        await dispatcher.call(lambda: None)
    assert straw.events == ["admit 1 2"]


async def test_a_call_comes_after_what_was_asked_before_it(straw: StrawEngine, dispatcher: Dispatcher) -> None:
    asked = start(dispatcher, 1, steps=2)
    await asyncio.sleep(0)
    assert await dispatcher.call(lambda: straw.events.append("call") or 7) == 7  # type: ignore[func-returns-value]
    await asked
    assert straw.events == ["admit 1", "call", "step", "step", "finish 1"]
    with pytest.raises(KeyError):
        await dispatcher.call(lambda: {}["no"])
    await ask(dispatcher, 2)


async def test_a_call_when_idle_divides_before_from_after(straw: StrawEngine, dispatcher: Dispatcher) -> None:
    before = start(dispatcher, 1, steps=3)
    await asyncio.sleep(0)
    update = asyncio.create_task(dispatcher.call_when_idle(lambda: straw.events.append("update")))
    await asyncio.sleep(0)
    after = start(dispatcher, 2)
    await asyncio.gather(before, after, update)
    assert straw.events == ["admit 1", "step", "step", "step", "finish 1", "update", "admit 2", "step", "finish 2"]


async def test_all_work_is_done_in_the_thread_that_is_given(straw: StrawEngine) -> None:
    thread = ThreadPoolExecutor(1)
    identity = thread.submit(threading.get_ident).result()
    dispatcher = Dispatcher(straw, "straw", 1000, executor=thread, closes=False)
    await ask(dispatcher, 1, steps=3)
    await dispatcher.aclose()
    assert straw.threads == {identity} and "close" not in straw.events
    assert thread.submit(threading.get_ident).result() == identity  # it stays its owner's


async def test_closing_cancels_what_is_under_way(straw: StrawEngine) -> None:
    dispatcher = Dispatcher(straw, "straw", 1000, max_batch_size=1)
    gate = Gate(straw)
    calls = [start(dispatcher, number, steps=10_000) for number in range(2)]
    await gate.reached.wait()
    closing = asyncio.create_task(dispatcher.aclose())
    gate.open()
    await closing
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)


async def test_no_room_is_told_before_the_engine_is_asked(straw: StrawEngine, dispatcher: Dispatcher) -> None:
    with pytest.raises(ContextOverflow, match="has 1000 tokens and straw takes 1000; no room for a reply"):
        await ask(dispatcher, 1, prompt=1000)
    (reply,) = await ask(dispatcher, 1, prompt=990, steps=500)
    assert len(reply.token_ids) == 10


async def test_greedy_samples_are_drawn_once(straw: StrawEngine, dispatcher: Dispatcher) -> None:
    first, second = await dispatcher.sample([0], SamplingSettings(3, 0.0), 1, n=2)
    assert first == second and dispatcher.counts.tokens == 3
