"""vLLM servers as a token sampler: token ids go out and come back over `/v1/completions`, so nothing is ever tokenised again."""

from __future__ import annotations

import asyncio
import json
import math
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from simulators.chat_models.endpoints import Endpoint
from simulators.chat_models.protocol import FinishReason, SamplingSettings
from simulators.chat_models.server_client import ServerClient
from simulators.chat_models.server_errors import AttemptFailed
from simulators.chat_models.server_options import ServerOptions
from simulators.chat_models.token_sampler import SampledReply, SamplingCounts
from simulators.errors import ConfigurationError, ContextOverflow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SEED_RANGE = 2**31
_AFFINITY_TOKENS = 128

_UNCHANGED = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_p": 0.0}
"""What a server takes from the model's own generation config where a request is silent: a trainer would not know of it."""


class ServerTokenSampler:
    """A `TokenSampler` over servers of one model, which they name. `stop_ids` end a reply besides the model's own.

    Raises:
        ConfigurationError: a base URL is not one, or the API key's environment variable is not set.
    """

    def __init__(
        self,
        base_urls: str | Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        stop_ids: frozenset[int] = frozenset(),
        options: ServerOptions | None = None,
    ) -> None:
        self.counts = SamplingCounts()
        self._options = options or ServerOptions(send_seed=False)
        self._client = ServerClient(base_urls, "the served model", self._options)
        self._tokenizer = tokenizer
        self._stop_ids = sorted(stop_ids)
        self._served: tuple[str, float] | None = None
        self._connecting = asyncio.Lock()
        self._in_flight = 0
        self._busy_since = 0.0

    async def sample(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingSettings,
        seed: int,
        n: int = 1,
        prefix_ids: Sequence[int] = (),
        json_schema: Mapping[str, Any] | None = None,
    ) -> list[SampledReply]:
        """Do what `TokenSampler.sample` says; `seed` is sent where the options say so. Greedy samples are drawn once."""
        model, context = await self._model()
        prompt, prefix = list(prompt_ids), list(prefix_ids)
        room = context - len(prompt) - len(prefix)
        if room < 1:
            raise ContextOverflow(
                f"the conversation has {len(prompt)} tokens and the served model takes {context:.0f}; no room for a reply"
            )
        draws = 1 if sampling.temperature == 0 else n
        body: dict[str, Any] = {
            "model": model,
            "prompt": prompt + prefix,
            "n": draws,
            "max_tokens": int(min(sampling.max_tokens, room)),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            **_UNCHANGED,
            "stop_token_ids": self._stop_ids,
            "logprobs": 0,
            "return_token_ids": True,
        }
        if self._options.send_seed:
            body["seed"] = seed % _SEED_RANGE
        if sampling.stop:
            body |= {"stop": list(sampling.stop), "include_stop_str_in_output": sampling.include_stop}
        if json_schema is not None:
            body["structured_outputs"] = {"json": json_schema}
        wire = json.dumps(body).encode("ascii")

        async def attempt(endpoint: Endpoint, timeout_s: float) -> list[SampledReply]:
            data = await self._client.send(endpoint, endpoint.url + "/completions", wire, timeout_s)
            return self._read(data, draws, prefix)

        with self._busy():
            replies = await self._client.call(array("q", prompt[:_AFFINITY_TOKENS]).tobytes(), attempt)
        self.counts.tokens += sum(len(reply.token_ids) - len(prefix) for reply in replies)
        return replies * (n // draws)

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """Count the seconds in which at least one request is under way."""
        if self._in_flight == 0:
            self._busy_since = time.perf_counter()
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self.counts.busy_s += time.perf_counter() - self._busy_since

    async def _model(self) -> tuple[str, float]:
        """Ask for the name and the context of the model once; what is asked meanwhile waits."""

        async def attempt(endpoint: Endpoint, timeout_s: float) -> tuple[str, float]:
            data = await self._client.send(endpoint, endpoint.url + "/models", None, timeout_s)
            try:
                return data["data"][0]["id"], float(data["data"][0].get("max_model_len") or math.inf)
            except (LookupError, TypeError, AttributeError):
                raise ConfigurationError(f"{endpoint.url} lists no model; is it a vLLM server?") from None

        async with self._connecting:
            if self._served is None:
                self._served = await self._client.call(b"", attempt)
            return self._served

    def _read(self, data: Any, n: int, prefix: list[int]) -> list[SampledReply]:
        """Return the replies of a parsed response.

        Raises:
            AttemptFailed: it is not one of completions with their token ids and log-probabilities.
        """
        try:
            choices = sorted(data["choices"], key=lambda choice: choice.get("index", 0))
            if len(choices) != n:
                raise ValueError(f"{len(choices)} replies instead of {n}")
            cached = ((data.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            return [self._reply(choice, prefix, cached) for choice in choices]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise AttemptFailed(f"the response is not one of token ids ({type(error).__name__}: {error})"[:300]) from None

    def _reply(self, choice: dict[str, Any], prefix: list[int], cached: int) -> SampledReply:
        sampled = choice["token_ids"]
        logprobs = [math.nan if value is None else float(value) for value in choice["logprobs"]["token_logprobs"]]
        if len(sampled) != len(logprobs):
            raise ValueError("token ids and log-probabilities do not match")
        text = (str(self._tokenizer.decode(prefix, skip_special_tokens=True)) if prefix else "") + choice["text"]
        finish: FinishReason = "length" if choice["finish_reason"] == "length" else "stop"
        return SampledReply((*prefix, *sampled), (*(0.0 for _ in prefix), *logprobs), text, finish, cached)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()
