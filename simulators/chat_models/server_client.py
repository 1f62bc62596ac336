"""The client that everything asked over HTTP goes through, chat completions and token ids alike.

A call is attempted until it is answered or its deadline is spent; what a failure means is decided in `server_errors`, where a
call goes in `endpoints`. A server that is not there when it is first called is a mistake in the configuration; one that was there
before is waited for.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from yarl import URL

from simulators.chat_models.concurrency_limit import AdaptiveLimit
from simulators.chat_models.connection import Connection
from simulators.chat_models.endpoints import Endpoint, EndpointPool
from simulators.chat_models.retry import backoff_s
from simulators.chat_models.server_errors import AttemptFailed, ModelNotServed, error_of
from simulators.chat_models.server_options import ServerOptions, api_urls
from simulators.errors import ChatModelError, ConfigurationError

Answer = TypeVar("Answer")
Attempt = Callable[[Endpoint, float], Awaitable[Answer]]
Recover = Callable[[Endpoint, ChatModelError | ModelNotServed], Awaitable[bool]]


class ServerClient:
    """See the module. `model` is the name in errors.

    Raises:
        ConfigurationError: a base URL is not one, or the API key's environment variable is not set.
    """

    def __init__(self, base_urls: str | Sequence[str], model: str, options: ServerOptions) -> None:
        self._options = options
        self._model = model
        urls = api_urls(base_urls)
        most = options.concurrency_cap(len(urls))
        endpoints = [Endpoint(url, root, AdaptiveLimit(options.initial_concurrency, most)) for url, root in urls]
        self.pool = EndpointPool(endpoints, patience_s=options.deadline_s)
        self.connection = Connection(options.request_headers(), options.connect_timeout_s, self.pool.reset)
        self._rng = random.Random()  # for back-off only: nothing that is sampled depends on it

    async def call(self, affinity: bytes, attempt: Attempt[Answer], recover: Recover | None = None) -> Answer:
        """Make attempts (endpoint, seconds left) until one is answered, the deadline is spent, or it makes no sense to go on.

        Calls with equal `affinity` go to the same server where they can. `recover` is told of a refusal, and returns True where
        it has changed what the next attempt sends.

        Raises:
            ConfigurationError, ContextOverflow, ChatModelError: see `server_errors`.
        """
        options, pool = self._options, self.pool
        failures = costly = 0
        spent_s = 0.0
        await self.connection.open()
        while True:
            endpoint = await pool.acquire(affinity, again=failures > 0)
            epoch = endpoint.limit.epoch
            started = time.monotonic()
            try:
                answer = await attempt(endpoint, min(options.attempt_timeout_s, options.deadline_s - spent_s))
                pool.note_answer(endpoint)
                return answer
            except AttemptFailed as error:
                failure = error
                if error.congested:
                    endpoint.limit.congested(epoch)
                pool.note_failure(endpoint, unreachable=error.unreachable, closed_s=error.retry_after_s)
            except (ChatModelError, ModelNotServed) as error:
                pool.note_answer(endpoint)
                if recover is None or not await recover(endpoint, error):
                    raise
                continue
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

    async def send(self, endpoint: Endpoint, url: str, body: bytes | None, timeout_s: float) -> Any:
        """Send one request (a GET without a body) and return the parsed JSON of a good response.

        Raises:
            AttemptFailed, ConfigurationError, ContextOverflow, ChatModelError: see `server_errors`.
        """
        try:
            status, raw, retry_after = await self.connection.send(URL(url), body, timeout_s)
        except AttemptFailed as error:
            if error.unreachable and not endpoint.has_answered:
                raise ConfigurationError(f"no server at {endpoint.url} ({error}); start it, or check the base URL") from None
            raise
        if status != 200:
            raise error_of(status, raw, retry_after, endpoint.url, self._model)
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            if not endpoint.answered and raw.lstrip()[:1] == b"<":
                raise ConfigurationError(
                    f"{endpoint.url} answers with a web page; check the base URL, which mostly ends in /v1"
                ) from None
            raise AttemptFailed(f"the response of {endpoint.url} is not valid JSON") from None

    async def administer(self, endpoint: Endpoint, url: str, payload: dict[str, Any]) -> tuple[int, str]:
        """Send an administrative request once; return (status, text), status 0 where no response came."""
        try:
            body = json.dumps(payload).encode("ascii")
            status, raw, _ = await self.connection.send(URL(url), body, self._options.attempt_timeout_s)
        except AttemptFailed as error:
            return 0, str(error)
        endpoint.has_answered = True
        return status, raw[:2000].decode("utf-8", "replace")

    async def aclose(self) -> None:
        """Close all connections."""
        await self.connection.aclose()
