"""Where requests meet an engine in this process, be it Transformers or vLLM, for builds, evaluation and training alike.

A task on the event loop owns what waits and what runs. It hands new rows (one for each sample) to the engine together, has it
take steps outside the event loop until a row is finished or somebody new asks, answers what is finished at once, and lets the
callers go on before the next steps: follow-up requests of coroutines in this process join at the same step in every run.
Everything that touches the engine runs in one thread, in the order asked for; a trainer hands in its own.
"""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from simulators.chat_models.protocol import SamplingSettings
from simulators.chat_models.token_sampler import SampledReply, SamplingCounts
from simulators.errors import ChatModelError, ConfigurationError, ContextOverflow, first_lines

Result = TypeVar("Result")

_HOPS = 10
"""Turns of the event loop that callers get to ask again: from a reply through journal, policy and user to the next request."""


class OutOfMemory(Exception):
    """The engine has too little memory for the rows that it holds."""


@dataclass(eq=False, slots=True)
class Row:
    """One sample to draw, and what became of it."""

    request: Request
    seed: int
    reply: SampledReply | None = None
    error: Exception | None = None

    @property
    def prompt(self) -> list[int]:
        """The tokens to go on from: the prompt, and the prefix that the reply was made to start with."""
        return self.request.prompt_ids + self.request.prefix_ids


@dataclass(eq=False, slots=True)
class Request:
    """One call of `sample`. `adapter` is the engine's own object for the LoRA adapter to sample with, None without one.

    `alone`: it was in a batch that failed, and is tried again without company.
    """

    prompt_ids: list[int]
    prefix_ids: list[int]
    sampling: SamplingSettings
    json_schema: Mapping[str, Any] | None
    adapter: Any
    answer: asyncio.Future[list[SampledReply]]
    rows: list[Row] = field(default_factory=list)
    alone: bool = False

    def settle(self, error: Exception | None = None) -> None:
        """Answer when every row is finished, or at once with an error."""
        error = error or next((row.error for row in self.rows if row.error is not None), None)
        if self.answer.done():
            return
        if error is not None:
            self.answer.set_exception(error)
        elif all(row.reply is not None for row in self.rows):
            self.answer.set_result([row.reply for row in self.rows if row.reply is not None])


class Engine(Protocol):
    """What draws the samples; an error that concerns one row alone is put on that row.

    `joins`: new rows may be admitted while others run. The other calls stand in the context `working`. `admit` takes new rows in,
    all of them or (where it raises) none. `step` draws a token for every row and returns those that are finished; it raises
    OutOfMemory for too many rows, ConfigurationError when the engine is of no use any more. `abort` lets go of rows, finished
    and unknown ones included, also after an error.
    """

    @property
    def joins(self) -> bool: ...
    def working(self) -> AbstractContextManager[Any]: ...
    def admit(self, rows: Sequence[Row]) -> None: ...
    def step(self) -> list[Row]: ...
    def abort(self, rows: Sequence[Row]) -> None: ...
    def close(self) -> None: ...


