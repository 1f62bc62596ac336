"""What the online recipes share: an environment to train in, its tasks, and settings as typed objects."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from collab.embedded_model import resolve_model
from recipes import assembly, held_out
from recipes.run_folder import RunFolder


def train(config: Any, method: Callable[..., Path]) -> Path:
    """Train with one of the online methods and return the adapter's folder.

    Every process of a distributed run has a journal of its own for the user's and the judge's calls.
    """
    folder = RunFolder(config)
    rank = os.environ.get("RANK", "0")
    tasks = assembly.tasks(config).tasks
    held_out.refuse(tasks, config)
    eval_tasks = assembly.tasks(config, split=config.eval_split, limit=config.eval_limit).tasks if config.eval_limit else []
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
                eval_tasks=eval_tasks,
                seed=config.seed,
            )
        finally:
            asyncio.run(models.aclose())
    if rank == "0":
        print(f"trained in {environment.name} on {len(tasks)} tasks -> {trained}")
    return trained
