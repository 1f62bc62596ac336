"""The run context: what every command that calls models is given, made here and nowhere else.

    with open_run(config) as run:
        policy = assembly.policy(config.policy, run.models, environment)
        ...                                # run.watch counts and shows, run.folder takes metrics

Opening a run refuses secrets and a folder of another configuration, writes configuration and versions down, and opens the
journal, behind which all its models stand: answered calls are read back from it, and its budget counts what earlier starts spent.
A replay writes nothing: its journal is the only source, nothing can be spent, and what failed on record may fail again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from recipes.configuration.group_schema import Model
from recipes.configuration.schema import Run as RunConfig
from recipes.running.models import Models
from recipes.running.progress import Watch
from recipes.running.run_folder import RunFolder
from simulators.budget import Budget
from simulators.journal import Journal

Result = TypeVar("Result")

ROLES = ("policy", "user", "judge")


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a command, open; see the module. `folder` is where it writes, also that of the record in a `replay`."""

    folder: RunFolder
    journal: Journal
    budget: Budget
    models: Models
    watch: Watch
    replay: bool = False

    @property
    def path(self) -> Path:
        return self.folder.path

    def with_models_of_its_own(self) -> Run:
        """Return the same run with other models, for a part whose models should not stay in memory with those of others."""
        return replace(self, models=Models(self.journal, self.budget))

    def wait_for(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do a command's asynchronous part to its end, and close its models in the same event loop."""

        async def closing() -> Result:
            try:
                return await work
            finally:
                await self.models.aclose()

        return asyncio.run(closing())

    def log(self, stage: str, **figures: Any) -> None:
        """Append a line to metrics.jsonl: figures of the command's own, how conversations ended, what the models were asked."""
        self.folder.log_metrics(stage, **figures, outcomes=self.watch.outcomes(), calls=self.journal.summary())


@contextmanager
def open_run(config: RunConfig, *, journal: Path | None = None, replay: bool = False) -> Iterator[Run]:
    """Open a run in the configuration's `output_dir`, and close its journal at the end, whatever happens.

    `journal` is the folder of the journal where it is another. In a distributed run every process (`RANK`) opens a run of its own
    with a journal of its own and its share of the budget, so that all together keep to the limits; the first whose share is spent
    ends the run.

    Raises:
        ConfigurationError: a secret in the configuration, another one's folder, a limit that cannot be.
        StorageError: the disk refuses, or another process has the journal.
    """
    folder = RunFolder(config)
    if not replay:
        folder.refuse_other()
    book = Journal((journal or folder.path) / "journal.jsonl", replay=replay)
    try:
        if not replay:
            folder.write_down()  # now that no other process is about to
        budget = Budget() if replay else budget_of(config, book)
        watch = Watch(book, budget, 1.0 if replay else config.max_failure_share)
        yield Run(folder, book, budget, Models(book, budget), watch, replay)
    finally:
        book.close()


def budget_of(config: RunConfig, journal: Journal) -> Budget:
    """Return this process's share of a run's budget, less what earlier starts of it have spent.

    Raises:
        ConfigurationError: for a limit that lets nothing happen.
    """
    models = {role: getattr(config, role) for role in ROLES if isinstance(getattr(config, role, None), Model)}
    prices = {role: price for role, model in models.items() if (price := model.price.price()) is not None}
    rank, processes = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

    def share(limit: int | None) -> int | None:
        return None if limit is None else limit // processes + (rank < limit % processes)

    limits = config.budget
    cost = None if limits.max_cost is None else limits.max_cost / processes
    budget = Budget(share(limits.max_calls), share(limits.max_tokens), cost, prices)
    budget.restore(journal)
    return budget
