"""A progress bar for long work: what is done, how long it will take, and how many model calls were made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from simulators.journal import Journal


@contextmanager
def task_progress(what: str, total: int, journal: Journal) -> Iterator[Callable[[], None]]:
    """Show a bar over `total` tasks; yields the function that advances it by one. Off a terminal it prints plain lines."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[calls]} calls"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    ]
    done = 0
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(what, total=total, calls=0)

        def advance() -> None:
            nonlocal done
            done += 1
            calls = sum(counts.made + counts.reused for counts in journal.counts.values())
            progress.update(bar, advance=1, calls=calls)
            if not console.is_terminal and (done == total or done % max(1, total // 10) == 0):
                console.print(f"{what}: {done}/{total} ({calls} calls)", highlight=False)

        yield advance
