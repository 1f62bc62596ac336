"""What every chat model answers to: one async method that turns a request into samples.

Four backends speak it (an OpenAI-compatible server, vLLM in process, Transformers in process, a script), and so do wrappers
such as the journal. Batching is the backend's business: callers send one request for each conversation, all at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from simulators.conversation import Conversation, Message, ToolCall, Usage

FinishReason = Literal["stop", "length"]
CallerRole = Literal["policy", "user", "judge"]


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How tokens are drawn. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 switch the cuts off.

    A reply ends where one of the `stop` strings appears; the string itself is cut off unless `include_stop`.

    Raises:
        ValueError: when a value is out of its range.
    """

    max_tokens: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    include_stop: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"sampling: max_tokens is {self.max_tokens}; it must be at least 1")
        if self.temperature < 0:
            raise ValueError(f"sampling: temperature is {self.temperature}; it must not be negative")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"sampling: top_p is {self.top_p}; it must lie in (0, 1]")
        if self.top_k < 0:
            raise ValueError(f"sampling: top_k is {self.top_k}; it must not be negative")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request for `n` samples after `messages`.

    `seed` names the draw: sample i of a request uses seed + i where the backend can seed at all, and it is part of the
    journal's key everywhere, so that two draws are never taken for one. `reply_prefix` is text the reply must start with; it
    counts as the model's own words and stands at the head of the returned text. `json_schema` asks for structured output where
    the backend can enforce it. `tools` are those that the reply may call, as JSON schemas in OpenAI's form
    ({"type": "function", "function": {"name", "description", "parameters"}}).
    """

    messages: Conversation
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    n: int = 1
    seed: int = 0
    role: CallerRole = "policy"
    reply_prefix: str = ""
    json_schema: Mapping[str, Any] | None = None
    tools: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled reply and what the backend knows about it.

    `text` is the visible text: it starts with the reply prefix, and ends before a stop string that is not to be kept. `reasoning`
    and `tool_calls` are what else the reply held (`simulators.chat_models.reply_text`). `token_ids` (with the prefix's
    tokens and the stop token, when one was sampled) and `logprobs` (one per token id, natural log, at the given temperature; a
    server decides whether top-k and top-p cuts count, backends in this process leave them out; 0.0 for prefix tokens, which
    were not sampled) are None where a backend cannot tell. `context_ids` are the tokens that the reply before it on the same path
    had not been asked with, where a conversation is sampled by its tokens (`simulators.conversation.Node`).
    """

    text: str
    finish_reason: FinishReason = "stop"
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    weights_version: str = "0"
    latency_s: float = 0.0
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    context_ids: tuple[int, ...] | None = None

    @property
    def message(self) -> Message:
        """The reply as a message of the assistant's."""
        return Message("assistant", self.text, self.reasoning, self.tool_calls)


@runtime_checkable
class ChatModel(Protocol):
    """A source of chat completions.

    `name` and `weights_version` enter the journal's key: a backend whose weights change must change its version.
    """

    @property
    def name(self) -> str: ...

    @property
    def weights_version(self) -> str: ...

    async def complete(self, request: ChatRequest) -> list[Completion]:
        """Return `request.n` completions.

        Raises:
            ConfigurationError: no request of this run can ever succeed (wrong key, unknown model, no server).
            ContextOverflow: the messages do not fit in the model's context.
            ChatModelError: this request failed for good, after the backend's own retries.
        """
        ...

    async def aclose(self) -> None:
        """Release connections, threads and memory; the model cannot be used afterwards."""
        ...
