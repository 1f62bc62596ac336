"""Token samplers: prompt ids in, sampled ids and their log-probabilities out. What everything that samples asks of an engine.

Transformers and vLLM in this process (`dispatcher`) and vLLM servers (`server_sampler`) answer. A chat model is a template over
a sampler (`template_model`), a training rollout asks it directly. Callers are coroutines that each send one request at a time;
batching is the engine's business, and no request waits for another to end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from simulators.chat_models.protocol import FinishReason, SamplingSettings


@dataclass(frozen=True, slots=True)
class SampledReply:
    """One sampled continuation.

    `token_ids` are the given prefix and the sampled ids, with the end token where one was sampled. `logprobs` are one natural
    log-probability per id, 0.0 for the prefix, at the request's temperature (Transformers tells them before, vLLM after top-k and
    top-p cuts); None where the engine cannot tell. `text` is all of it as it was written, thoughts and calls of tools included,
    without special tokens and up to a stop string. `cached_tokens` of the prompt came from a prefix cache.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    text: str
    finish_reason: FinishReason
    cached_tokens: int = 0


@dataclass(slots=True)
class SamplingCounts:
    """What a sampler has done since it was last asked: sampled tokens, and seconds in which the engine was at work."""

    tokens: int = 0
    busy_s: float = 0.0


class TokenSampler(Protocol):
    """See the module. `counts` are running totals that the caller may reset."""

    counts: SamplingCounts

    async def sample(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingSettings,
        seed: int,
        n: int = 1,
        prefix_ids: Sequence[int] = (),
        json_schema: Mapping[str, Any] | None = None,
    ) -> list[SampledReply]:
        """Sample `n` continuations of `prompt_ids`, each starting with `prefix_ids`.

        `seed` names the draw (sample i has seed + i); engines that can be seeded give the same reply for the same weights and
        seed. `json_schema` binds the reply where the engine has a grammar; others sample freely.

        Raises:
            ContextOverflow: when the prompt leaves no room for a reply.
            ChatModelError: when the engine failed on this request.
            ConfigurationError: when no request can succeed.
        """
        ...

    async def aclose(self) -> None:
        """Release threads and connections; requests under way are cancelled."""
        ...
