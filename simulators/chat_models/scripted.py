"""A chat model whose replies come from a Python function: for tests, dry runs, and measuring everything but the model."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable

from simulators.chat_models.protocol import ChatRequest, Completion
from simulators.chat_models.reply_text import read_reply
from simulators.conversation import Usage

Script = Callable[[ChatRequest, random.Random], str | Awaitable[str]]


class ScriptedChatModel:
    """Answers with `script(request, rng)`, where `rng` is seeded from the request: same request and seed, same reply.

    `latency_s` makes each call wait, as a server would. The request's `reply_prefix` is put before the script's text, which is
    taken apart like any model's (thoughts, calls of tools). Token counts are words.
    """

    def __init__(self, script: Script, name: str = "scripted", latency_s: float = 0.0, weights_version: str = "0") -> None:
        self._script = script
        self._name = name
        self._latency_s = latency_s
        self._weights_version = weights_version
        self.calls = 0

    @property
    def name(self) -> str:
        return self._name

    @property
    def weights_version(self) -> str:
        return self._weights_version

    async def complete(self, request: ChatRequest) -> list[Completion]:
        """Return `n` scripted completions; sample i sees a generator seeded with `request.seed + i`."""
        self.calls += 1
        if self._latency_s:
            await asyncio.sleep(self._latency_s)
        return [await self._sample(request, index) for index in range(request.n)]

    async def _sample(self, request: ChatRequest, index: int) -> Completion:
        answer = self._script(request, random.Random(request.seed + index))
        text = request.reply_prefix + (await answer if inspect.isawaitable(answer) else answer)
        asked = sum(len(message.content.split()) for message in request.messages)
        reply = read_reply(text, tools=bool(request.tools))
        return Completion(
            text=reply.text,
            usage=Usage(prompt_tokens=asked, completion_tokens=len(text.split())),
            model=self._name,
            weights_version=self._weights_version,
            latency_s=self._latency_s,
            reasoning=reply.reasoning,
            tool_calls=reply.tool_calls,
        )

    async def aclose(self) -> None:
        """Nothing to release."""
