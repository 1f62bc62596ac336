"""Run a coroutine to its end from plain code: the blocking twin of everything async, for scripts and notebooks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_blocking(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Return the coroutine's result, or raise what it raises.

    Inside a running event loop (a notebook cell) it runs in a thread with a loop of its own. Objects that hold connections or
    threads bound to a loop (chat models) must then be used through blocking calls only.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    box: list[Result] = []
    failure: list[BaseException] = []

    def target() -> None:
        try:
            box.append(asyncio.run(coroutine))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=target, name="run_blocking")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return box[0]
