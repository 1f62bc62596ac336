"""The event loop's thread, and the training thread that does device work while it waits."""

import asyncio
import threading

import pytest

from collab.training.event_loop import EventLoopThread, TrainingThread


@pytest.fixture
def running():
    thread = TrainingThread()
    loop = EventLoopThread(thread)
    yield thread, loop
    loop.close()


def test_device_work_is_done_by_the_thread_that_waits(running) -> None:
    thread, loop = running

    async def coroutine() -> tuple[int, int]:
        device = await asyncio.get_running_loop().run_in_executor(thread, threading.get_ident)
        return device, threading.get_ident()

    device, network = loop.run(coroutine())
    assert device == threading.get_ident() != network


def test_the_loop_goes_on_while_the_device_works(running) -> None:
    thread, loop = running
    ticked = threading.Event()

    async def coroutine() -> bool:
        async def tick() -> None:
            ticked.set()

        work = asyncio.get_running_loop().run_in_executor(thread, ticked.wait, 5.0)
        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(tick()))
        return await work

    assert loop.run(coroutine())


def test_errors_come_out_where_they_belong(running) -> None:
    thread, loop = running

    def fails() -> None:
        raise RuntimeError("device lost")

    async def coroutine() -> str:
        try:
            await asyncio.get_running_loop().run_in_executor(thread, fails)
        except RuntimeError as error:
            return str(error)
        raise AssertionError

    assert loop.run(coroutine()) == "device lost"

    async def raises() -> None:
        raise ValueError("conversation")

    with pytest.raises(ValueError, match="conversation"):
        loop.run(raises())


def test_an_interrupt_of_device_work_stops_the_caller_and_the_loop_lives_on(running) -> None:
    thread, loop = running

    def interrupted() -> None:
        raise KeyboardInterrupt

    async def coroutine() -> None:
        await asyncio.get_running_loop().run_in_executor(thread, interrupted)

    with pytest.raises(KeyboardInterrupt):
        loop.run(coroutine())

    async def answer() -> int:
        return 42

    assert loop.run(answer()) == 42


def test_work_that_nobody_waits_for_is_dropped(running) -> None:
    thread, loop = running
    done = []

    async def coroutine() -> None:
        asyncio.get_running_loop().run_in_executor(thread, done.append, 1)
        asyncio.get_running_loop().run_in_executor(thread, done.append, 2)
        raise ValueError

    for _ in range(3):
        with pytest.raises(ValueError):
            loop.run(coroutine())
    assert loop.run(asyncio.sleep(0, "alive")) == "alive"
