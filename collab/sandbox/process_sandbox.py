"""Runs programs in processes of this machine, inside whatever `Isolation` says, and never trusts what is inside.

The road of one run: a bare Python starts inside the isolation and gets everything over its standard input (our own sources,
then the request), so nothing of it is written to this machine's disk. It confines itself, says "ready" where the program cannot
(the status pipe is closed before the program starts), and becomes the program. From then on this side only watches.

No "ready" means that the sandbox failed (`SandboxError`), whatever the reason; after it, how the run ends is the program's doing.
"""

from __future__ import annotations

import asyncio
import marshal
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collab.sandbox.protocol import Limits, Program, SandboxError, SandboxResult
from collab.sandbox.seccomp import filter_program
from collab.sandbox.watch import Watch, Watched, kill_group

MARSHAL_VERSION = 2
"""Read by every Python 3; marshal is used because it starts several times faster than JSON, and goes only inwards."""

_HERE = Path(__file__).parent
_BOOT = "import sys; stream = sys.stdin.buffer\nexec(compile(stream.read(int(stream.readline())), 'inside', 'exec'))\n"


@dataclass(frozen=True, slots=True)
class Isolation:
    """How to get inside.

    `command(limits)` is what comes before the interpreter's own command. `sources` names the files of this package that run
    inside, in order; `entry` is the statement that starts them. `bounds_processes` says that the program's processes are
    numbered and all buried with it; where they are not, a program may start none. `scratch` is the scratch folder inside;
    None stands for a temporary folder of this machine (which needs Landlock around it). `remote` says that only the standard
    streams reach inside, and that the command keeps this process's environment to itself.
    """

    name: str
    summary: str
    command: Callable[[Limits], Sequence[str]]
    interpreter: str
    sources: tuple[str, ...] = ("confine.py",)
    entry: str = "confine(read_request())"
    bounds_processes: bool = True
    drops_user: bool = False
    scratch: str | None = "/scratch"
    readable: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    with_packages: bool = False
    remote: bool = False


class ProcessSandbox:
    """A `Sandbox` of processes on this machine; at most `concurrency` programs at a time (default: the usable cores)."""

    def __init__(self, isolation: Isolation, concurrency: int | None = None) -> None:
        self.isolation = isolation
        self.concurrency = concurrency or len(os.sched_getaffinity(0))
        self._threads: ThreadPoolExecutor | None = None
        self._threads_of = 0
        sources = [(_HERE / name).read_text(encoding="utf-8") for name in isolation.sources]
        self._sources = "\n".join([*sources, isolation.entry, ""]).encode()
        self._base_filter, self._strict_filter = filter_program().hex(), filter_program(strict=True).hex()

    @property
    def name(self) -> str:
        return self.isolation.name

    async def run(self, program: Program, limits: Limits) -> SandboxResult:
        """Run a program; the waiting is done by a thread of this sandbox's own.

        Raises:
            SandboxError: the isolation could not be set up.
        """
        stop = threading.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor(), self.run_blocking, program, limits, stop)
        except asyncio.CancelledError:
            stop.set()  # nobody waits for it any more: end it now, not at its limit
            raise

    def _executor(self) -> ThreadPoolExecutor:
        """Return the threads of this process; a forked child starts its own."""
        if self._threads is None or self._threads_of != os.getpid():
            self._threads = ThreadPoolExecutor(self.concurrency, thread_name_prefix="sandbox")
            self._threads_of = os.getpid()
        return self._threads

    def run_blocking(self, program: Program, limits: Limits, stop: threading.Event | None = None) -> SandboxResult:
        """Run a program in the calling thread, which must live at least as long (the kernel's death signal is tied to it).

        Raises:
            SandboxError: the isolation could not be set up, or `stop` was set.
        """
        stop = stop or threading.Event()
        if self.isolation.scratch is not None:
            return self._run(program, limits, stop, self.isolation.scratch, None)
        scratch = tempfile.mkdtemp(prefix="collab-sandbox-")
        try:
            return self._run(program, limits, stop, scratch, Path(scratch))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _run(
        self, program: Program, limits: Limits, stop: threading.Event, scratch: str, host_scratch: Path | None
    ) -> SandboxResult:
        status_read, status_write = os.pipe()
        remote = self.isolation.remote
        mark = f"ready {secrets.token_hex(16)}\n"
        try:
            process = subprocess.Popen(
                [*self.isolation.command(limits), *self._interpreter()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=None if remote else self._environment(program, scratch),
                cwd="/",
                pass_fds=() if remote else (status_write,),
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            os.close(status_read)
            raise SandboxError(f"sandbox {self.name}: cannot start {error.filename}: {error.strerror}") from None
        finally:
            os.close(status_write)
        settings = self._settings(program, limits, scratch) | {"status_fd": 2 if remote else status_write, "ready_mark": mark}
        watched = Watched(
            process=process,
            request=self._request(program, settings),
            ready_mark=mark.encode(),
            status_fd=None if remote else status_read,
            host_scratch=host_scratch,
            sandbox=self.name,
        )
        try:
            return Watch(watched, limits, stop).result()
        finally:
            kill_group(process)
            os.close(status_read)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def _interpreter(self) -> list[str]:
        flags = ["-I", "-B"] if self.isolation.with_packages else ["-I", "-S", "-B"]
        return [self.isolation.interpreter, *flags, "-c", _BOOT]

    def _environment(self, program: Program, scratch: str) -> dict[str, str]:
        """Nothing of this process's environment goes inside: no keys, no paths, no names."""
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": scratch,
            "TMPDIR": scratch,
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if program.starts_processes and not self.isolation.bounds_processes:
            environment["STRICT_FILTER"] = self._strict_filter
        return environment

    def _settings(self, program: Program, limits: Limits, scratch: str) -> dict[str, Any]:
        isolation = self.isolation
        strict = not isolation.bounds_processes and not program.starts_processes
        return {
            "scratch": scratch,
            "parent_pid": os.getpid(),
            "drop_to_uid": 0x40000000 + secrets.randbelow(1 << 29) if isolation.drops_user else 0,
            "readable": list(isolation.readable),
            "links": [list(link) for link in isolation.links],
            "cpu_s": limits.cpu_s,
            "wall_s": limits.wall_s,
            "memory_mb": limits.memory_mb,
            "file_mb": limits.file_mb,
            "scratch_mb": limits.scratch_mb,
            "processes": limits.processes if isolation.bounds_processes and not isolation.remote else 0,
            "filter": self._strict_filter if strict else self._base_filter,
        }

    def _request(self, program: Program, settings: dict[str, Any]) -> bytes:
        request = {
            "settings": settings,
            "files": dict(program.files),
            "entry": program.entry,
            "arguments": list(program.arguments),
            "stdin": program.stdin,
        }
        return b"%d\n" % len(self._sources) + self._sources + marshal.dumps(request, MARSHAL_VERSION)

    def close(self) -> None:
        """End the threads once their programs are done."""
        if self._threads is not None and self._threads_of == os.getpid():
            self._threads.shutdown()


def this_interpreter() -> str:
    """Return the real path of the interpreter this process runs on, outside any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))
