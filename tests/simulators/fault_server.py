"""A chat-completions server on the loopback interface that fails on demand, and counts what it was asked and what it answered."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

Body = dict[str, Any]

FAULTS = (
    "429", "429 with Retry-After", "500", "503", "timeout", "reset", "truncated body", "malformed JSON", "not a completion",
    "empty content", "slow drip",
)  # fmt: skip
"""Faults that a later attempt can overcome. Others that `plan` may return: see `_respond`."""


def chat_reply(body: Body) -> str:
    """A fitting reply: the role-play user's JSON where that is asked for, else prose that depends on the conversation."""
    said = body["messages"][-1]["content"]
    if "You play a person" in body["messages"][0]["content"]:
        return json.dumps({"thought": "hm", "message": f"and then? ({len(said)})", "done": False})
    return f"Reply to {len(said)} characters. Which one do you mean?"


class FaultServer:
    """`plan(number, body)` names the fault of the number-th request (from 0), None for a good answer.

    `requests` are the bodies received on /v1/chat/completions, `answered` counts good answers, `other` are the admin requests.
    """

    def __init__(self) -> None:
        self.plan: Callable[[int, Body], str | None] = lambda number, body: None
        self.reply: Callable[[Body], str] = chat_reply
        self.requests: list[Body] = []
        self.headers: list[dict[str, str]] = []
        self.other: list[tuple[str, Body]] = []
        self.answered = 0
        self.in_flight = 0
        self.peak = 0
        self.latency_s = 0.0
        self.retry_after = "0.05"
        self.error_code: str | None = None
        self.extra: Callable[[Body], Body] = lambda body: {}
        self.admin: Callable[[str, Body], tuple[int, Body]] = lambda path, body: (200, {})
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start, or start again on the same port."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/{path:.*}", self._admin)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Go away: connections break, and new ones are refused."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        number = len(self.requests)
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            if self.latency_s:
                await asyncio.sleep(self.latency_s)
            return await self._respond(request, body, self.plan(number, body))
        finally:
            self.in_flight -= 1

    async def _admin(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.other.append((request.path, body))
        status, data = self.admin(request.path, body)
        return web.json_response(data, status=status)

    async def _respond(self, request: web.Request, body: Body, fault: str | None) -> web.StreamResponse:
        good = json.dumps(self._completion(body)).encode()
        match fault:
            case None:
                self.answered += 1
                return web.Response(body=good, content_type="application/json")
            case "429 with Retry-After":
                return web.json_response(
                    {"error": {"message": "slow down"}}, status=429, headers={"Retry-After": self.retry_after}
                )
            case "timeout":
                await asyncio.sleep(30)
            case "reset":
                assert request.transport is not None
                request.transport.abort()
            case "truncated body":
                return await self._partly(request, good, len(good) // 2, delay_s=0)
            case "slow drip":
                return await self._partly(request, good, len(good), delay_s=0.02)
            case "malformed JSON":
                return web.Response(body=good[: len(good) // 2], content_type="application/json")
            case "not a completion":
                return web.json_response({"hello": "world"})
            case "empty content":
                data = self._completion(body) | {"usage": {"prompt_tokens": 10, "completion_tokens": 0}}
                data["choices"][0]["message"]["content"] = ""
                return web.json_response(data)
            case "400 context":
                error = {"message": "This model's maximum context length is 100 tokens. However, you requested 200 tokens."}
                return web.json_response({"error": error}, status=400)
            case "200 page":
                return web.Response(text="<!doctype html><title>Sign in</title>", content_type="text/html")
            case _ if fault[:3].isdigit():
                error = {"message": fault[3:].strip() or "no", "code": self.error_code}
                return web.json_response({"error": error}, status=int(fault[:3]))
        return web.Response(status=500)

    async def _partly(self, request: web.Request, data: bytes, count: int, delay_s: float) -> web.StreamResponse:
        """Announce all of `data`, send `count` bytes of it (slowly), and hang up."""
        response = web.StreamResponse(headers={"Content-Length": str(len(data)), "Content-Type": "application/json"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):  # the client has had enough
            for start in range(0, count, 8):
                await response.write(data[start : min(start + 8, count)])
                if delay_s:
                    await asyncio.sleep(delay_s)
        if request.transport is not None:
            request.transport.close()
        return response

    def _completion(self, body: Body) -> Body:
        choices = [
            {"index": index, "finish_reason": "stop", "message": {"role": "assistant", "content": self.reply(body)}}
            for index in range(body.get("n", 1))
        ]
        usage = {"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 6}}
        return {"model": body["model"], "choices": choices, "usage": usage} | self.extra(body)