class Dispatcher:
    """A `TokenSampler` over an engine; see the module.

    `name` stands in errors, `context_tokens` is the longest prompt and reply that the model takes. `max_batch_size` rows run at
    once (None: the engine sees to that). `adapter` goes with every request made while it is set. Work is done by `executor`
    (None: a thread of its own), which is closed together with the engine unless `closes` says otherwise.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        context_tokens: int,
        max_batch_size: int | None = None,
        executor: Executor | None = None,
        *,
        closes: bool = True,
    ) -> None:
        if max_batch_size is not None and max_batch_size < 1:
            raise ConfigurationError(f"max_batch_size is {max_batch_size}; it must be at least 1")
        self.counts = SamplingCounts()
        self.adapter: Any = None
        self.engine = engine
        self._name = name
        self._context = context_tokens
        self._limit: float = max_batch_size or math.inf
        self._executor = executor or ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._closes = closes
        self._waiting: list[Row] = []
        self._running: list[Row] = []
        self._dropped: list[Row] = []
        self._calls: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._update: asyncio.Future[Any] | None = None
        self._failure: ConfigurationError | None = None
        self._wanted = False

    async def sample(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingSettings,
        seed: int,
        n: int = 1,
        prefix_ids: Sequence[int] = (),
        json_schema: Mapping[str, Any] | None = None,
    ) -> list[SampledReply]:
        """Do what `TokenSampler.sample` says. Greedy samples are all the same one, which is drawn once."""
        room = self._context - len(prompt_ids) - len(prefix_ids)
        if room < 1:
            raise ContextOverflow(
                f"the conversation has {len(prompt_ids)} tokens and {self._name} takes {self._context}; no room for a reply"
            )
        sampling = replace(sampling, max_tokens=min(sampling.max_tokens, room))
        answer: asyncio.Future[list[SampledReply]] = asyncio.get_running_loop().create_future()
        request = Request(list(prompt_ids), list(prefix_ids), sampling, json_schema, self.adapter, answer)
        greedy = sampling.temperature == 0
        request.rows = [Row(request, seed + index) for index in range(1 if greedy else n)]
        while self._update is not None:
            await asyncio.wait([self._update])
        if self._failure is not None:
            raise self._failure
        answer.add_done_callback(lambda _: self._interrupt())
        self._waiting += request.rows
        self._wake()
        return await answer * (n if greedy else 1)

    async def call(self, function: Callable[[], Result]) -> Result:
        """Call a function in the engine's thread, between two steps and after the requests that were made before it."""
        if self._failure is not None:
            raise self._failure
        done: Future[Result] = Future()

        def run() -> None:
            try:
                done.set_result(function())
            except Exception as error:
                done.set_exception(error)

        self._calls.append(run)
        self._wake()
        return await asyncio.wrap_future(done)

    async def call_when_idle(self, function: Callable[[], Result]) -> Result:
        """Call a function in the engine's thread once all requests made before are answered; those made after wait for it."""
        while self._update is not None:
            await asyncio.wait([self._update])
        self._update = asyncio.get_running_loop().create_future()
        try:
            while self._task is not None and not self._task.done():
                await asyncio.wait([self._task])
            return await self.call(function)
        finally:
            self._update.set_result(None)
            self._update = None

    def give_up(self, error: ConfigurationError) -> None:
        """Fail everything that is asked, and all that will be: the engine is not to be trusted any more."""
        self._failure = error
        for row in self._running + self._waiting:
            row.request.settle(error)
        self._running, self._waiting, self._dropped = [], [], []

    async def aclose(self) -> None:
        """Cancel what is under way, and close engine and thread where they are the dispatcher's own."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._closes:
            await asyncio.get_running_loop().run_in_executor(self._executor, self.engine.close)
            self._executor.shutdown()

    def _interrupt(self) -> None:
        self._wanted = True

    def _wake(self) -> None:
        self._interrupt()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._dispatch())

    async def _dispatch(self) -> None:
        try:
            while True:
                for _ in range(_HOPS):
                    await asyncio.sleep(0)
                self._drop_settled()
                self._running += (new := self._next_rows())
                if not (self._running or self._dropped or self._calls):
                    return
                await self._take_turn(new)
        except BaseException as error:
            self._interrupt()
            for row in self._running + self._waiting:
                row.request.settle(error) if isinstance(error, Exception) else row.request.answer.cancel()
            self._dropped += self._running
            self._running, self._waiting, self._calls = [], [], []
            raise

    def _drop_settled(self) -> None:
        """Leave out the rows of requests that failed, or whose callers gave them up."""
        self._waiting = [row for row in self._waiting if not row.request.answer.done()]
        gone = [row for row in self._running if row.request.answer.done()]
        self._withdraw(gone)

    def _withdraw(self, rows: Sequence[Row]) -> None:
        self._dropped += rows
        self._running = [row for row in self._running if row not in rows]

    def _next_rows(self) -> list[Row]:
        """Take the oldest row and those nearest to it in length: little padding, nobody starves.

        A full batch is refilled by the quarter: equal prompts are read together then, and it is not held up for every row.
        """
        if not self._waiting or (self._running and not self.engine.joins):
            return []
        oldest = self._waiting[0].request
        if oldest.alone or any(row.request.alone for row in self._running):
            found = [] if self._running else [row for row in self._waiting if row.request is oldest]
        else:
            found = [row for row in self._waiting if not row.request.alone]
        room = self._limit - len(self._running)
        if room < min(len(found), self._limit / 4):
            return []
        found.sort(key=lambda row: abs(len(row.request.prompt_ids) - len(oldest.prompt_ids)))
        taken = found[: int(min(room, len(found)))]
        chosen = set(map(id, taken))
        self._waiting = [row for row in self._waiting if id(row) not in chosen]
        return taken

    async def _take_turn(self, new: list[Row]) -> None:
        """Have the engine work until something is finished or somebody asks, and answer."""
        self._wanted = False
        dropped, calls = list(self._dropped), list(self._calls)
        work = functools.partial(self._work, new, dropped, calls, bool(self._running))
        finished, suspects, error = await asyncio.get_running_loop().run_in_executor(self._executor, work)
        del self._dropped[: len(dropped)], self._calls[: len(calls)]
        self._running = [row for row in self._running if row not in finished]
        for row in finished:
            if row.reply is not None:
                self.counts.tokens += len(row.reply.token_ids) - len(row.request.prefix_ids)
            row.request.settle()
        if error is not None:
            self._overcome(error, suspects or self._running)

    def _work(
        self, new: list[Row], dropped: list[Row], calls: list[Callable[[], None]], running: bool
    ) -> tuple[list[Row], list[Row], Exception | None]:
        """Do a turn's work in the engine's thread; return what is finished, and an error with the rows that may be at fault.

        No such rows: it may be any.
        """
        started = time.perf_counter()
        suspects, finished = new, list[Row]()
        try:
            with self.engine.working():
                self.engine.abort(dropped)
                self.engine.admit(new)
                suspects = []
                for call in calls:
                    call()
                while running and not finished:
                    finished = self.engine.step()
                    if self._wanted:
                        break
        except Exception as error:
            return finished, suspects, error
        finally:
            self.counts.busy_s += time.perf_counter() - started
        return finished, [], None

    def _overcome(self, error: Exception, suspects: list[Row]) -> None:
        """Put rows back that an error threw out, or fail the one request that is at fault."""
        if isinstance(error, ConfigurationError):
            self.give_up(error)
            return
        requests = {row.request for row in suspects}
        if isinstance(error, OutOfMemory) and len(self._running) > 1:
            self._limit = len(self._running) // 2
            suspects = self._running
        elif len(requests) == 1:
            requests.pop().settle(ChatModelError(f"{self._name} failed to decode: {first_lines(error)}"))
            return
        else:
            for request in requests:
                request.alone = True
        self._waiting = [*suspects, *self._waiting]
        self._withdraw(suspects)
