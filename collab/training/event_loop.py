"""The rollout's event loop in a thread of its own, and the training thread that does the device's work while it waits for it.

Conversations are coroutines, users and judges answer over the network, so the loop must never stand still. Device work must be
done in the training thread: the current CUDA device, autocast, and the number of OpenMP threads belong to a thread, and engines
expect to be called from the one that built them.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

Result = TypeVar("Result")

Job = tuple["Future[Any]", Callable[[], Any]]


class TrainingThread(Executor):
    """An executor whose work is done by the thread that waits in `EventLoopThread.run`."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()

    def submit(self, function: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """Queue a call for the training thread."""
        future: Future[Result] = Future()
        self._jobs.put((future, lambda: function(*args, **kwargs)))
        return future

    def work_until(self, done: Future[Any]) -> None:
        """Do what is queued, in the calling thread, until `done` is done; what is left then is cancelled."""
        done.add_done_callback(lambda _: self._jobs.put(None))
        while (job := self._jobs.get()) is not None:
            self._do(*job)
        while not self._jobs.empty():
            if (left := self._jobs.get()) is not None:
                left[0].cancel()

    @staticmethod
    def _do(future: Future[Any], call: Callable[[], Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = call()
        except Exception as error:
            future.set_exception(error)
        except BaseException:  # an interrupt is the training thread's own; in the loop it would end the loop
            future.set_exception(RuntimeError("the training thread was interrupted"))
            raise
        else:
            future.set_result(result)


class EventLoopThread:
    """An event loop in a thread; coroutines are handed to it from plain code, and their results waited for."""

    def __init__(self, training_thread: TrainingThread) -> None:
        self._training_thread = training_thread
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rollout", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Return the coroutine's result, or raise what it raises; an interrupt of the caller cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            self._training_thread.work_until(future)
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop and its thread."""
        if self._loop.is_running():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def gather_all(coroutines: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run coroutines together; when one raises, cancel the others before raising, so that nothing runs on unseen."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
