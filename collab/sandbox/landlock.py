"""Runs *inside*, where no mount namespace can be had: Landlock keeps the process to a few folders, whoever it runs as.

Sent to the inside as text, before `confine.py`; standard library only.
"""

# mypy: disable-error-code="type-arg"

import ctypes
import os
import struct

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
PATH_BENEATH = 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_CHAR, MAKE_BLOCK, MAKE_SOCK = 1 << 6, 1 << 11, 1 << 9
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
RIGHTS_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
TCP_BIND_AND_CONNECT = 0b11
ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


def landlock_version() -> int:
    """Return the kernel's Landlock version, 0 where it has none or it is switched off."""
    version = ctypes.CDLL(None, use_errno=True).syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    return max(0, int(version))


def restrict_files(readable: list, scratch: str) -> None:
    """Let this process read and run what is below `readable`, change what is below `scratch`, and touch nothing else."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = landlock_version()
    if version < 1:
        raise OSError("this kernel has no Landlock")
    rights = RIGHTS_BY_VERSION[min(version, 5)]
    attributes = struct.pack(
        "=QQQ", rights, TCP_BIND_AND_CONNECT if version >= 4 else 0, ABSTRACT_SOCKETS_AND_SIGNALS if version >= 6 else 0
    )
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = libc.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "landlock: no ruleset")
    in_scratch = rights & ~(EXECUTE | MAKE_CHAR | MAKE_BLOCK | MAKE_SOCK)
    paths = [(folder, EXECUTE | READ_FILE | READ_DIR) for folder in readable] + [(scratch, in_scratch)]
    for path, allowed in paths + [(device, READ_FILE | WRITE_FILE) for device in DEVICES]:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        rule = struct.pack("=Qi", allowed, descriptor)
        if libc.syscall(ADD_RULE, ruleset, PATH_BENEATH, rule, 0) != 0:
            raise OSError(ctypes.get_errno(), f"landlock: no rule for {path}")
        os.close(descriptor)
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.syscall(RESTRICT_SELF, ruleset, 0) != 0:
        raise OSError(ctypes.get_errno(), "landlock: cannot restrict")
    os.close(ruleset)
