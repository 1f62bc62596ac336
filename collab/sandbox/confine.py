"""Runs *inside*: puts the limits on its own process, says so on the status pipe, and becomes the program.

Sent to a bare Python (`python -I -S`) as text, so it uses the standard library only and imports nothing of this project; and
only those modules that start fast, as every program of a benchmark pays for them. By the time it runs, a namespace or container
may already be around it; whatever the settings ask for comes on top.
"""

# A bare start: pathlib alone would double the time it takes.
# ruff: noqa: PTH118,PTH123,SIM115
# mypy: disable-error-code="type-arg"

import ctypes
import marshal
import os
import resource
import sys

PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 4, 22, 38
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION_3 = 0x20080522
NOBODY = 65534
OPEN_FILES = 64


def confine(request, restrict_files=None):  # type: ignore[no-untyped-def]
    """Confine this process as `request["settings"]` says and run the program.

    `restrict_files(readable, scratch)` comes from `landlock.py` where that is sent along. Exits with 111 and a reason on the
    status pipe when anything cannot be put in place: better no run than a loose one.
    """
    settings = request["settings"]
    status = settings["status_fd"]
    try:
        os.umask(0o022)  # the program's user must be able to read what is written here
        _write_files(settings["scratch"], request["files"])
        standard_input = _memory_file(request["stdin"])
        if settings["drop_to_uid"]:
            _drop_to(settings["drop_to_uid"])
        if restrict_files is not None:
            restrict_files(settings["readable"], settings["scratch"])
        _limit(settings)
        _seal(settings)
        os.dup2(standard_input, 0)
        os.close(standard_input)
        os.chdir(settings["scratch"])
        path = os.path.join(settings["scratch"], request["entry"])
        with open(path, encoding="utf-8") as stream:
            source = stream.read()
    except BaseException as error:
        os.write(status, f"failed: {type(error).__name__}: {error}".encode()[:500])
        os._exit(111)
    os.write(status, settings["ready_mark"].encode())
    if status > 2:
        os.close(status)
    _become(source, path, request["arguments"], settings["scratch"])


def _write_files(folder: str, files: dict) -> None:
    for name, text in files.items():
        if "/" in name:
            os.makedirs(os.path.join(folder, name.rpartition("/")[0]), exist_ok=True)  # noqa: PTH103 (pathlib is slow to import)
        with open(os.path.join(folder, name), "w", encoding="utf-8", errors="surrogatepass") as stream:
            stream.write(text)


def _memory_file(text: str) -> int:
    """Return a descriptor of a file in memory, outside the scratch folder, that holds the standard input."""
    descriptor = os.memfd_create("stdin")
    data = memoryview(text.encode("utf-8", "surrogatepass"))
    while data:
        data = data[os.write(descriptor, data) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _drop_to(uid: int) -> None:
    """Become an unprivileged user that nobody else is, so that its processes can be numbered."""
    os.setgroups([])
    try:
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    except OSError:  # outside the range of ids of this container
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


def _limit(settings: dict) -> None:
    megabyte = 1 << 20
    cpu = max(1, int(-(-settings["cpu_s"] // 1)))
    _set(resource.RLIMIT_CPU, cpu, cpu + 1)
    _set(resource.RLIMIT_AS, settings["memory_mb"] * megabyte)
    _set(resource.RLIMIT_FSIZE, settings["file_mb"] * megabyte)
    _set(resource.RLIMIT_NOFILE, OPEN_FILES)
    _set(resource.RLIMIT_CORE, 0)
    _set(resource.RLIMIT_MEMLOCK, 0)
    _set(resource.RLIMIT_MSGQUEUE, 0)
    if settings["processes"]:
        _set(resource.RLIMIT_NPROC, settings["processes"])


def _set(which: int, soft: int, hard: int | None = None) -> None:
    resource.setrlimit(which, (soft, soft if hard is None else hard))


def _seal(settings: dict) -> None:
    """Give up what privileges are left, close the doors between processes of one user, and put the filter on."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.capset(CAPABILITY_VERSION_3.to_bytes(8, sys.byteorder), bytes(24))
    _must(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _must(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "dumpable")
    put_on_filter(bytes.fromhex(settings["filter"]))


def put_on_filter(program: bytes) -> None:
    """Put a seccomp filter on this process and all it will start."""
    libc = ctypes.CDLL(None, use_errno=True)
    instructions = ctypes.create_string_buffer(program, len(program))
    header = (len(program) // 8).to_bytes(8, sys.byteorder) + ctypes.addressof(instructions).to_bytes(8, sys.byteorder)
    _must(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0), "seccomp")


def _must(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _become(source: str, path: str, arguments: list, scratch: str) -> None:
    """Run the program as `__main__`, with nothing of this file left in its reach by name."""
    module = type(sys)("__main__")
    module.__file__ = path
    sys.modules["__main__"] = module
    sys.argv = [path, *arguments]
    sys.path.insert(0, scratch)
    sys.stdin = open(0, encoding="utf-8", errors="surrogatepass", closefd=False)
    exec(compile(source, path, "exec"), module.__dict__)


def read_request() -> dict:
    """Return the request that follows the sources on the standard input."""
    request = marshal.loads(sys.stdin.buffer.read())
    assert isinstance(request, dict)
    return request
