"""What every sandbox answers to: run a Python program that a model wrote, and say how it ended.

The program is hostile until proven otherwise. A sandbox owes its caller four things: the program reaches nothing outside its
scratch folder (no files, no network, no other process), it cannot outlive the call, it cannot take more than its limits, and
what comes back is what it printed and how it ended, nothing else.

A place to plug in more: anything with this protocol (a remote runner, a micro-VM) can be given wherever a sandbox is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from simulators.errors import CollabError


class SandboxError(CollabError):
    """The sandbox itself failed (could not be set up, lost its process); says nothing about the program."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may take.

    `cpu_s` counts per process, `wall_s` for the whole run from the moment the program starts. `memory_mb` bounds the address
    space of each process and the resident memory of all together. `file_mb` bounds one file, `scratch_mb` the scratch folder,
    `output_bytes` each of stdout and stderr.
    """

    cpu_s: float = 10.0
    wall_s: float = 30.0
    memory_mb: int = 512
    processes: int = 32
    file_mb: int = 16
    scratch_mb: int = 64
    output_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        for name in ("cpu_s", "wall_s", "memory_mb", "processes", "file_mb", "scratch_mb", "output_bytes"):
            if getattr(self, name) <= 0:
                raise ValueError(f"sandbox: limit {name} is {getattr(self, name)}; it must be above 0")


@dataclass(frozen=True, slots=True)
class Program:
    """A Python program: text files for the scratch folder, the one to run, its arguments and standard input.

    `starts_processes` is for a trusted entry that starts the hostile code as a process of its own. Where the isolation cannot
    bound the number of processes, only such an entry may start any, and it owes the hostile process the stricter filter that
    it finds in the environment variable `STRICT_FILTER` (a seccomp program in hexadecimal).
    """

    files: Mapping[str, str]
    entry: str = "main.py"
    arguments: tuple[str, ...] = ()
    stdin: str = ""
    starts_processes: bool = False


class Ended(StrEnum):
    """How a program ended. All of these are the program's own doing."""

    EXITED = "exited"
    KILLED = "killed"
    """A signal ended it: its own, or the kernel's (CPU time used up, a crash)."""
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT = "output"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """How a run ended. `exit_code` is None unless the program exited by itself; texts are cut at the output limit."""

    ended: Ended
    exit_code: int | None
    stdout: str = field(repr=False)
    stderr: str = field(repr=False)
    wall_s: float = 0.0

    @property
    def ok(self) -> bool:
        return self.ended is Ended.EXITED and self.exit_code == 0


@runtime_checkable
class Sandbox(Protocol):
    """Runs programs, several at a time."""

    @property
    def name(self) -> str: ...

    async def run(self, program: Program, limits: Limits) -> SandboxResult:
        """Run a program to its end, or to a limit.

        Raises:
            SandboxError: the sandbox could not be set up for it.
        """
        ...
