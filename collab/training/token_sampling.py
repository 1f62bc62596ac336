"""Token samplers: prompt ids in, sampled ids and their log-probabilities out. What a rollout asks of an inference engine.

Three engines answer: Transformers in the training process (here), vLLM as a server, vLLM in the training process. The rollout's
conversations are coroutines that each send one request at a time; batching is the engine's business, and there is no barrier
between conversations beyond one batch on the device.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from simulators.chat_models.protocol import FinishReason, SamplingSettings
from simulators.errors import ChatModelError, CollabError, ContextOverflow

if TYPE_CHECKING:
    from simulators.chat_models.transformers_decoding import Row


@dataclass(frozen=True, slots=True)
class SampledReply:
    """One sampled continuation: its ids (with the end token, where one was sampled) and one natural log-probability per id."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish_reason: FinishReason


@dataclass(slots=True)
class SamplingCounts:
    """What a sampler has done since it was last asked: sampled tokens, and seconds in which the engine was at work."""

    tokens: int = 0
    busy_s: float = 0.0


class TokenSampler(Protocol):
    """See the module. `counts` are running totals that the caller may reset."""

    counts: SamplingCounts

    async def sample(
        self, prompt_ids: Sequence[int], sampling: SamplingSettings, seed: int, n: int = 1, prefix_ids: Sequence[int] = ()
    ) -> list[SampledReply]:
        """Sample `n` continuations of `prompt_ids`, each starting with `prefix_ids` (returned with log-probability 0).

        `seed` names the draw; engines that can be seeded give the same reply for the same weights and seed.

        Raises:
            ContextOverflow: when the prompt leaves no room for a reply.
            ChatModelError: when the engine failed on this request.
            ConfigurationError: when no request can succeed.
        """
        ...

    async def aclose(self) -> None:
        """Release threads and connections."""
        ...


@dataclass(slots=True)
class Request:
    """One waiting request of a batching sampler."""

    prompt_ids: list[int]
    sampling: SamplingSettings
    seed: int
    n: int
    prefix_ids: list[int]
    answer: asyncio.Future[list[SampledReply]] = field(repr=False)


class BatchingSampler(ABC):
    """A sampler in this process: requests that wait together go to the device together, outside the event loop.

    `context_tokens` is the longest prompt and reply the model takes, `max_batch_size` the number of samples decoded at once.
    Device work is done by `executor` (None: a thread of its own).
    """

    def __init__(self, context_tokens: int, max_batch_size: int, executor: Executor | None = None) -> None:
        self.counts = SamplingCounts()
        self._context = context_tokens
        self._max_batch_size = max_batch_size
        self._waiting: list[Request] = []
        self._dispatcher: asyncio.Task[None] | None = None
        self._executor = executor or ThreadPoolExecutor(max_workers=1, thread_name_prefix="sample")
        self._owns_executor = executor is None

    async def sample(
        self, prompt_ids: Sequence[int], sampling: SamplingSettings, seed: int, n: int = 1, prefix_ids: Sequence[int] = ()
    ) -> list[SampledReply]:
        """Do what `TokenSampler.sample` says, together with whatever else is waiting."""
        room = self._context - len(prompt_ids) - len(prefix_ids)
        if room < 1:
            raise ContextOverflow(f"the conversation has {len(prompt_ids)} tokens and the model takes {self._context}")
        sampling = replace(sampling, max_tokens=min(sampling.max_tokens, room))
        answer: asyncio.Future[list[SampledReply]] = asyncio.get_running_loop().create_future()
        self._waiting.append(Request(list(prompt_ids), sampling, seed, n, list(prefix_ids), answer))
        if self._dispatcher is None or self._dispatcher.done():
            self._dispatcher = asyncio.create_task(self._dispatch())
        return await answer

    async def _dispatch(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            await asyncio.sleep(0)  # let every conversation that is ready to ask do so first
            batch = self._next_batch()
            started = time.perf_counter()
            try:
                replies = await loop.run_in_executor(self._executor, self._sample_batch, batch)
            except Exception as error:
                wrapped = error if isinstance(error, CollabError) else ChatModelError(f"sampling failed: {error}")
                for request in batch:
                    if not request.answer.done():
                        request.answer.set_exception(wrapped)
                continue
            self.counts.busy_s += time.perf_counter() - started
            for request, answered in zip(batch, replies, strict=True):
                self.counts.tokens += sum(len(reply.token_ids) for reply in answered) - len(request.prefix_ids) * request.n
                if not request.answer.done():
                    request.answer.set_result(answered)

    def _next_batch(self) -> list[Request]:
        """Take the oldest request and those nearest to it in length, up to the batch size: little padding, nobody starves."""
        oldest = self._waiting.pop(0)
        length = len(oldest.prompt_ids)
        batch, size = [oldest], oldest.n
        for request in sorted(self._waiting, key=lambda request: abs(len(request.prompt_ids) - length)):
            if size + request.n > self._max_batch_size:
                break
            batch.append(request)
            size += request.n
        taken = set(map(id, batch))
        self._waiting = [request for request in self._waiting if id(request) not in taken]
        return batch

    @abstractmethod
    def _sample_batch(self, batch: Sequence[Request]) -> list[list[SampledReply]]:
        """Sample one batch on the device, outside the event loop; one list of `n` replies for each request."""

    async def aclose(self) -> None:
        """Stop; requests that still wait are cancelled."""
        if self._dispatcher is not None:
            self._dispatcher.cancel()
        for request in self._waiting:
            request.answer.cancel()
        self._waiting.clear()
        if self._owns_executor:
            self._executor.shutdown(wait=True, cancel_futures=True)


class TransformersSampler(BatchingSampler):
    """Samples from a live Transformers model, as it stands at the moment of the call: the rollout puts it in eval mode.

    Each sample draws from its own generator, so it does not depend on what else is in the batch (up to the rounding of batched
    kernels). `precision` makes the context that a forward pass runs in, the trainer's autocast for one.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        eos_ids: frozenset[int],
        *,
        max_batch_size: int = 64,
        precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
        executor: Executor | None = None,
    ) -> None:
        super().__init__(int(getattr(model.config, "max_position_embeddings", 1 << 30)), max_batch_size, executor)
        self._model = model
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._precision = precision

    def _sample_batch(self, batch: Sequence[Request]) -> list[list[SampledReply]]:
        from simulators.chat_models.transformers_decoding import Row, decode

        rows = [
            [Row(request.prompt_ids, request.sampling, request.seed + index, request.prefix_ids) for index in range(request.n)]
            for request in batch
        ]
        flat = [row for several in rows for row in several]
        with self._precision():
            for start in range(0, len(flat), self._max_batch_size):
                decode(self._model, self._tokenizer, flat[start : start + self._max_batch_size], self._eos_ids)
        return [[_reply(row) for row in several] for several in rows]


def _reply(row: Row) -> SampledReply:
    return SampledReply(tuple(row.token_ids), tuple(row.logprobs), row.text, row.finish_reason)
