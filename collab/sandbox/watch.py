"""Watches one sandboxed process from outside: feeds it, times it, weighs it, and buries what is left of it."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from collab.sandbox.protocol import Ended, Limits, SandboxError, SandboxResult

SETUP_DEADLINE_S = 30.0
WATCH_INTERVAL_S = 0.05
GRACE_S = 0.5
"""Seconds that a program's pipes may stay open after it ended, held by something it left behind."""
BURIAL_S = 5.0
"""Seconds that killed processes may take to close their pipes."""


@dataclass(frozen=True, slots=True)
class Watched:
    """One run: the process, the request to feed it, the mark that says the program starts now, and where the mark comes from.

    `status_fd` is the reading end of the status pipe; None where the mark comes over standard error (containers).
    `host_scratch` is the scratch folder where it is one of this machine's.
    """

    process: subprocess.Popen[bytes]
    request: bytes
    ready_mark: bytes
    status_fd: int | None
    host_scratch: Path | None
    sandbox: str


class Watch:
    """See the module. One object per run, used by one thread."""

    def __init__(self, watched: Watched, limits: Limits, stop: threading.Event) -> None:
        process = watched.process
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        self._watched, self._process, self._limits, self._stop = watched, process, limits, stop
        self._request = memoryview(watched.request)
        self._started = time.monotonic()
        self._ready_at: float | None = None
        self._said = {"status": bytearray(), "stdout": bytearray(), "stderr": bytearray()}
        self._selector = selectors.DefaultSelector()
        self._pidfd = os.pidfd_open(process.pid)
        self._selector.register(self._pidfd, selectors.EVENT_READ, "exit")
        readers = {"stdout": process.stdout.fileno(), "stderr": process.stderr.fileno()}
        if watched.status_fd is not None:
            readers["status"] = watched.status_fd
        for label, descriptor in readers.items():
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ, label)
        os.set_blocking(process.stdin.fileno(), False)
        self._selector.register(process.stdin.fileno(), selectors.EVENT_WRITE, "stdin")

    def result(self) -> SandboxResult:
        """Watch until the end, bury what is left, and sum up.

        Raises:
            SandboxError: the program was never reached, or `stop` was set.
        """
        ended: Ended | None = None
        next_look = self._started + WATCH_INTERVAL_S
        left_behind: float | None = None
        try:
            while ended is None and self._open("stdout", "stderr", "exit"):
                self._pump(WATCH_INTERVAL_S)
                now = time.monotonic()
                ended = self._over_time(now)
                if ended is None and now >= next_look:
                    ended = self._over_size()
                    next_look = time.monotonic() + WATCH_INTERVAL_S
                if not self._open("exit"):  # what still holds its pipes now was left behind
                    left_behind = left_behind or now
                    if now - left_behind > GRACE_S:
                        break
            kill_group(self._process)
            self._drain()
            self._check_ready()
        finally:
            self._selector.close()
            os.close(self._pidfd)
        return self._summary(ended)

    def _open(self, *labels: str) -> bool:
        return any(key.data in labels for key in self._selector.get_map().values())

    def _pump(self, wait_s: float) -> None:
        for key, _ in self._selector.select(wait_s):
            if key.data == "stdin":
                self._feed(key.fd)
            elif key.data == "exit":
                self._selector.unregister(key.fd)
            else:
                self._take(key.fd, key.data)

    def _feed(self, descriptor: int) -> None:
        try:
            self._request = self._request[os.write(descriptor, self._request[: 1 << 16]) :]
        except BrokenPipeError:
            self._request = self._request[:0]
        if not self._request:
            self._selector.unregister(descriptor)
            assert self._process.stdin is not None
            self._process.stdin.close()

    def _take(self, descriptor: int, label: str) -> None:
        data = os.read(descriptor, 1 << 16)
        if not data:
            self._selector.unregister(descriptor)
        said = self._said[label]
        said += data
        if self._ready_at is None and label == ("stderr" if self._watched.status_fd is None else "status"):
            mark = self._watched.ready_mark
            if (position := said.find(mark)) >= 0:
                self._ready_at = time.monotonic()
                del said[: position + len(mark)]

    def _over_time(self, now: float) -> Ended | None:
        if self._stop.is_set():
            raise SandboxError(f"sandbox {self._watched.sandbox}: the run was stopped")
        if self._ready_at is None:
            if now - self._started > SETUP_DEADLINE_S:
                raise SandboxError(f"sandbox {self._watched.sandbox}: it was not ready within {SETUP_DEADLINE_S:g} s")
        elif now - self._ready_at > self._limits.wall_s:
            return Ended.TIMEOUT
        return Ended.OUTPUT if self._too_long() else None

    def _too_long(self) -> bool:
        return max(len(self._said["stdout"]), len(self._said["stderr"])) > self._limits.output_bytes

    def _over_size(self) -> Ended | None:
        if self._ready_at is None:
            return None
        if resident_bytes(self._process.pid) > self._limits.memory_mb << 20:
            return Ended.MEMORY
        scratch = self._watched.host_scratch
        if scratch is not None and folder_bytes(scratch) > self._limits.scratch_mb << 20:
            return Ended.DISK
        return None

    def _drain(self) -> None:
        """Take what is still in the pipes of the dead processes; their end of file is the proof that all are gone."""
        ends = time.monotonic() + BURIAL_S
        while self._open("stdout", "stderr", "status") and time.monotonic() < ends:
            self._pump(WATCH_INTERVAL_S)
            for label in ("stdout", "stderr"):
                del self._said[label][self._limits.output_bytes + 1 :]

    def _check_ready(self) -> None:
        if self._ready_at is None:
            said = bytes(self._said["status"] or self._said["stderr"]).decode(errors="replace").strip()
            reason = said.splitlines()[-1].removeprefix("failed: ")[:300] if said else f"it ended with {self._process.returncode}"
            raise SandboxError(f"sandbox {self._watched.sandbox} could not be set up: {reason}")

    def _summary(self, ended: Ended | None) -> SandboxResult:
        code = self._process.returncode
        if ended is None and self._too_long():
            ended = Ended.OUTPUT
        exited = ended is None and 0 <= code < 128  # the isolations report death by signal n as 128 + n
        return SandboxResult(
            ended=ended or (Ended.EXITED if exited else Ended.KILLED),
            exit_code=code if exited else None,
            stdout=self._text("stdout"),
            stderr=self._text("stderr"),
            wall_s=time.monotonic() - (self._ready_at or self._started),
        )

    def _text(self, label: str) -> str:
        return bytes(self._said[label][: self._limits.output_bytes]).decode("utf-8", "replace")


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its group; the first process inside dies with it, and the kernel buries the rest."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process and all its descendants, 0 for what has gone in the meantime (Linux)."""
    total = 0
    pending = [pid]
    while pending:
        one = pending.pop()
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            for children in Path(f"/proc/{one}/task").glob("*/children"):
                pending += map(int, children.read_text().split())
    return total


def folder_bytes(folder: Path) -> int:
    """Return the disk space that the files below a folder take."""
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(directory) / name).lstat().st_blocks * 512
    return total
