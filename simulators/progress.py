"""How far a run is: a live view on a terminal, a line now and then elsewhere, and how near the run came to the engine's limit.

The figures come from the journal's counts (calls, tokens, cache hits) and from the outcomes that the run reports; nothing is
measured twice.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TextIO

from simulators.budget import Budget
from simulators.forward_sampling import Step
from simulators.journal import CallCounts

_RATE_WINDOW_S = 30.0


@dataclass(frozen=True, slots=True)
class ProgressFigures:
    """One look at a run. Rates are over the last half minute; `time_left_s` is None while nothing is known about it.

    Calls are counted as `CallCounts` does: `calls_reused` were read back from an earlier start's journal, `calls_shared` are
    equal to one that this start made.
    """

    elapsed_s: float
    futures_done: int
    futures_total: int | None
    failed: int
    calls_made: int
    calls_reused: int
    calls_shared: int
    calls_failed: int
    calls_per_s: float
    tokens_per_s: float
    prefix_hit_share: float | None
    cost: float | None
    time_left_s: float | None

    def line(self) -> str:
        """Return the figures as one line of text."""
        total = f"/{self.futures_total}" if self.futures_total is not None else ""
        shared = f"{self.calls_shared} shared, " if self.calls_shared else ""
        parts = [
            f"futures {self.futures_done}{total} ({self.failed} failed)",
            f"calls {self.calls_made} made, {shared}{self.calls_reused} from the journal, {self.calls_failed} failed",
            f"{self.calls_per_s:.1f} calls/s",
            f"{self.tokens_per_s:.0f} tokens/s",
        ]
        if self.prefix_hit_share is not None:
            parts.append(f"prefix hits {self.prefix_hit_share:.0%}")
        if self.cost is not None:
            parts.append(f"cost {self.cost:.4g}")
        parts.append(f"{_duration(self.elapsed_s)} elapsed")
        if self.time_left_s is not None:
            parts.append(f"about {_duration(self.time_left_s)} left")
        return ", ".join(parts)


class Progress(AbstractAsyncContextManager["Progress"]):
    """Shows a run's progress while it is entered (`async with Progress(...) as progress`), and keeps its counts.

    `counts` are the journal's (`Journal.counts`); `futures_total` is None where it is not known before. On a terminal one line is
    redrawn twice a second; elsewhere one is written every `interval_s` seconds, and one at the end.
    """

    def __init__(
        self,
        counts: Mapping[str, CallCounts],
        futures_total: int | None = None,
        budget: Budget | None = None,
        stream: TextIO | None = None,
        interval_s: float = 30.0,
    ) -> None:
        self._counts = counts
        self._budget = budget
        self._stream = stream or sys.stderr
        self._interval_s = interval_s
        self._started = time.monotonic()
        self._samples: deque[tuple[float, int, int]] = deque([(self._started, *self._totals())])
        self._made_before = self._samples[0][1]
        self._task: asyncio.Task[None] | None = None
        self.futures_total = futures_total
        self.futures_done = 0
        self.failed = 0

    def future_done(self, *, failed: bool = False) -> None:
        """Count one finished future; `failed` where the policy did not cause its end."""
        self.futures_done += 1
        self.failed += failed

    def figures(self) -> ProgressFigures:
        """Return the figures as they are now."""
        now = time.monotonic()
        made, tokens = self._totals()
        self._samples.append((now, made, tokens))
        while len(self._samples) > 2 and now - self._samples[1][0] > _RATE_WINDOW_S:
            self._samples.popleft()
        then, made_then, tokens_then = self._samples[0]
        span = max(now - then, 1e-9)
        prompt = sum(each.prompt_tokens for each in self._counts.values())
        cached = sum(each.cached_tokens for each in self._counts.values())
        elapsed = now - self._started
        left = None
        if self.futures_total is not None and self.futures_done:
            left = elapsed / self.futures_done * max(0, self.futures_total - self.futures_done)
        return ProgressFigures(
            elapsed_s=elapsed,
            futures_done=self.futures_done,
            futures_total=self.futures_total,
            failed=self.failed,
            calls_made=made,
            calls_reused=sum(each.reused for each in self._counts.values()),
            calls_shared=sum(each.shared for each in self._counts.values()),
            calls_failed=sum(each.failed for each in self._counts.values()),
            calls_per_s=(made - made_then) / span,
            tokens_per_s=(tokens - tokens_then) / span,
            prefix_hit_share=cached / prompt if prompt else None,
            cost=self._budget.spent.cost if self._budget is not None and self._budget.prices else None,
            time_left_s=left,
        )

    def _totals(self) -> tuple[int, int]:
        """Return (calls made, tokens written by models) so far."""
        return sum(each.made for each in self._counts.values()), sum(each.completion_tokens for each in self._counts.values())

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._show())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _show(self) -> None:
        if self._stream.isatty():
            await self._show_live()
            return
        try:
            while True:
                await asyncio.sleep(self._interval_s)
                self._write()
        finally:
            self._write()

    def _write(self) -> None:
        self._stream.write(self.figures().line() + "\n")
        self._stream.flush()

    async def _show_live(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        with Live(console=Console(file=self._stream), auto_refresh=False) as live:
            try:
                while True:
                    live.update(Text(self.figures().line()), refresh=True)
                    await asyncio.sleep(0.5)
            finally:
                live.update(Text(self.figures().line()), refresh=True)


@dataclass(slots=True)
class EngineRates:
    """What the engine and its limits allow, per second; None where unknown or unlimited.

    Not frozen: it is a group of the configuration as it stands, and Hydra cannot set a value of a frozen one.

    `decode_tokens` and `prefill_tokens` are measured on the engine alone (tests/benchmarks), `calls` is a provider's rate limit.
    """

    calls: float | None = None
    decode_tokens: float | None = None
    prefill_tokens: float | None = None


def efficiency(wall_s: float, chain_s: float, counts: Iterable[CallCounts], rates: EngineRates) -> dict[str, Any]:
    """Return how near a run came to what was possible, as plain data for metrics.

    bound = max(longest sequential chain of call latencies (`chain_s`), calls / allowed rate, decode tokens / decode rate +
    prefill tokens after reuse / prefill rate); efficiency = bound / wall. `binding` names the largest term. The counts
    hold the tokens of calls read back from the journal, too, so the figure is for runs that read nothing back.

    Raises:
        ValueError: when `wall_s` is not above 0.
    """
    if wall_s <= 0:
        raise ValueError(f"wall_s is {wall_s}; it must be above 0")
    all_counts = list(counts)
    terms = {"chain": chain_s}
    if rates.calls:
        terms["calls"] = sum(each.made for each in all_counts) / rates.calls
    if rates.decode_tokens:
        terms["tokens"] = sum(each.completion_tokens for each in all_counts) / rates.decode_tokens
        if rates.prefill_tokens:
            fresh = sum(each.prompt_tokens - each.cached_tokens for each in all_counts)
            terms["tokens"] += fresh / rates.prefill_tokens
    binding = max(terms, key=lambda name: terms[name])
    return {
        "efficiency": terms[binding] / wall_s,
        "bound_s": terms[binding],
        "binding": binding,
        "wall_s": wall_s,
        **{f"bound_{name}_s": seconds for name, seconds in terms.items()},
    }


def chain_s(steps: Iterable[Step]) -> float:
    """Return how long a conversation's calls took one after the other, in seconds: the chain no scheduler can shorten."""
    return sum(step.completion.latency_s for step in steps if step.completion is not None)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
