"""A chat model made of a chat template and a token sampler: what every model in this process is, and the policy in training."""

from __future__ import annotations

import time
from collections.abc import Callable

from simulators.chat_models.chat_template import PromptTemplate, opens_thought
from simulators.chat_models.protocol import ChatRequest, Completion
from simulators.chat_models.reply_text import read_reply
from simulators.chat_models.token_sampler import SampledReply, TokenSampler
from simulators.conversation import Usage


class TemplateChatModel:
    """See the module. `version` tells which weights the sampler holds now; a trainer's changes with every optimizer step."""

    def __init__(self, sampler: TokenSampler, template: PromptTemplate, name: str, version: Callable[[], str]) -> None:
        self.sampler = sampler
        self.template = template
        self._name = name
        self._version = version

    @property
    def name(self) -> str:
        return self._name

    @property
    def weights_version(self) -> str:
        return self._version()

    def count_tokens(self, text: str) -> int:
        """Return how many tokens the model's tokenizer makes of a text, without special tokens."""
        return len(self.template.encode(text))

    async def complete(self, request: ChatRequest) -> list[Completion]:
        """Return `request.n` completions; see `ChatModel`. The weights in use now are used to the end of the call.

        Raises:
            ContextOverflow: when the conversation leaves no room for a reply.
            ConfigurationError: when the chat template fails on the conversation, or no request can succeed any more.
            ChatModelError: when the engine fails on this request.
        """
        prompt_ids = self.template.prompt_ids(request.messages, request.tools)
        prefix_ids = self.template.encode(request.reply_prefix) if request.reply_prefix else []
        version, started = self.weights_version, time.monotonic()
        replies = await self.sampler.sample(
            prompt_ids, request.sampling, request.seed, request.n, prefix_ids, request.json_schema
        )
        latency_s = time.monotonic() - started
        thought_open = opens_thought(self.template, prompt_ids)
        completions = []
        for index, reply in enumerate(replies):
            read = read_reply(reply.text, thought_open=thought_open, tools=bool(request.tools))
            completions.append(
                Completion(
                    text=read.text,
                    finish_reason=reply.finish_reason,
                    token_ids=reply.token_ids,
                    logprobs=reply.logprobs,
                    usage=_usage(request, index, reply, len(prompt_ids), len(prefix_ids)),
                    model=self._name,
                    weights_version=version,
                    latency_s=latency_s,
                    reasoning=read.reasoning,
                    tool_calls=read.tool_calls,
                )
            )
        return completions

    async def aclose(self) -> None:
        """Close the sampler."""
        await self.sampler.aclose()


def _usage(request: ChatRequest, index: int, reply: SampledReply, prompt: int, prefix: int) -> Usage:
    """Count the prompt (with the reply's prefix, which was not sampled) once, and a greedy reply once for all samples."""
    if index == 0:
        return Usage(prompt + prefix, len(reply.token_ids) - prefix, reply.cached_tokens)
    return Usage(0, 0 if request.sampling.temperature == 0 else len(reply.token_ids) - prefix)
