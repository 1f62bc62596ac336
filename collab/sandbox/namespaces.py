"""Runs *inside*, where bubblewrap is not installed: new namespaces by hand, then a file system of a few read-only folders.

What it makes is what bubblewrap makes: own mount, process, network, IPC and host-name namespaces (and a user namespace unless
root makes them), a root of read-only binds, a scratch folder of bounded size, no /proc. The process that started all this only
waits; the first process inside reaps; the program is the second. When either of the first two dies, the kernel kills the rest.

Sent to the inside as text, before `confine.py`; standard library only.
"""

# A bare start: pathlib alone would double the time it takes.
# ruff: noqa: PTH102,PTH103,PTH106,PTH112,PTH123,PTH211
# mypy: disable-error-code="type-arg"

import ctypes
import os
import signal
import struct
import sys

NEW_MOUNTS, NEW_HOSTNAME, NEW_IPC, NEW_USER, NEW_PROCESSES, NEW_NETWORK = (
    0x00020000,
    0x04000000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MS_RDONLY = 2, 4, 32, 4096, 16384, 1 << 18, 1
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4
UMOUNT_DETACH = 2
DEVICES = ("null", "zero", "full", "random", "urandom")
INSIDE_UID = 65534


def enter_namespaces(settings: dict) -> None:
    """Return in a process of its own inside new namespaces; the calling process waits for it and exits as it does."""
    status = settings["status_fd"]
    try:
        _die_with_parent(settings["parent_pid"])
        _unshare(as_root=bool(settings["drop_to_uid"]))
        _wait_for_child(status)
        _die_with_parent(0)
        _build_root(settings)
        _wait_for_child(status)
    except BaseException as error:
        os.write(status, f"failed: {type(error).__name__}: {error}".encode()[:500])
        os._exit(111)


def _unshare(as_root: bool) -> None:
    uid, gid = os.geteuid(), os.getegid()
    flags = NEW_MOUNTS | NEW_PROCESSES | NEW_NETWORK | NEW_IPC | NEW_HOSTNAME
    _call("unshare", flags if as_root else flags | NEW_USER)
    if not as_root:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{INSIDE_UID} {uid} 1"),
            ("gid_map", f"{INSIDE_UID} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as stream:
                stream.write(text)


def _wait_for_child(status_fd: int) -> None:
    """Fork. The child returns; the parent waits for it (and reaps whatever else ends up with it), then exits as it did."""
    child = os.fork()
    if child == 0:
        return
    for descriptor in (status_fd, 0, 1, 2):  # the pipes must close when the program is gone
        os.close(descriptor)
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _build_root(settings: dict) -> None:
    """Make a root of tmpfs with read-only binds, swap it in, and let go of the old one."""
    os.umask(0o022)
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=0755")
    os.mkdir("/tmp/old")
    os.chdir("/tmp")
    _call("pivot_root", b"/tmp", b"/tmp/old")
    os.chdir("/")
    for link, target in settings["links"]:
        os.symlink(target, link)
    for folder in settings["readable"]:
        _bind_read_only("/old" + folder, folder)
    os.makedirs("/dev", exist_ok=True)
    for device in DEVICES:
        with open(f"/dev/{device}", "w"):
            pass
        _mount(f"/old/dev/{device}", f"/dev/{device}", None, MS_BIND)
    os.mkdir(settings["scratch"])
    size = f"size={settings['scratch_mb']}m,mode=1777,nr_inodes=10000"
    _mount("tmpfs", settings["scratch"], "tmpfs", MS_NOSUID | MS_NODEV, size)
    _call("umount2", b"/old", UMOUNT_DETACH)
    os.rmdir("/old")
    _mount(None, "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _bind_read_only(source: str, target: str) -> None:
    if not os.path.isdir(source):
        return
    os.makedirs(target, exist_ok=True)
    _mount(source, target, None, MS_BIND | MS_REC)
    attributes = struct.pack("=QQQQ", ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV, 0, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(MOUNT_SETATTR, AT_FDCWD, target.encode(), AT_RECURSIVE, attributes, ctypes.c_size_t(32)) != 0:
        raise OSError(ctypes.get_errno(), f"cannot make {target} read-only")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encode = [None if text is None else text.encode() for text in (source, target, kind)]
    _call("mount", *encode, ctypes.c_ulong(flags), None if data is None else data.encode())


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    function = libc.syscall if name == "pivot_root" else getattr(libc, name)
    if name == "pivot_root":  # libc has no wrapper
        arguments = (155 if os.uname().machine == "x86_64" else 41, *arguments)
    if function(*arguments) != 0:
        error = ctypes.get_errno()
        shown = [each for each in arguments if isinstance(each, bytes)]
        raise OSError(error, f"{name} {b' '.join(shown).decode()}: {os.strerror(error)}")


def _die_with_parent(parent_pid: int) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if parent_pid and os.getppid() != parent_pid:
        sys.exit(111)
