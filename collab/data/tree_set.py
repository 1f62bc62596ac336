"""The trees of a build, of one process or of several: each task once, in the order of the task ids, read one at a time.

The order makes a dataset depend on its tasks alone, not on who finished first or on how the tasks were dealt out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from simulators.conversation import ConversationTree
from simulators.tree_file import TreeFile


class TreeSet:
    """Trees in several files, of the tasks in `only` (None: of all).

    A task that is in more than one file is taken from the first; `repeated` counts those.
    """

    def __init__(self, files: Sequence[TreeFile], only: Collection[str] | None = None) -> None:
        self._file_of: dict[str, TreeFile] = {}
        self.repeated = 0
        for file in files:
            for task_id in file.task_ids:
                if only is not None and task_id not in only:
                    continue
                self.repeated += task_id in self._file_of
                self._file_of.setdefault(task_id, file)
        self.task_ids = sorted(self._file_of)

    def read(self, task_id: str) -> ConversationTree:
        """Return the tree of a task."""
        return self._file_of[task_id].read(task_id)

    def __len__(self) -> int:
        return len(self.task_ids)

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._file_of

    def __iter__(self) -> Iterator[ConversationTree]:
        for task_id in self.task_ids:
            yield self.read(task_id)
