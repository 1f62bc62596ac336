"""The file that holds a run's conversation trees: one line a task, appended when the task is finished."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simulators.conversation import ConversationTree
from simulators.errors import ConfigurationError
from simulators.record_file import RecordFile

VERSION = 1


class TreeFile:
    """Append-only storage of conversation trees, keyed by task id; a task is stored once."""

    def __init__(self, path: Path, *, writable: bool = True) -> None:
        self._file = RecordFile(path, "trees", VERSION, writable=writable)
        self._where = {record["task_id"]: (offset, length) for offset, length, record in self._file.records()}

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def task_ids(self) -> list[str]:
        """The tasks that are stored, in the order they were finished."""
        return list(self._where)

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._where

    def __len__(self) -> int:
        return len(self._where)

    def append(self, tree: ConversationTree) -> None:
        """Store a finished tree.

        Raises:
            ValueError: when the task is stored already.
            StorageError: when the disk refuses.
        """
        if tree.task_id in self._where:
            raise ValueError(f"{self.path} already holds the tree of task {tree.task_id}")
        self._where[tree.task_id] = self._file.append(tree.to_record())

    def read(self, task_id: str) -> ConversationTree:
        """Return one task's tree.

        Raises:
            KeyError: when the task is not stored.
        """
        return ConversationTree.from_record(self._file.read_at(*self._where[task_id]))

    def __iter__(self) -> Iterator[ConversationTree]:
        """Yield every tree, in the order they were finished."""
        for task_id in self._where:
            yield self.read(task_id)

    def close(self) -> None:
        """Close the file and give up the lock."""
        self._file.close()

    def __enter__(self) -> TreeFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_trees(path: Path) -> Iterator[ConversationTree]:
    """Yield the trees of a file, or of a run's folder that has a `trees.jsonl`, without locking it.

    Raises:
        ConfigurationError: when there is no such file, or it is not a tree file.
    """
    if path.is_dir():
        path = path / "trees.jsonl"
    file = RecordFile(path, "trees", VERSION, writable=False)
    try:
        for _, _, record in file.records():
            try:
                yield ConversationTree.from_record(record)
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigurationError(f"{path}: a record is not a conversation tree ({error})") from None
    finally:
        file.close()
