"""The inside of a worker: reads calls from its standard input, answers on its standard output, and dies with its parent.

Kept apart from the pool so that a worker imports nothing but this file and the one module it is asked for.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

PR_SET_PDEATHSIG = 1
SELF_DESTRUCT_MARGIN_S = 5.0


def serve(memory_mb: int, parent_pid: int) -> None:
    """Answer calls until the standard input ends. Each line is JSON: `{"load": "module:function"}` or a call.

    A call is `{"function": ..., "argument": ..., "deadline_s": ...}`; its answer is `{"result": ...}` or `{"error": "..."}`.
    The pool kills a worker that outlives a deadline. If the pool is gone, an alarm that no Python code can hold up does it.
    """
    _die_with(parent_pid)
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "r+b") as nothing:  # noqa: PTH123 - file descriptors, not paths
        for descriptor in (0, 1):  # what libraries print must not be taken for an answer
            os.dup2(nothing.fileno(), descriptor)
    if memory_mb:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        with contextlib.suppress(ValueError, OSError):  # some systems know no limit on address space
            resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, hard))
    functions: dict[str, Callable[[Any], Any]] = {}
    for line in requests:
        replies.write(json.dumps(_answer(json.loads(line), functions)).encode() + b"\n")
        replies.flush()


def _answer(request: dict[str, Any], functions: dict[str, Callable[[Any], Any]]) -> dict[str, Any]:
    try:
        if (name := request.get("load")) is not None:
            module, function = name.split(":")
            functions[name] = getattr(importlib.import_module(module), function)
            return {"result": None}
        signal.setitimer(signal.ITIMER_REAL, request["deadline_s"] + SELF_DESTRUCT_MARGIN_S)
        try:
            result = functions[request["function"]](request["argument"])
            json.dumps(result)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return {"result": result}
    except Exception as error:
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:500]}


def _die_with(parent_pid: int) -> None:
    """Ask the kernel to kill this process when the pool's thread ends (Linux); elsewhere the end of the input must do."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)  # the parent died before it could be asked for
