"""Tasks of published test sets: refused for training, and announced where datasets are built from them."""

from __future__ import annotations

from collections.abc import Sequence

from collab.tasks.task import Task
from recipes.configuration.schema import Play
from recipes.running import assembly
from simulators.errors import ConfigurationError


def refuse(tasks: Sequence[Task], config: Play) -> None:
    """Refuse to train on tasks that models are measured on.

    Raises:
        ConfigurationError: naming the first of them.
    """
    where_from = assembly.domain(config.environment).held_out
    for task in tasks:
        if (where := where_from(task)) is not None:
            raise ConfigurationError(
                f"task {task.id} ({task.goal[:60]!r}) of {config.tasks} belongs to {where}; train on other tasks, for instance "
                "the train split"
            )


def announce(tasks: Sequence[Task], config: Play) -> None:
    """Print how many tasks of a build belong to a published test set: its files will be refused for training."""
    where_from = assembly.domain(config.environment).held_out
    found = [where for task in tasks if (where := where_from(task)) is not None]
    if found:
        print(f"{len(found)} of {len(tasks)} tasks belong to {found[0]}: `collab train` will refuse what is built from them")
