"""A vLLM engine in a thread of this process, fed while it runs.

vLLM's own offline `generate` takes a batch and returns when its last request is done: with conversations, whose next turns come
as soon as the first replies are there, the engine would run half empty. Its asynchronous engine always puts the model into
another process, which costs throughput on a CPU. So this thread steps the engine itself: before each step it takes in whatever
has arrived, after each step it hands out what is finished.

Everything that touches the engine runs in that one thread, in the order asked for.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from simulators.chat_models.server_errors import RequestRefused
from simulators.errors import ConfigurationError

Result = TypeVar("Result")


@dataclass(eq=False, slots=True)
class Submission:
    """One sample to draw: vLLM's prompt, sampling parameters and LoRA request, and who waits for its `RequestOutput`."""

    prompt_ids: list[int]
    sampling: Any
    adapter: Any
    answer: asyncio.Future[Any]
    request_id: str = ""

    def settle(self, result: Any = None, error: Exception | None = None) -> None:
        """Answer from the engine's thread; with neither result nor error, cancel."""

        def set_answer() -> None:
            if self.answer.done():
                return
            if error is not None:
                self.answer.set_exception(error)
            elif result is not None:
                self.answer.set_result(result)
            else:
                self.answer.cancel()

        try:
            self.answer.get_loop().call_soon_threadsafe(set_answer)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return


@dataclass(frozen=True, slots=True)
class _WhenIdle:
    """A call that has to wait until no request is running; what was asked for after it waits for it."""

    call: Callable[[], None]


class EngineThread:
    """Builds an engine with `build` (a `vllm.v1.engine.llm_engine.LLMEngine`) in a new thread and runs it there.

    An engine that fails in a step is not to be trusted again: whatever is asked from then on fails with a ConfigurationError.

    Raises:
        Exception: whatever `build` raises.
    """

    def __init__(self, build: Callable[[], Any], name: str) -> None:
        self._name = name
        self._inbox: queue.SimpleQueue[Callable[[], None] | _WhenIdle] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._running: dict[str, Submission] = {}
        self._blocked_by: _WhenIdle | None = None
        self._failure: ConfigurationError | None = None
        self._closing = False
        self.engine: Any = None
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._main, args=(build, started), name="vllm-engine", daemon=True)
        self._thread.start()
        started.result()

    def submit(self, submissions: Sequence[Submission]) -> None:
        """Hand requests to the engine together: they are in the same next step, as far as it has room."""
        self._inbox.put(lambda: self._add(submissions))

    def abort(self, submissions: Sequence[Submission]) -> None:
        """Stop requests that nobody waits for any more."""
        self._inbox.put(lambda: self._abort(submissions))

    def call(self, function: Callable[[Any], Result], *, when_idle: bool = False) -> Future[Result]:
        """Call `function(engine)` between two steps; `when_idle`: after all requests submitted so far, before all others."""
        future: Future[Result] = Future()

        def call() -> None:
            try:
                if self._failure is not None:
                    raise self._failure
                future.set_result(function(self.engine))
            except BaseException as error:
                future.set_exception(error)

        self._inbox.put(_WhenIdle(call) if when_idle else call)
        return future

    def fail(self, error: BaseException) -> None:
        """Give the engine up (from its own thread): all requests, and all calls to come, fail with one sentence."""
        self._failure = ConfigurationError(
            f"the vLLM engine of {self._name} failed ({first_lines(error)}); start the run again to go on"
        )
        for submission in self._running.values():
            submission.settle(error=self._failure)
        self._running.clear()

    def close(self) -> None:
        """Stop the thread and release the engine's memory; requests under way are cancelled."""
        self._closing = True
        self._inbox.put(lambda: None)
        self._thread.join()

    def _main(self, build: Callable[[], Any], started: Future[None]) -> None:
        try:
            self.engine = build()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(None)
        while not self._closing:
            try:
                self._take_in()
                if self._running and not self._closing:
                    self._step()
            except Exception as error:
                self.fail(error)
        for submission in self._running.values():
            submission.settle()
        self.engine.engine_core.shutdown()
        self.engine = None

    def _take_in(self) -> None:
        """Do what has been asked for since the last step; wait for something while there is nothing to do."""
        while not self._closing:
            if self._blocked_by is not None:
                if self._running:
                    return
                self._blocked_by.call()
                self._blocked_by = None
            try:
                asked = self._inbox.get(block=not self._running)
            except queue.Empty:
                return
            if isinstance(asked, _WhenIdle):
                self._blocked_by = asked
            else:
                asked()

    def _add(self, submissions: Sequence[Submission]) -> None:
        for submission in submissions:
            if self._failure is not None:
                submission.settle(error=self._failure)
                continue
            if submission.answer.cancelled():
                continue
            submission.request_id = str(next(self._numbers))
            try:
                self.engine.add_request(
                    submission.request_id,
                    {"prompt_token_ids": submission.prompt_ids},
                    submission.sampling,
                    lora_request=submission.adapter,
                )
            except Exception as error:  # the engine checks a request before it takes it in
                submission.settle(error=RequestRefused(f"vLLM refuses a request to {self._name}: {first_lines(error)}"))
                continue
            self._running[submission.request_id] = submission

    def _abort(self, submissions: Sequence[Submission]) -> None:
        ids = [each.request_id for each in submissions if self._running.pop(each.request_id, None) is not None]
        if ids:
            self.engine.abort_request(ids)

    def _step(self) -> None:
        for output in self.engine.step():
            if output.finished and (submission := self._running.pop(output.request_id, None)) is not None:
                submission.settle(output)


def first_lines(error: BaseException) -> str:
    """Return the beginning of an error's text on one line: vLLM's come by the page, and say what is wrong in the second line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] or type(error).__name__
