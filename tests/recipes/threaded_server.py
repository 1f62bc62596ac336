"""The loopback chat server in a thread of its own, for runs that are a process, or that own the event loop."""

import asyncio
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator

from tests.simulators.fault_server import Body, FaultServer


@contextlib.contextmanager
def running(server: FaultServer) -> Iterator[FaultServer]:
    """Run the server until the block is left."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def drawn(body: Body) -> int:
    """A number drawn from what was asked, seed included: equal requests get equal replies, and no others."""
    return int.from_bytes(hashlib.sha256(json.dumps(body, sort_keys=True).encode()).digest()[:4], "big")


def assistant_reply(body: Body) -> str:
    """A question, or an answer that is right now and then."""
    number = drawn(body)
    return f"How many is it ({number % 997})?" if number % 2 else f"I see ({number % 997}). The answer is {number % 7}."
