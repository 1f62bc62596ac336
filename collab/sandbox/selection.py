"""Which sandbox to use: the strongest one that passes a test of its own on this machine, or the one that was asked for.

An isolation is never taken on faith. Before its first program it runs a probe that tries what no program may do; one that
cannot be set up, or lets the probe through, is not used. With none left, code is not run at all.
"""

from __future__ import annotations

import functools
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collab.sandbox import isolations
from collab.sandbox.process_sandbox import Isolation, ProcessSandbox
from collab.sandbox.protocol import Limits, Program, Sandbox, SandboxError
from simulators.errors import ConfigurationError
from simulators.object_reference import load_object, refuse_foreign

PREFERENCE: tuple[str, ...] = ("bubblewrap", "namespaces", "landlock")

_one_at_a_time = threading.Lock()

_ISOLATIONS: dict[str, Callable[..., Isolation]] = {
    "bubblewrap": isolations.bubblewrap,
    "namespaces": isolations.namespaces,
    "landlock": isolations.landlock,
}

ADVICE = (
    "install bubblewrap (`apt-get install bubblewrap`, `dnf install bubblewrap`), or allow unprivileged user namespaces "
    "(`sysctl -w user.max_user_namespaces=15000`; in Docker, a seccomp profile that lets `unshare` pass), or use Linux 5.13 or "
    "later with Landlock, or configure a container command or a remote sandbox"
)

_PROBE = """
import os, resource, socket, sys
outside, processes = sys.argv[1:]
try:
    open(outside).close()
    print("a file outside the scratch folder could be read")
except OSError:
    pass
try:
    open(outside, "w").close()
    print("a file outside the scratch folder could be written")
except OSError:
    pass
try:
    socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    print("a network socket could be opened")
except OSError:
    pass
if processes == "bounded":
    if os.getuid() == 0 or resource.getrlimit(resource.RLIMIT_NPROC)[0] < 1:
        print("the number of processes is not bounded")
    elif os.fork() == 0:
        os._exit(0)
    else:
        os.wait()
if processes == "none":
    try:
        if os.fork() == 0:
            os._exit(0)
        print("a process could be started")
    except OSError:
        pass
open("scratch", "w").write("x")
print("done")
"""


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether an isolation works here; `detail` says what it does, or why it cannot be used."""

    name: str
    available: bool
    detail: str


def availability(name: str) -> Availability:
    """Test one of the built-in isolations on this machine."""
    return _tested(name, None)[1]


def probe(sandbox: ProcessSandbox) -> str | None:
    """Try what no program may do; return the reason why this sandbox cannot be trusted, None where there is none."""
    with tempfile.TemporaryDirectory(prefix="collab-probe-") as folder:
        outside = Path(folder) / "outside"
        outside.write_text("not yours", encoding="utf-8")
        Path(folder).chmod(0o755)
        processes = "theirs" if sandbox.isolation.remote else "bounded" if sandbox.isolation.bounds_processes else "none"
        program = Program({"main.py": _PROBE}, arguments=(str(outside), processes))
        try:
            result = sandbox.run_blocking(program, Limits(wall_s=20))
        except SandboxError as error:
            return str(error)
        if outside.read_text(encoding="utf-8") != "not yours":
            return "a file outside the scratch folder was changed"
    lines = result.stdout.split("\n")
    if result.ok and lines[0] == "done":
        return None
    complaints = [line for line in lines if line and line != "done"]
    return complaints[0] if complaints else f"its probe ended as {result.ended.value}: {result.stderr.strip()[-200:]}"


def _tested(name: str, interpreter: str | None) -> tuple[ProcessSandbox | None, Availability]:
    """Return an isolation's sandbox, None where it cannot be used, and the result of its test, which is run once."""
    with _one_at_a_time:
        return _test(name, interpreter)


@functools.cache
def _test(name: str, interpreter: str | None) -> tuple[ProcessSandbox | None, Availability]:
    if sys.platform != "linux":
        return None, Availability(name, False, "needs Linux")
    if name == "bubblewrap" and shutil.which("bwrap") is None:
        return None, Availability(name, False, "bwrap is not installed")
    try:
        sandbox = ProcessSandbox(_ISOLATIONS[name](interpreter))
    except NotImplementedError as error:
        return None, Availability(name, False, str(error))
    if (reason := probe(sandbox)) is not None:
        sandbox.close()
        return None, Availability(name, False, reason)
    return sandbox, Availability(name, True, sandbox.isolation.summary)


def load_sandbox(which: str | Mapping[str, Any] = "auto", interpreter: str | None = None) -> Sandbox:
    """Return a tested sandbox, shared within this process.

    `which` is "auto", the name of a built-in isolation, `{"container": [command, ...],
    "interpreter": "python3"}`, or "module:function" for a sandbox of
    your own (the function takes nothing and returns a `Sandbox`). `interpreter` is the Python that programs run on; one with
    packages (a virtual environment's) makes those packages importable for them. The default is this one, without packages.

    Raises:
        ConfigurationError: nothing usable on this machine, or an unknown name; says what was tried and how to get one.
    """
    if interpreter is not None:
        refuse_foreign("sandbox interpreter", interpreter)
    if isinstance(which, Mapping):
        refuse_foreign("sandbox", dict(which))
        return _container(which)
    if ":" in which:
        return _of_your_own(which)
    if which not in ("auto", *PREFERENCE):
        raise ConfigurationError(
            f"unknown sandbox {which!r}; known are auto, {', '.join(PREFERENCE)}, container, or module:function"
        )
    reasons = []
    for name in PREFERENCE if which == "auto" else (which,):
        sandbox, report = _tested(name, interpreter)
        if sandbox is not None:
            return sandbox
        reasons.append(f"{name}: {report.detail}")
    raise ConfigurationError(f"code written by a model cannot be run safely here ({'; '.join(reasons)}); {ADVICE}")


def _container(which: Mapping[str, Any]) -> Sandbox:
    command, interpreter = which.get("container"), str(which.get("interpreter", "python3"))
    if (
        not set(which) <= {"container", "interpreter"}
        or not isinstance(command, Sequence)
        or isinstance(command, str)
        or not command
    ):
        raise ConfigurationError(
            f"sandbox: expected {{container: [command, argument, ...], interpreter: python3}}, got {dict(which)!r}"
        )
    with _one_at_a_time:
        return _test_container(tuple(map(str, command)), interpreter)


@functools.cache
def _test_container(command: tuple[str, ...], interpreter: str) -> ProcessSandbox:
    sandbox = ProcessSandbox(isolations.container(command, interpreter))
    if (reason := probe(sandbox)) is not None:
        raise ConfigurationError(f"sandbox: the container command `{command[0]}` cannot be used: {reason}")
    return sandbox


def _of_your_own(which: str) -> Sandbox:
    sandbox = load_object(which, "sandbox")()
    if not isinstance(sandbox, Sandbox):
        raise ConfigurationError(f"sandbox {which!r} is not a sandbox: it needs `name` and `run(program, limits)`")
    return sandbox
