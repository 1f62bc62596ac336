"""Takes turns on the event loop, so that scoring a thousand conversations at once never holds it up.

A thousand coroutines that become ready together run their first steps in one go, before the loop looks at any socket again: a
fraction of a millisecond each, and half a second together. `await turn()` lines them up instead, one step for each round of the
loop. Waiting for a turn costs a round of the loop and nothing else, whoever else waits.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque


class _Line:
    """Those who wait for their turn on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._moving = False

    def join(self) -> asyncio.Future[None]:
        loop = self._loop()
        assert loop is not None
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiter)
        if not self._moving:
            self._moving = True
            loop.call_soon(self._move)
        return waiter

    def _move(self) -> None:
        """Let the next one go, and come back in the next round."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():  # it may have been cancelled
                waiter.set_result(None)
                break
        loop = self._loop()
        if self._waiting and loop is not None:
            loop.call_soon(self._move)
        else:
            self._moving = False


_lines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = weakref.WeakKeyDictionary()


async def turn() -> None:
    """Wait for a turn to do a short piece of computing on the running event loop."""
    loop = asyncio.get_running_loop()
    line = _lines.get(loop)
    if line is None:
        line = _lines[loop] = _Line(loop)
    await line.join()
