"""Worker processes that can be killed: where verifiers meet text that a model wrote.

A verifier may hang or eat all memory on the wrong answer (`9^{9^{9^9}}` for one), and Python cannot stop a thread. So such
functions run in a few persistent processes, each call with a deadline of its own. A worker that misses it is killed and
replaced; the caller gets a `WorkerFailure`, never a hang and never a made-up score.

Workers start at the first call, import one small module (no torch), take and give JSON only (a worker that was taken over by
its input can hand back nothing but data), and die with their parent. One thread waits for each worker, so the event loop never
does, and a pool serves any number of event loops, one after another or at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from simulators.errors import CollabError

START_DEADLINE_S = 60.0
"""Seconds for starting a worker and importing a function: a loaded machine is slow, and nobody's answer is to blame."""

MAX_REPLY_BYTES = 64 << 20

_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
"""What a worker sees of this process's environment: API keys stay here."""

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from collab.rewards.worker_process import serve; serve(int(sys.argv[2]), int(sys.argv[3]))"
)


class WorkerFailure(CollabError):
    """A worker gave no result: it raised, died, or could not be started."""


class WorkerTimeout(WorkerFailure):
    """A worker missed its deadline and was killed."""


class WorkerUnavailable(WorkerFailure):
    """No worker could be started at all."""


@dataclass(frozen=True, slots=True)
class _Call:
    function: str
    argument: Any
    deadline_s: float
    future: Future[Any] = field(default_factory=Future)


class WorkerPool:
    """A set of worker processes. `workers` defaults to the number of usable cores (8 at most).

    `memory_mb` bounds each worker's address space; 0 leaves it unbounded.
    """

    def __init__(self, workers: int | None = None, memory_mb: int = 2048) -> None:
        self.workers = workers or max(1, min(8, _usable_cores()))
        self._memory_mb = memory_mb
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    async def call(self, function: str, argument: Any, deadline_s: float) -> Any:
        """Return `function(argument)` from a worker; `function` is "module:name", argument and result are JSON data.

        The deadline (seconds) runs from when a worker takes the call, so a queue of other calls does not count against it.

        Raises:
            WorkerTimeout: the deadline passed; the worker was killed.
            WorkerUnavailable: no worker could be started, or `function` cannot be imported.
            WorkerFailure: the function raised, or the worker died.
        """
        call = _Call(function, argument, deadline_s)
        self._ensure_started()
        self._calls.put(call)
        return await asyncio.wrap_future(call.future)

    def _ensure_started(self) -> None:
        """Start one more thread (and so one more worker) until all are there; a forked child starts afresh."""
        with self._lock:
            if self._pid != os.getpid():
                self._reset()
            if len(self._threads) < self.workers:
                thread = threading.Thread(
                    target=_run_worker, args=(self._calls, self._memory_mb), name="worker-pool", daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def close(self) -> None:
        """End all workers once their current calls are done; a later call starts new ones."""
        with self._lock:
            threads = self._threads if self._pid == os.getpid() else []
            for _ in threads:
                self._calls.put(None)
            for thread in threads:
                thread.join()
            self._reset()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@functools.cache
def shared_worker_pool() -> WorkerPool:
    """Return the pool that every verifier of this process shares."""
    return WorkerPool()


def _run_worker(calls: queue.SimpleQueue[_Call | None], memory_mb: int) -> None:
    """Serve calls with one worker at a time. The thread that starts a worker must outlive it: the kernel's death signal is
    tied to the thread, not to the process."""
    worker: _Worker | None = None
    while (call := calls.get()) is not None:
        if not call.future.set_running_or_notify_cancel():
            continue
        try:
            if worker is None or not worker.alive:
                worker = _Worker(memory_mb)
            worker.load(call.function)
            call.future.set_result(worker.call(call))
        except WorkerFailure as error:
            call.future.set_exception(error)
        except Exception as error:
            if worker is not None:
                worker.kill()
            call.future.set_exception(WorkerFailure(f"the worker for {call.function} failed: {error!r}"))
    if worker is not None:
        worker.kill()


class _Worker:
    """One worker process and the pipes to it."""

    def __init__(self, memory_mb: int) -> None:
        command = [sys.executable, "-c", _BOOT, json.dumps(sys.path), str(memory_mb), str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for the run, which then ends its workers itself
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | {"OMP_NUM_THREADS": "1"},
            )
        except OSError as error:
            raise WorkerUnavailable(f"cannot start a worker process: {error}") from None
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)
        self._loaded: set[str] = set()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def load(self, function: str) -> None:
        if function in self._loaded:
            return
        try:
            reply = self._exchange({"load": function}, START_DEADLINE_S)
        except WorkerFailure as error:
            raise WorkerUnavailable(f"a worker could not be started: {error}") from None
        if "error" in reply:
            raise WorkerUnavailable(f"a worker cannot import {function}: {reply['error']}")
        self._loaded.add(function)

    def call(self, call: _Call) -> Any:
        request = {"function": call.function, "argument": call.argument, "deadline_s": call.deadline_s}
        reply = self._exchange(request, call.deadline_s)
        if "error" in reply:
            raise WorkerFailure(f"{call.function} raised {reply['error']}")
        return reply["result"]

    def _exchange(self, request: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        name = request.get("load") or request["function"]
        ends = time.monotonic() + deadline_s
        try:
            self._write(json.dumps(request).encode() + b"\n", ends)
            reply = json.loads(self._read_line(ends))
        except TimeoutError:
            self.kill()
            raise WorkerTimeout(f"{name} gave no result within {deadline_s:g} s and was killed") from None
        except (EOFError, BrokenPipeError, ValueError):
            self.kill()
            raise WorkerFailure(f"the worker for {name} died before it gave a result") from None
        assert isinstance(reply, dict)
        return reply

    def _write(self, data: bytes, ends: float) -> None:
        while data:
            _wait_for(self._to, select.POLLOUT, ends)
            data = data[os.write(self._to, data) :]

    def _read_line(self, ends: float) -> bytes:
        parts: list[bytes] = []
        size = 0
        while not parts or not parts[-1].endswith(b"\n"):
            _wait_for(self._from, select.POLLIN, ends)
            part = os.read(self._from, 1 << 16)
            size += len(part)
            if not part or size > MAX_REPLY_BYTES:
                raise EOFError
            parts.append(part)
        return b"".join(parts)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def _wait_for(descriptor: int, event: int, ends: float) -> None:
    """Wait until a pipe is ready (or broken); `poll`, as `select` fails in a process with many open files."""
    poller = select.poll()
    poller.register(descriptor, event)
    if not poller.poll(max(0.0, ends - time.monotonic()) * 1000):
        raise TimeoutError


def _usable_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1
