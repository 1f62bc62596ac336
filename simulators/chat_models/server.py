"""A chat model behind one or several OpenAI-compatible servers (vLLM's among them).

    ChatServer("http://localhost:8000", "Qwen/Qwen3-4B", ServerOptions(extensions=True))
    ChatServer("https://api.example.com/v1", "some-model", ServerOptions(api_key_env="SOME_API_KEY"))

A call is attempted until it is answered or its deadline is spent; what a failure means is decided in `server_errors`, where a
call goes in `endpoints`, what is sent and read in `chat_completions`. A server that is not there when it is first called is a
mistake in the configuration; one that was there before is waited for.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from yarl import URL

from simulators.chat_models.chat_completions import read_response, request_body
from simulators.chat_models.concurrency_limit import AdaptiveLimit
from simulators.chat_models.connection import Connection
from simulators.chat_models.endpoints import Endpoint, EndpointPool
from simulators.chat_models.lora_adapters import Adapter, adapter_version
from simulators.chat_models.protocol import ChatRequest, Completion
from simulators.chat_models.retry import backoff_s
from simulators.chat_models.server_errors import AttemptFailed, ModelNotServed, RequestRefused, error_of
from simulators.chat_models.server_options import ServerOptions, api_urls
from simulators.conversation import Usage
from simulators.errors import ChatModelError, ConfigurationError

__all__ = ["ChatServer", "ServerOptions"]

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
        urls = api_urls(base_urls)
        most = options.concurrency_cap(len(urls))
        endpoints = [Endpoint(url, root, AdaptiveLimit(options.initial_concurrency, most)) for url, root in urls]
        self._pool = EndpointPool(endpoints, patience_s=options.deadline_s)
        self._chat_urls = {endpoint.url: URL(endpoint.url + "/chat/completions") for endpoint in endpoints}
        self._connection = Connection(options.request_headers(), options.connect_timeout_s, self._pool.reset)
        self._rng = random.Random()  # for back-off only: nothing that is sampled depends on it
        self._schema_refused = options.json_schema == "never"
        self._one_sample_a_call = False
        self._limit_name = "max_tokens"
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
        return self._pool.endpoints

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
        if self._options.extensions:
            return
        if request.reply_prefix:
            raise ConfigurationError(
                f"{self._model}: replies are to start with given words, which only vLLM servers can do; set extensions to true "
                "if this is one, or leave the reply prefix out"
            )
        if request.sampling.stop and request.sampling.include_stop:
            raise ConfigurationError(
                f"{self._model}: stop strings are to be kept in the text, which only vLLM servers can do; set extensions to true "
                "if this is one"
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
        """Make attempts until one is answered, the deadline is spent, or trying again makes no sense."""
        options, pool = self._options, self._pool
        affinity = _affinity(request) if len(pool.endpoints) > 1 else b""
        with_schema = request.json_schema is not None and not self._schema_refused
        failures = costly = 0
        spent_s = 0.0
        restored = False
        await self._connection.open()
        while True:
            endpoint = await pool.acquire(affinity, again=failures > 0)
            epoch = endpoint.limit.epoch
            started = time.monotonic()
            try:
                timeout_s = min(options.attempt_timeout_s, options.deadline_s - spent_s)
                completions = await self._attempt(endpoint, request, adapter, with_schema, timeout_s)
                pool.note_answer(endpoint)
                if request.json_schema is not None and not with_schema:
                    self._schema_refused = True
                return completions
            except AttemptFailed as error:
                self._note_failure(endpoint, error, epoch)
                failure = error
            except RequestRefused as error:
                pool.note_answer(endpoint)
                if self._can_do_without(str(error)):
                    continue
                if not with_schema:
                    raise
                with_schema = False
                continue
            except ModelNotServed:
                pool.note_answer(endpoint)
                if adapter is None or adapter.path is None or restored:
                    raise
                restored = True  # a server that was restarted has lost what was loaded
                await self._load(endpoint, adapter)
                continue
            except ChatModelError:
                pool.note_answer(endpoint)
                raise
            finally:
                pool.release(endpoint)
                spent_s += time.monotonic() - started
            failures += 1
            costly += failure.may_cost
            wait_s = max(backoff_s(failures, options.first_backoff_s, self._rng), failure.retry_after_s or 0.0)
            if costly >= options.max_attempts or spent_s + wait_s >= options.deadline_s:
                raise ChatModelError(f"{self._model}: {failure}; given up after {failures} attempts in {spent_s:.1f} s")
            await asyncio.sleep(wait_s)
            spent_s += wait_s

    async def _attempt(
        self, endpoint: Endpoint, request: ChatRequest, adapter: Adapter | None, with_schema: bool, timeout_s: float
    ) -> list[Completion]:
        options = self._options
        model = adapter.served_name if adapter else self._model
        body = request_body(
            request,
            model,
            n=request.n,
            seed=request.seed if options.send_seed else None,
            with_schema=with_schema,
            extensions=options.extensions,
            token_ids=options.token_ids,
            logprobs=options.logprobs != "none",
            limit_name=self._limit_name,
        )
        started = time.monotonic()
        data = await self._post(endpoint, self._chat_urls[endpoint.url], body, timeout_s)
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
        body = json.dumps({"model": model, "messages": messages, "add_generation_prompt": True}).encode("ascii")
        data = await self._post(endpoint, URL(endpoint.root + "/tokenize"), body, timeout_s)
        tokens = data.get("tokens") if isinstance(data, dict) else None
        return tokens if isinstance(tokens, list) else None

    async def _post(self, endpoint: Endpoint, url: URL, body: bytes, timeout_s: float) -> Any:
        """Send one request and return the parsed JSON of a good response."""
        try:
            status, raw, retry_after = await self._connection.post(url, body, timeout_s)
        except AttemptFailed as error:
            if error.unreachable and not endpoint.has_answered:
                raise ConfigurationError(f"no server at {endpoint.url} ({error}); start it, or check the base URL") from None
            raise
        if status != 200:
            raise error_of(status, raw, retry_after, endpoint.url, self._model)
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            raise AttemptFailed(f"the response of {endpoint.url} is not valid JSON") from None

    def _note_failure(self, endpoint: Endpoint, error: AttemptFailed, epoch: int) -> None:
        if error.congested:
            endpoint.limit.congested(epoch)
        self._pool.note_failure(endpoint, unreachable=error.unreachable, closed_s=error.retry_after_s)

    def _can_do_without(self, complaint: str) -> bool:
        """True where a refusal is about the name of max_tokens, which newer APIs changed; it is then changed for all calls."""
        if self._limit_name == "max_tokens" and "max_completion_tokens" in complaint:
            self._limit_name = "max_completion_tokens"
            return True
        return False

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
        answers = await asyncio.gather(*(self._admin(each, each.root + "/reset_prefix_cache", {}) for each in self.endpoints))
        return all(status == 200 for status, _ in answers)

    async def _load(self, endpoint: Endpoint, adapter: Adapter) -> None:
        """Load an adapter on one server. Raises ConfigurationError when it refuses, ChatModelError when it is out of reach."""
        payload = {"lora_name": adapter.served_name, "lora_path": adapter.path}
        status, said = await self._admin(endpoint, endpoint.url + "/load_lora_adapter", payload)
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
        await asyncio.gather(*(self._admin(each, each.url + "/unload_lora_adapter", payload) for each in self.endpoints))

    async def _admin(self, endpoint: Endpoint, url: str, payload: dict[str, Any]) -> tuple[int, str]:
        """Send an administrative request; return (status, text), status 0 where no response came."""
        try:
            status, raw, _ = await self._connection.post(
                URL(url), json.dumps(payload).encode("ascii"), self._options.attempt_timeout_s
            )
        except AttemptFailed as error:
            return 0, str(error)
        endpoint.has_answered = True
        return status, raw[:2000].decode("utf-8", "replace")

    async def aclose(self) -> None:
        """Finish unloading and close all connections."""
        await asyncio.gather(*self._unloading)
        await self._connection.aclose()


def _affinity(request: ChatRequest) -> bytes:
    """Return what decides a request's favourite server: its system prompt and the beginning of its first other message.

    A conversation's turns, futures and candidates have that in common, and tasks differ in it.
    """
    messages = request.messages
    first = next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))
    opening = messages[first].content[:_AFFINITY_CHARACTERS] if first < len(messages) else ""
    return "\x1f".join([*(message.content for message in messages[:first]), opening]).encode("utf-8", "surrogatepass")
