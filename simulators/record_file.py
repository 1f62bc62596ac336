"""Append-only JSON-lines files that survive a kill, a full disk and a second writer.

The journal and the tree file are both one of these. The first line says what the file is and in which version. A record is one
line, written with one system call and flushed to the operating system before `append` returns, so a killed process loses at
most the line it was writing; that torn line is cut off when the file is opened again.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simulators.errors import ConfigurationError, StorageError

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class RecordFile:
    """One append-only file of JSON records with a versioned header.

    Raises:
        ConfigurationError: the file is something else, of a newer version, damaged in the middle, or open for writing in
            another process.
        StorageError: the disk refused a write; the file ends with its last whole record.
    """

    def __init__(self, path: Path, kind: str, version: int, *, writable: bool = True) -> None:
        self.path = path
        self._kind = kind
        self._version = version
        self._writable = writable
        if not writable and not path.is_file():
            raise ConfigurationError(f"{kind} file {path} does not exist; name a run that has one")
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND if writable else os.O_RDONLY
        try:
            if writable:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, flags, 0o644)
        except OSError as error:
            raise StorageError(f"cannot open {path}: {error.strerror}; check the folder and its permissions") from None
        try:
            if writable:
                self._lock()
            self._end = self._check_and_repair()
        except BaseException:
            os.close(self._fd)
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"{self.path} is in use by another run; wait for it to end or choose another output folder"
            ) from None

    def _check_and_repair(self) -> int:
        """Check or write the header, cut off a torn last line, and return the file's length in bytes.

        A file that is not one of these is left as it is.
        """
        header = {"format": f"collab-{self._kind}", "version": self._version}
        size = os.fstat(self._fd).st_size
        end = _end_of_last_line(self._fd, size)
        if end == 0:
            if not self._writable:
                raise ConfigurationError(f"{self.path} is empty; it holds no {self._kind}")
            if not _line(header).startswith(os.pread(self._fd, 4096, 0)):  # neither empty nor a torn header
                raise ConfigurationError(f"{self.path} is not a {self._kind} file of this project")
            os.ftruncate(self._fd, 0)
            self._end = 0
            self._write(header)
            return self._end
        found = self._parse(os.pread(self._fd, 4096, 0).split(b"\n", 1)[0], line_number=1)
        if (
            not isinstance(found, dict)
            or found.get("format") != header["format"]
            or not isinstance(version := found.get("version"), int)
        ):
            raise ConfigurationError(f"{self.path} is not a {self._kind} file of this project")
        if version > self._version:
            raise ConfigurationError(
                f"{self.path} has version {version}, newer than the {self._version} this code reads; upgrade collab"
            )
        if end < size and self._writable:
            os.ftruncate(self._fd, end)
        return end

    def _parse(self, line: bytes, line_number: int) -> Any:
        try:
            return json.loads(line)
        except ValueError:
            raise ConfigurationError(
                f"{self.path}, line {line_number}: not valid JSON; the file was changed by something else, restore or delete it"
            ) from None

    def append(self, record: Any) -> tuple[int, int]:
        """Write one record; return where it stands (offset, length in bytes, without the newline)."""
        return self._write(record)

    def _write(self, record: Any) -> tuple[int, int]:
        data = _line(record)
        offset = self._end
        try:
            written = os.write(self._fd, data)
            while written < len(data):  # a disk that fills up takes a part first and refuses the rest
                written += os.write(self._fd, data[written:])
        except OSError as error:
            os.ftruncate(self._fd, offset)
            reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
            raise StorageError(
                f"cannot write to {self.path}: {reason}; everything before is kept, mend it and start the same command again"
            ) from None
        self._end = offset + len(data)
        return offset, len(data) - 1

    def read_at(self, offset: int, length: int) -> Any:
        """Return the record that stands at an offset that `append` or `records` gave."""
        return json.loads(os.pread(self._fd, length, offset))

    def records(self) -> Iterator[tuple[int, int, Any]]:
        """Yield (offset, length, record) for every record, without the header, in the order written."""
        with self.path.open("rb") as stream:
            offset = 0
            for line_number, line in enumerate(stream, start=1):
                if not line.endswith(b"\n"):
                    return  # torn, or being written right now
                if line_number > 1:
                    yield offset, len(line) - 1, self._parse(line, line_number=line_number)
                offset += len(line)

    def close(self) -> None:
        """Close the file and give up the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _line(record: Any) -> bytes:
    return _ENCODER.encode(record).encode("utf-8", "surrogatepass") + b"\n"


def _end_of_last_line(fd: int, size: int) -> int:
    """Return the offset right after the file's last newline, reading backwards."""
    block = 1 << 16
    end = size
    while end > 0:
        start = max(0, end - block)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
