"""A chat-completions server that answers everything after a fixed time, in a process of its own, as lean as Python allows.

What it costs is shared by every client that is measured, so it is a bare asyncio protocol: no framework, no routing, and as
little parsing as will do. Replies are numbered, so no two transcripts are equal.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

USER = json.dumps({"thought": "hm", "message": "go on? (%d)", "done": False, "current_answer": "-", "response": "go on? (%d)"})
JUDGE = json.dumps({"reason": "fine", "rating": 1, "thought": "fine", "accuracy": 1, "interactivity": 0.7})
POLICY = "Here is the next step. The answer is %d. Which part should I expand on, A or B?"
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"

_JUDGE_MARKS = (b"You rate conversations", b"meticulous")
_USER_MARKS = (b"You play a person", b"role-playing as a human USER")


@dataclass
class _Counts:
    calls: int = 0
    in_flight: int = 0
    peak: int = 0

    def reset(self) -> None:
        self.calls = self.in_flight = self.peak = 0


class _Connection(asyncio.Protocol):
    def __init__(self, latency_s: float, counts: _Counts) -> None:
        self._latency_s = latency_s
        self._counts = counts
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._buffer[:end]).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        if len(self._buffer) < end + 4 + length:
            return
        body = bytes(self._buffer[end + 4 : end + 4 + length])
        self._buffer.clear()  # clients wait for the answer before they ask again
        if head.startswith(b"get /stats"):
            self._send(json.dumps(vars(self._counts)).encode())
        elif head.startswith(b"get /reset"):
            self._counts.reset()
            self._send(b"{}")
        else:
            self._begin(body)

    def _begin(self, body: bytes) -> None:
        counts = self._counts
        counts.in_flight += 1
        counts.peak = max(counts.peak, counts.in_flight)
        counts.calls += 1
        if any(mark in body for mark in _USER_MARKS):
            text = USER % (counts.calls, counts.calls)
        else:
            text = JUDGE if any(mark in body for mark in _JUDGE_MARKS) else POLICY % counts.calls
        asyncio.get_running_loop().call_later(self._latency_s, self._answer, text)

    def _answer(self, text: str) -> None:
        self._counts.in_flight -= 1
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        choices = [{"index": 0, "finish_reason": "stop", "message": message}]
        answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "fake", "choices": choices, "usage": usage}
        self._send(json.dumps(answer).encode())

    def _send(self, body: bytes) -> None:
        self._transport.write(_HEAD % len(body) + body)


def _serve(latency_s: float, ready: Any) -> None:
    async def main() -> None:
        counts = _Counts()
        server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(latency_s, counts), "127.0.0.1", 0, backlog=4096
        )
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


@contextmanager
def fixed_latency_server(latency_s: float) -> Iterator[str]:
    """Run the server in a child process; yields its URL."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(latency_s, there), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        process.terminate()
        process.join(5)


def get(url: str) -> dict[str, Any]:
    """Return the JSON at a URL of the server: `/stats` its counts, `/reset` sets them to 0."""
    with urllib.request.urlopen(url, timeout=10) as response:
        data: dict[str, Any] = json.loads(response.read())
        return data
