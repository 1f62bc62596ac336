"""Connections to a server: opened in order, and none waits for a server that is slow to accept another."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from yarl import URL

from simulators.chat_models.connection import Connection

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Server(asyncio.Protocol):
    """Notes, over all its connections, when they begin and when a request comes; answers each request at once."""

    def __init__(self, events: list[str]) -> None:
        self._events = events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._events.append("connected")
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"POST"):
            self._events.append("asked")
            self._transport.write(ANSWER)


@asynccontextmanager
async def served(events: list[str]) -> AsyncIterator[URL]:
    server = await asyncio.get_running_loop().create_server(lambda: Server(events), "127.0.0.1", 0)
    async with server:
        yield URL(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")


async def test_the_first_request_does_not_wait_until_every_connection_is_open() -> None:
    events: list[str] = []
    connection = Connection({}, 10.0, lambda: None)
    async with served(events) as url:
        answers = await asyncio.gather(*(connection.send(url, b"{}", 10.0) for _ in range(200)))
        await connection.aclose()
    assert [status for status, _, _ in answers] == [200] * 200
    first_request = events.index("asked")
    assert first_request < 100, "every connection was opened before the first request was sent"
    assert events.count("asked") == 200


async def test_connections_that_do_not_come_about_hold_up_no_other() -> None:
    """20 connections to an address where nobody accepts: a ready server beside it is reached all the same."""
    events: list[str] = []
    connection = Connection({}, 10.0, lambda: None)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent:  # the kernel drops what its queue has no room for
        full = URL(f"http://127.0.0.1:{silent.getsockname()[1]}/")
        async with served(events) as url:
            stuck = [asyncio.create_task(connection.send(full, b"{}", 10.0)) for _ in range(20)]
            await asyncio.sleep(0)
            status, _, _ = await asyncio.wait_for(connection.send(url, b"{}", 10.0), 5.0)
            assert not any(task.done() for task in stuck)
            for task in stuck:
                task.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)
            await connection.aclose()
    assert status == 200
