"""System-call filters (seccomp-BPF) as byte strings that a process can put on itself.

Two filters. The base filter refuses what no solution needs and kernels get exploited through (mounts, namespaces, tracing,
bpf, io_uring, keys, memory outside the limits) and every socket that is not a local one. The strict filter also refuses new
processes, signals to others and sockets of all kinds: for isolations that cannot number or bury a program's processes.

Refused calls fail with EPERM, so an honest program gets a PermissionError it can report.
"""

from __future__ import annotations

import errno
import platform
import struct

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENT_AT = 0, 4, 16
_X32_BIT = 0x40000000
_AF_UNIX = 1
_CLONE_THREAD = 0x00010000
_NEW_NAMESPACES = 0x7E020080  # every CLONE_NEW* flag

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1), "arm64": (0xC00000B7, 1)}

# System call: (number on x86_64, number on aarch64); None where the architecture lacks it.
_SPECIAL: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "clone": (56, 220),
    "clone3": (435, 435),
}  # fmt: skip
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280), "chroot": (161, 51),
    "clock_adjtime": (305, 266), "clock_settime": (227, 112), "delete_module": (176, 106), "fanotify_init": (300, 262),
    "finit_module": (313, 273), "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433),
    "init_module": (175, 105), "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_uring_setup": (425, 425),
    "ioperm": (173, None), "iopl": (172, None), "kcmp": (312, 272), "kexec_file_load": (320, 294), "kexec_load": (246, 104),
    "keyctl": (250, 219), "lookup_dcookie": (212, 18), "mbind": (237, 235), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "migrate_pages": (256, 238), "modify_ldt": (154, None), "mount": (165, 40),
    "mount_setattr": (442, 442), "move_mount": (429, 429), "move_pages": (279, 239), "mq_open": (240, 180),
    "msgget": (68, 186), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "open_tree": (428, 428),
    "perf_event_open": (298, 241), "personality": (135, 92), "pidfd_getfd": (438, 438), "pivot_root": (155, 41),
    "process_madvise": (440, 440), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "ptrace": (101, 117),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "reboot": (169, 142), "request_key": (249, 218), "semget": (64, 190),
    "setdomainname": (171, 162), "sethostname": (170, 161), "setns": (308, 268), "settimeofday": (164, 170),
    "shmat": (30, 196), "shmctl": (31, 195), "shmget": (29, 194), "swapoff": (168, 225), "swapon": (167, 224),
    "syslog": (103, 116), "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282), "vhangup": (153, 58),
}  # fmt: skip
_REFUSED_WHEN_STRICT: dict[str, tuple[int | None, int | None]] = {
    "connect": (42, 203), "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "kill": (62, 129),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "prlimit64": (302, 261), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "setpgid": (109, 154), "setsid": (112, 157), "tkill": (200, 130), "vfork": (58, None),
}  # fmt: skip


def filter_program(strict: bool = False, machine: str | None = None) -> bytes:
    """Return a filter for this machine's architecture, as an array of `struct sock_filter`.

    Raises:
        NotImplementedError: the architecture is not one we know the call numbers of.
    """
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        raise NotImplementedError(f"no system-call filter for {machine}; it is known for {', '.join(sorted(_ARCHITECTURES))}")
    audit_architecture, column = _ARCHITECTURES[machine]
    refused = _REFUSED | (_REFUSED_WHEN_STRICT if strict else {})
    numbers = sorted({number for pair in refused.values() if (number := pair[column]) is not None})
    program = [
        _step(_LOAD, _ARCHITECTURE_AT),
        _step(_JUMP_EQUAL, audit_architecture, if_true=1),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER_AT),
    ]
    if column == 0:
        program += [_step(_JUMP_AT_LEAST, _X32_BIT, if_false=1), _refuse(errno.EPERM)]
    for number in numbers:
        program += [_step(_JUMP_EQUAL, number, if_false=1), _refuse(errno.EPERM)]
    for name in ("socket", "socketpair"):
        program += _sockets(_number(name, column), strict)
    program += [_step(_JUMP_EQUAL, _number("clone3", column), if_false=1), _refuse(errno.ENOSYS)]  # libc falls back on clone
    program += _clones(_number("clone", column), strict)
    program.append(_step(_RETURN, _ALLOW))
    return b"".join(program)


def _sockets(number: int, strict: bool) -> list[bytes]:
    if strict:
        return [_step(_JUMP_EQUAL, number, if_false=1), _refuse(errno.EACCES)]
    return [
        _step(_JUMP_EQUAL, number, if_false=4),
        _step(_LOAD, _ARGUMENT_AT),
        _step(_JUMP_EQUAL, _AF_UNIX, if_false=1),
        _step(_RETURN, _ALLOW),
        _refuse(errno.EACCES),
    ]


def _clones(number: int, strict: bool) -> list[bytes]:
    """Refuse new namespaces always; when strict, refuse everything but threads."""
    flags = [_step(_LOAD, _ARGUMENT_AT), _step(_JUMP_ANY_BIT, _NEW_NAMESPACES, if_false=1), _refuse(errno.EPERM)]
    if strict:
        flags += [_step(_JUMP_ANY_BIT, _CLONE_THREAD, if_true=1), _refuse(errno.EPERM)]
    return [_step(_JUMP_EQUAL, number, if_false=len(flags)), *flags]


def _number(name: str, column: int) -> int:
    number = _SPECIAL[name][column]
    assert number is not None
    return number


def _refuse(error: int) -> bytes:
    return _step(_RETURN, _ERRNO | error)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
