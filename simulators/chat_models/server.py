"""A chat model behind one or several OpenAI-compatible servers (vLLM's among them).

    ChatServer("http://localhost:8000", "Qwen/Qwen3-4B", ServerOptions(extensions=True))
    ChatServer("https://api.example.com/v1", "some-model", ServerOptions(api_key_env="SOME_API_KEY"))

What is sent and read is in `chat_completions`, attempts and failures in `server_client`. Where a server refuses something that a
call can do without (a seed, say), the call leaves it out and goes on, and so do all calls after it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from simulators.chat_models.chat_completions import read_response, refused_part, request_body
from simulators.chat_models.endpoints import Endpoint
from simulators.chat_models.lora_adapters import Adapter, adapter_version
from simulators.chat_models.protocol import ChatRequest, Completion
from simulators.chat_models.server_client import ServerClient
from simulators.chat_models.server_errors import ModelNotServed, RequestRefused
from simulators.chat_models.server_options import ServerOptions
from simulators.conversation import Usage
from simulators.errors import ChatModelError, ConfigurationError

__all__ = ["ChatServer", "ServerOptions"]

logger = logging.getLogger(__name__)

_AFFINITY_CHARACTERS = 256


class ChatServer:
    """See the module. `adapter` names a LoRA adapter that the servers have loaded already; `load_adapter` loads one.

    Raises:
        ConfigurationError: a base URL is not one, or the API key's environment variable is not set.
    """

    def __init__(
        self, base_urls: str | Sequence[str], model: str, options: ServerOptions | None = None, *, adapter: str | None = None
    ) -> None:
        self._options = options = options or ServerOptions()
        self._model = model
        self._adapter = Adapter(adapter) if adapter else None
        self._client = ServerClient(base_urls, model, options)
        never = {
            "response_format": options.json_schema == "never",
            "seed": not options.send_seed,
            "logprobs": options.logprobs == "none",
        }
        self._left_out = frozenset(part for part, is_never in never.items() if is_never)
        self._one_sample_a_call = False
        self._calls_of_adapter: Counter[str] = Counter()
        self._retired_adapters: set[str] = set()
        self._unloading: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        return self._model

    @property
    def weights_version(self) -> str:
        return self._adapter.served_name if self._adapter else "0"

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        """The servers, with their present limits and counts, to look at."""
        return self._client.pool.endpoints

    def __repr__(self) -> str:
        return f"ChatServer({[endpoint.url for endpoint in self.endpoints]}, {self._model!r})"

    async def complete(self, request: ChatRequest) -> list[Completion]:
        """Return `request.n` completions; see `ChatModel`. The adapter in use now is used to the end of the call."""
        self._check(request)
        adapter = self._adapter
        if adapter is None:
            return await self._samples(request, None)
        self._calls_of_adapter[adapter.served_name] += 1
        try:
            return await self._samples(request, adapter)
        finally:
            self._calls_of_adapter[adapter.served_name] -= 1
            self._unload_retired()

    def _check(self, request: ChatRequest) -> None:
        prefix = "replies are to start with given words" if request.reply_prefix else ""
        kept = "stop strings are to be kept in the text" if request.sampling.stop and request.sampling.include_stop else ""
        if not self._options.extensions and (prefix or kept):
            raise ConfigurationError(
                f"{self._model}: {prefix or kept}, which only vLLM servers can do; set extensions to true if this is one"
            )

    async def _samples(self, request: ChatRequest, adapter: Adapter | None) -> list[Completion]:
        if request.n == 1:
            return await self._call(request, adapter)
        if request.sampling.temperature == 0:  # all samples are the same one, and it is paid once
            (completion,) = await self._call(replace(request, n=1), adapter)
            return [completion, *(replace(completion, usage=Usage()) for _ in range(request.n - 1))]
        completions = [] if self._one_sample_a_call else await self._call(request, adapter)
        missing = range(len(completions), request.n)
        if missing:  # many servers know no `n` and answer once
            self._one_sample_a_call = True
            singles = [replace(request, n=1, seed=request.seed + index) for index in missing]
            for answer in await asyncio.gather(*(self._call(single, adapter) for single in singles)):
                completions += answer
        return completions

    async def _call(self, request: ChatRequest, adapter: Adapter | None) -> list[Completion]:
        left_out: set[str] = set()
        restored = False

        async def attempt(endpoint: Endpoint, timeout_s: float) -> list[Completion]:
            left_out.update(self._left_out)
            return await self._attempt(endpoint, request, adapter, left_out, timeout_s)

        async def recover(endpoint: Endpoint, error: ChatModelError | ModelNotServed) -> bool:
            nonlocal restored
            if isinstance(error, ModelNotServed) and adapter is not None and adapter.path is not None and not restored:
                restored = True  # a server that was restarted has lost what was loaded
                await self._load(endpoint, adapter)
                return True
            part = refused_part(str(error), left_out, request) if isinstance(error, RequestRefused) else None
            left_out.update({part} if part else ())
            return part is not None

        affinity = _affinity(request) if len(self.endpoints) > 1 else b""
        completions = await self._client.call(affinity, attempt, recover)
        if learnt := left_out - self._left_out:
            logger.warning("%s: the server refuses %s, which is left out from now on", self._model, ", ".join(sorted(learnt)))
            self._left_out |= learnt
        return completions

    async def _attempt(
        self, endpoint: Endpoint, request: ChatRequest, adapter: Adapter | None, left_out: set[str], timeout_s: float
    ) -> list[Completion]:
        options = self._options
        model = adapter.served_name if adapter else self._model
        started = time.monotonic()
        body = request_body(request, model, options, left_out)
        data = await self._client.send(endpoint, endpoint.url + "/chat/completions", body, timeout_s)
        latency_s = time.monotonic() - started
        prompt = None
        if request.reply_prefix and options.token_ids:
            prompt = await self._prompt_tokens(endpoint, request, model, timeout_s)
        keep_logprobs = options.logprobs == "processed" or request.sampling.temperature == 1.0
        version = adapter.served_name if adapter else "0"
        return read_response(data, request, version, latency_s, prompt, keep_logprobs)

    async def _prompt_tokens(self, endpoint: Endpoint, request: ChatRequest, model: str, timeout_s: float) -> list[int] | None:
        """Ask the server for the tokens of the prompt without the reply prefix; the prefix's own tokens follow them."""
        messages = [message.as_dict() for message in request.messages]
        asked = {"model": model, "messages": messages, "add_generation_prompt": True}
        asked |= {"tools": list(request.tools)} if request.tools else {}
        data = await self._client.send(endpoint, endpoint.root + "/tokenize", json.dumps(asked).encode("ascii"), timeout_s)
        tokens = data.get("tokens") if isinstance(data, dict) else None
        return tokens if isinstance(tokens, list) else None

    async def load_adapter(self, name: str, path: str | Path, version: str | None = None) -> str:
        """Load a LoRA adapter on every server and use it from now on; return the name (and weights version) it has there.

        `version` tells versions of one adapter apart; by default it is a digest of the weights. Calls under way finish with the
        adapter they began with, which is unloaded after the last of them. A server that cannot be reached gets the adapter when
        it is back.

        Raises:
            ConfigurationError: a server refuses (it may lack VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, or not see the path), or
                none can be reached.
        """
        if not self._options.extensions:
            raise ConfigurationError(f"{self._model}: adapters can be loaded on vLLM servers only; set extensions to true")
        version = version or await asyncio.to_thread(adapter_version, Path(path))
        adapter = Adapter(f"{name}-{version}", str(path))
        outcomes = await asyncio.gather(*(self._load(each, adapter) for each in self.endpoints), return_exceptions=True)
        refused = next((outcome for outcome in outcomes if isinstance(outcome, BaseException)), None)
        if refused is not None and not isinstance(refused, ChatModelError):
            raise refused
        if refused is not None and all(outcomes):
            raise ConfigurationError(f"adapter {adapter.served_name} could not be loaded anywhere: {refused}")
        previous, self._adapter = self._adapter, adapter
        self._retired_adapters.discard(adapter.served_name)
        if previous is not None and previous.path is not None and previous != adapter:
            self._retired_adapters.add(previous.served_name)
        await self.reset_prefix_caches()
        self._unload_retired()
        await asyncio.gather(*self._unloading)
        return adapter.served_name

    async def reset_prefix_caches(self) -> bool:
        """Drop the servers' prefix caches; True where every server did. (vLLM has this with VLLM_SERVER_DEV_MODE=1.)"""
        answers = await asyncio.gather(
            *(self._client.administer(each, each.root + "/reset_prefix_cache", {}) for each in self.endpoints)
        )
        return all(status == 200 for status, _ in answers)

    async def _load(self, endpoint: Endpoint, adapter: Adapter) -> None:
        """Load an adapter on one server. Raises ConfigurationError when it refuses, ChatModelError when it is out of reach."""
        payload = {"lora_name": adapter.served_name, "lora_path": adapter.path}
        status, said = await self._client.administer(endpoint, endpoint.url + "/load_lora_adapter", payload)
        if status == 0:
            raise ChatModelError(f"{endpoint.url}: {said}")
        if status != 200 and "already" not in said.lower():  # the name tells versions apart: already there is just as good
            raise ConfigurationError(
                f"the server at {endpoint.url} does not load the adapter in {adapter.path} ({status}: {said[:200]}); it must run "
                "with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True and --enable-lora, and see that folder"
            )

    def _unload_retired(self) -> None:
        """Start to unload every adapter that is out of use and that no call under way uses."""
        idle = {name for name in self._retired_adapters if not self._calls_of_adapter[name]}
        self._retired_adapters -= idle
        for name in idle:
            task = asyncio.get_running_loop().create_task(self._unload(name))
            self._unloading.add(task)
            task.add_done_callback(self._unloading.discard)

    async def _unload(self, served_name: str) -> None:
        payload = {"lora_name": served_name}
        await asyncio.gather(
            *(self._client.administer(each, each.url + "/unload_lora_adapter", payload) for each in self.endpoints)
        )

    async def aclose(self) -> None:
        """Finish unloading and close all connections."""
        await asyncio.gather(*self._unloading)
        await self._client.aclose()


def _affinity(request: ChatRequest) -> bytes:
    """Return what decides a request's favourite server: its system prompt and the beginning of its first other message.

    A conversation's turns, futures and candidates have that in common, and tasks differ in it.
    """
    messages = request.messages
    first = next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))
    opening = messages[first].content[:_AFFINITY_CHARACTERS] if first < len(messages) else ""
    return "\x1f".join([*(message.content for message in messages[:first]), opening]).encode("utf-8", "surrogatepass")
