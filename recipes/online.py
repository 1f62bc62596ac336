"""What the online recipes share: an environment to train in, its tasks, and settings as typed objects."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from collab.embedded_model import resolve_model
from collab.tasks.task import Task
from recipes import assembly
from recipes.run_folder import RunFolder
from simulators.errors import ConfigurationError


def refuse_held_out(tasks: Sequence[Task], config: Any) -> None:
    """Refuse to train on tasks that models are measured on.

    Raises:
        ConfigurationError: naming the first of them.
    """
    held_out = assembly.domain(config).held_out
    for task in tasks:
        if (where := held_out(task)) is not None:
            raise ConfigurationError(
                f"task {task.id} ({task.goal[:60]!r}) of {config.tasks} belongs to {where}; train on other tasks, for instance "
                "the train split"
            )


def train(config: Any, method: Callable[..., Path]) -> Path:
    """Train with one of the online methods and return the adapter's folder.

    Every process of a distributed run has a journal of its own for the user's and the judge's calls.
    """
    folder = RunFolder(config)
    rank = os.environ.get("RANK", "0")
    tasks = assembly.tasks(config).tasks
    refuse_held_out(tasks, config)
    held_out = assembly.tasks(config, split=config.eval_split, limit=config.eval_limit).tasks if config.eval_limit else []
    with assembly.open_journal(folder.path / "journals" / f"rank{rank}") as journal:
        models = assembly.Models(journal)
        try:
            environment = assembly.environment(config, models, count_tokens=models.tokens_of(config.model))
            trained = method(
                environment,
                tasks,
                resolve_model(config.model),
                folder.path,
                settings=assembly.as_object(config.method),
                lora=assembly.as_object(config.lora),
                optimization=assembly.as_object(config.optimization),
                adapter=config.adapter,
                eval_tasks=held_out,
                seed=config.seed,
            )
        finally:
            asyncio.run(models.aclose())
    if rank == "0":
        print(f"trained in {environment.name} on {len(tasks)} tasks -> {trained}")
    return trained
