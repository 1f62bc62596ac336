"""The policy in training as a chat model, so that forward sampling plays futures with its *current* weights."""

from __future__ import annotations

import time
from collections.abc import Callable

from collab.training.token_sampling import TokenSampler
from collab.training.turn_tokens import TurnTokens
from simulators.chat_models.protocol import ChatRequest, Completion
from simulators.chat_models.reply_text import read_reply
from simulators.conversation import Usage


class LivePolicy:
    """A chat model over the rollout's token sampler: futures and episodes share one engine and batch together.

    `version` tells which weights the engine holds now; it changes with every optimizer step.
    """

    def __init__(self, sampler: TokenSampler, tokens: TurnTokens, version: Callable[[], str], name: str = "policy") -> None:
        self._sampler = sampler
        self._tokens = tokens
        self._version = version
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    @property
    def weights_version(self) -> str:
        return self._version()

    async def complete(self, request: ChatRequest) -> list[Completion]:
        """Return `request.n` completions.

        Raises:
            ContextOverflow, ChatModelError, ConfigurationError: as the sampler and the chat template do.
        """
        prompt_ids = self._tokens.prompt_ids(request.messages, request.tools)
        prefix_ids = self._tokens.encode(request.reply_prefix) if request.reply_prefix else []
        started = time.perf_counter()
        replies = await self._sampler.sample(prompt_ids, request.sampling, request.seed, request.n, prefix_ids)
        latency = time.perf_counter() - started
        found = [read_reply(reply.text, tools=bool(request.tools)) for reply in replies]
        return [
            Completion(
                text=said.text,
                finish_reason=reply.finish_reason,
                token_ids=reply.token_ids,
                logprobs=reply.logprobs,
                usage=Usage(prompt_tokens=len(prompt_ids), completion_tokens=len(reply.token_ids)),
                model=self._name,
                weights_version=self.weights_version,
                latency_s=latency,
                reasoning=said.reasoning,
                tool_calls=said.tool_calls,
            )
            for reply, said in zip(replies, found, strict=True)
        ]

    async def aclose(self) -> None:
        """Nothing of its own to release; the sampler belongs to the rollout."""
