"""The trees of one part of an evaluation: those of finished tasks, and those of tasks that a failure of the models spoilt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from collab.data.tree_set import TreeSet
from simulators.tree_file import TreeFile


@contextmanager
def part_trees(folder: Path) -> Iterator[TreeSet]:
    """Open both for reading; a task that was finished in the end is taken from there."""
    with ExitStack() as stack:
        files = [folder / name for name in ("trees.jsonl", "stopped.jsonl")]
        yield TreeSet([stack.enter_context(TreeFile(file, writable=False)) for file in files if file.is_file()])
