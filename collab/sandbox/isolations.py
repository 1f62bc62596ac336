"""The isolations this machine may offer, strongest first: bubblewrap, namespaces by hand, Landlock; and containers on request.

| isolation  | needs                               | files              | network    | processes                |
|------------|-------------------------------------|--------------------|------------|--------------------------|
| bubblewrap | `bwrap`; root or user namespaces    | a read-only root   | none       | numbered, die with it    |
| namespaces | root or user namespaces, Linux 5.12 | a read-only root   | none       | numbered, die with it    |
| landlock   | Landlock (Linux 5.13)               | what is listed     | no sockets | the program may add none |
| container  | a command that starts one           | the container's    | its own    | the container's          |

On top of each: resource limits, an empty environment, no capabilities, no new privileges, and a system-call filter.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from collab.sandbox.process_sandbox import Isolation, this_interpreter
from collab.sandbox.protocol import Limits

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store")


def bubblewrap(interpreter: str | None = None, readable: Sequence[str] = ()) -> Isolation:
    """bubblewrap around the program. As root the mounts are made by root, and the program then becomes nobody."""
    folders, links = _visible(interpreter, readable)
    as_root = os.geteuid() == 0
    executable = shutil.which("bwrap") or "bwrap"

    def command(limits: Limits) -> list[str]:
        words = [executable, "--die-with-parent", "--new-session", "--unshare-pid", "--unshare-net", "--unshare-ipc"]
        words += ["--unshare-uts", "--unshare-cgroup-try", "--hostname", "sandbox", "--cap-drop", "ALL"]
        words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"] if as_root else ["--unshare-user"]
        for parent in sorted({str(each) for folder in folders for each in Path(folder).parents[:-1]}):
            words += ["--perms", "0755", "--dir", parent]  # a bind alone would copy a private /root's mode
        for folder in folders:
            words += ["--ro-bind-try", folder, folder]
        for link, target in links:
            words += ["--symlink", target, link]
        words += ["--dev", "/dev", "--remount-ro", "/dev"]
        words += ["--perms", "1777", "--size", str(limits.scratch_mb << 20), "--tmpfs", "/scratch"]
        return [*words, "--remount-ro", "/", "--chdir", "/"]

    return Isolation(
        "bubblewrap",
        "bubblewrap: own mount, process and network namespaces, system-call filter",
        command,
        interpreter or this_interpreter(),
        drops_user=as_root,
        with_packages=interpreter is not None,
    )


def namespaces(interpreter: str | None = None, readable: Sequence[str] = ()) -> Isolation:
    """The kernel's namespaces, set up by ourselves."""
    folders, links = _visible(interpreter, readable)
    as_root = os.geteuid() == 0
    return Isolation(
        "namespaces",
        "kernel namespaces (mount, process, network) made without bubblewrap, system-call filter",
        lambda limits: [],
        interpreter or this_interpreter(),
        sources=("namespaces.py", "confine.py"),
        entry="request = read_request(); enter_namespaces(request['settings']); confine(request)",
        drops_user=as_root,
        readable=folders,
        links=links,
        with_packages=interpreter is not None,
    )


def landlock(interpreter: str | None = None, readable: Sequence[str] = ()) -> Isolation:
    """Landlock and a strict system-call filter: for machines (containers, mostly) that allow no namespaces."""
    folders, links = _visible(interpreter, readable)
    return Isolation(
        "landlock",
        "Landlock file rules and a strict system-call filter (no sockets, no new processes)",
        lambda limits: [],
        interpreter or this_interpreter(),
        sources=("landlock.py", "confine.py"),
        entry="confine(read_request(), restrict_files)",
        bounds_processes=False,
        scratch=None,
        readable=(*folders, *(link for link, _ in links)),
        with_packages=interpreter is not None,
    )


def container(command: Sequence[str], interpreter: str = "python3") -> Isolation:
    """A container (or anything else) that `command` starts and whose standard streams are ours.

    For example `docker run --rm -i --network=none --read-only --tmpfs=/scratch:mode=1777,size=64m --memory=1g
    --pids-limit=64 --user=65534 python:3.11-slim`. It needs Python on Linux and a writable /scratch; network, files, memory and
    number of processes are the container's to bound.
    """
    return Isolation(
        "container",
        f"a container started by `{command[0]}`; its network, files and processes are bounded by that command",
        lambda limits: command,
        interpreter,
        sources=("container_guard.py", "confine.py"),
        entry="request = read_request(); guard(request['settings']); confine(request)",
        remote=True,
    )


def _visible(interpreter: str | None, readable: Sequence[str]) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the folders that must be seen inside (the system's libraries, the interpreter), and the links among them."""
    folders: list[str] = []
    links: list[tuple[str, str]] = []
    for folder in _SYSTEM:
        path = Path(folder)
        if path.is_symlink():
            links.append((folder, str(path.readlink())))
        elif path.is_dir():
            folders.append(folder)
    executable = Path(interpreter or this_interpreter())
    for root in dict.fromkeys((executable.parent.parent, executable.resolve().parent.parent)):
        if _is_python_prefix(root) and not any(root.is_relative_to(folder) for folder in folders):
            folders.append(str(root))
    return (*folders, *readable), tuple(links)


def _is_python_prefix(folder: Path) -> bool:
    """True for the folder of an installation or a virtual environment; "/" or a home folder is never shown as a whole."""
    if folder in (Path("/"), Path.home()):
        return False
    return (folder / "pyvenv.cfg").is_file() or any(folder.glob("lib*/python3*"))
