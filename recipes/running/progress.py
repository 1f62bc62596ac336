"""What a run shows while it works, and what stops it: progress, the failure share and the budget in one place.

On a terminal there is a bar over the tasks with the run's figures under it (futures, calls and tokens a second, prefix hits,
failures, cost, time left); elsewhere a line now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from collab.mr import ScoredFuture
from simulators.budget import Budget
from simulators.conversation import Outcome
from simulators.failure_share import FailureShare
from simulators.journal import Journal
from simulators.progress import EngineRates, Progress, efficiency

_LINES = 10
"""How many lines a run prints where there is no terminal."""


class Watch:
    """Counts a run's futures as they are scored.

    `observe` goes to whatever scores futures, `count` to whatever else plays conversations; they raise `TooManyFailures` when the
    failure share is passed.
    """

    def __init__(self, journal: Journal, budget: Budget, max_failure_share: float) -> None:
        self._failures = FailureShare(max_failure_share)
        self._figures = Progress(journal.counts, budget=budget)
        self._counts = journal.counts

    def observe(self, scored: ScoredFuture) -> None:
        """Count one scored future."""
        self.count(scored.outcome, scored.error)

    def count(self, outcome: Outcome, error: str | None = None) -> None:
        """Count how one conversation ended.

        Raises:
            TooManyFailures: as the class says.
        """
        self._figures.future_done(failed=not outcome.earns_reward)
        self._failures.add(outcome, error)

    def speed(self, chain_s: float, engine: EngineRates) -> dict[str, Any] | None:
        """Return the run's figures and how near it came to what was possible (`simulators.progress.efficiency`).

        None for a run that read calls of an earlier start back from the journal: it did only a part of the work.
        """
        figures = self._figures.figures()
        if figures.calls_reused or not figures.calls_made:
            return None
        wall_s = max(figures.elapsed_s, 1e-9)
        mean_rate = {"calls_per_s": figures.calls_made / wall_s}
        return asdict(figures) | mean_rate | efficiency(wall_s, chain_s, self._counts.values(), engine)

    def outcomes(self) -> dict[str, int]:
        """Return how many futures ended in each outcome, for metrics."""
        return {outcome.value: count for outcome, count in sorted(self._failures.outcomes.items())}

    @contextmanager
    def tasks(self, what: str, total: int) -> Iterator[Callable[[], None]]:
        """Show a bar over `total` tasks; yields the function that advances it by one."""
        with bar(what, total, lambda: self._figures.figures().line()) as advance:
            yield advance


@contextmanager
def bar(what: str, total: int, figures: Callable[[], str] = str) -> Iterator[Callable[[], None]]:
    """Show a bar with `figures` under it; yields the function that advances it by one. Off a terminal it prints lines."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns: list[Any] = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    ]
    done = 0
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        row = bars.add_task(what, total=total, figures="")

        def advance() -> None:
            nonlocal done
            done += 1
            bars.update(row, advance=1, figures=figures())
            if not console.is_terminal and (done == total or done % max(1, total // _LINES) == 0):
                console.print(f"{what} {done}/{total} {figures()}".rstrip(), highlight=False, soft_wrap=True)

        yield advance
