"""What a replay compares: what is recorded, and what the journal of its run gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from collab.tasks.task import Task
from simulators.conversation import ConversationTree
from simulators.errors import ConfigurationError
from simulators.tree_file import read_trees

Replayed = tuple[str, Any, Any]
"""A name, what is recorded under it, and what came of it again, as plain data to compare."""


def compared(recorded: ConversationTree, again: ConversationTree) -> Replayed:
    """Return two trees of one task as they are compared: without wall-clock figures."""
    return recorded.task_id, recorded.fingerprint(), again.fingerprint()


def task_of(recorded: ConversationTree, tasks: Mapping[str, Task], folder: Path) -> Task:
    """Return the task that a recorded tree is about.

    Raises:
        ConfigurationError: the file of tasks does not hold it any more.
    """
    if recorded.task_id not in tasks:
        raise ConfigurationError(f"{folder} is about task {recorded.task_id}, which its task file does not hold any more")
    return tasks[recorded.task_id]


def recorded_trees(folder: Path) -> Iterator[ConversationTree]:
    """Yield the trees of finished tasks, then those of tasks that a failure spoilt."""
    for name in ("trees.jsonl", "stopped.jsonl"):
        if (folder / name).is_file():
            yield from read_trees(folder / name)
