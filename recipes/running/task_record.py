"""What tasks a run has been about, so that another task under an old id is noticed.

Tasks without ids of their own are named by their place in the file. A file that is changed between two starts would give such a
name to another task, and what is stored about the old one would be taken for it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from collab.tasks.task import Task
from simulators.errors import ConfigurationError
from simulators.whole_file import write_whole

FILE = "tasks.json"


def refuse_changed(folder: Path, tasks: Sequence[Task], environment: str = "") -> None:
    """Note the tasks of a run (of one of its environments) in its folder, after a look at those of earlier starts.

    Raises:
        ConfigurationError, StorageError: as `refuse_changed_digests` does.
    """
    refuse_changed_digests(folder, {f"{environment}/{task.id}" if environment else task.id: task.digest for task in tasks})


def refuse_changed_digests(folder: Path, now: dict[str, str]) -> None:
    """Note what a run is about, by name and digest, in its folder, after a look at what earlier starts were about.

    Raises:
        ConfigurationError: a task has changed.
        StorageError: the disk refuses.
    """
    path = folder / FILE
    known: dict[str, str] = json.loads(path.read_text()) if path.is_file() else {}
    for name, digest in now.items():
        if known.get(name, digest) != digest:
            raise ConfigurationError(
                f"{folder} holds results about another task called {name}: the file of tasks has changed since; choose another "
                "output_dir, or restore the file"
            )
    if known | now != known:
        write_whole(path, f"{json.dumps(known | now, indent=1)}\n".encode())
