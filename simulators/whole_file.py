"""Small files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from simulators.errors import StorageError


def write_whole(path: Path, data: bytes) -> None:
    """Write a file in one step: a reader, or a full disk, never meets half of it.

    Raises:
        StorageError: when the disk refuses.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")  # ranks may write the same file at the same time
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # a file system that takes nothing does not take this either
            part.unlink(missing_ok=True)
        raise StorageError(f"cannot write {path}: {error.strerror or os.strerror(error.errno or 0)}") from None
