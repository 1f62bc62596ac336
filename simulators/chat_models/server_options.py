"""How a chat-completions server is used: what it can do, how long to wait, how much to send at once."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from simulators.errors import ConfigurationError

_FILES_FOR_OTHERS = 64


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of `ChatServer`; the defaults suit any OpenAI-compatible server.

    What the server can do:
        `extensions`: it speaks vLLM's extensions (reply prefixes, stop strings kept in the text, adapters loaded at run time).
        `token_ids`: return the sampled tokens (needs `extensions`). `logprobs`: return their log-probabilities too; "raw" where
        the server reports them before temperature (vLLM's default; they are then kept only at temperature 1, where the two are
        the same), "processed" where it runs with --logprobs-mode processed_logprobs.
        `send_seed`: pass each draw's seed on; off for vLLM on a CPU, where a seeded request can stop the whole engine.
        `json_schema`: "auto" asks for schema-conforming output and stops asking when the server refuses; "never" never asks.
    Access: `api_key_env` names the environment variable that holds the API key (None: no key is sent).
    Time, in seconds:
        `deadline_s`: what one call may spend at servers and in back-off together. Waiting for our own limit does not count:
        with ten thousand conversations open a call may wait long before it is ever sent.
        `attempt_timeout_s`: what one attempt of a call may take. `connect_timeout_s`: to reach the server.
        `first_backoff_s`: the wait after a first failure; it doubles from there.
    Load:
        `max_attempts`: attempts a call may make that the provider may charge for (refusals like 429 cost nothing).
        `initial_concurrency`, `max_concurrency`: calls under way at one server, at first and at most; the limit adapts.

    Raises:
        ConfigurationError: for a value out of its range.
    """

    api_key_env: str | None = None
    extensions: bool = False
    token_ids: bool = False
    logprobs: Literal["none", "raw", "processed"] = "none"
    send_seed: bool = True
    json_schema: Literal["auto", "never"] = "auto"
    deadline_s: float = 600.0
    attempt_timeout_s: float = 300.0
    connect_timeout_s: float = 10.0
    first_backoff_s: float = 0.5
    max_attempts: int = 6
    initial_concurrency: int = 512
    max_concurrency: int = 1024

    def __post_init__(self) -> None:
        for name in ("deadline_s", "attempt_timeout_s", "connect_timeout_s", "first_backoff_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigurationError(f"server: {name} is {getattr(self, name)}; it must be above 0")
        for name in ("max_attempts", "initial_concurrency", "max_concurrency"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"server: {name} is {getattr(self, name)}; it must be at least 1")
        if self.logprobs not in ("none", "raw", "processed"):
            raise ConfigurationError(f'server: logprobs is {self.logprobs!r}; it must be "none", "raw" or "processed"')
        if self.json_schema not in ("auto", "never"):
            raise ConfigurationError(f'server: json_schema is {self.json_schema!r}; it must be "auto" or "never"')
        if self.token_ids and not self.extensions:
            raise ConfigurationError("server: token_ids needs a vLLM server; set extensions to true if it is one")
        if self.logprobs != "none" and not self.token_ids:
            raise ConfigurationError("server: logprobs are kept per token id; set token_ids to true as well")

    def request_headers(self) -> dict[str, str]:
        """Return the headers of every request. The API key is read here and kept nowhere else.

        Raises:
            ConfigurationError: the environment variable with the API key is not set, or cannot be a key.
        """
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self.api_key_env is not None:
            key = os.environ.get(self.api_key_env, "").strip()
            if not key:
                raise ConfigurationError(
                    f"the API key is missing: set the environment variable {self.api_key_env} (api_key_env names it)"
                )
            if not (key.isascii() and key.isprintable()):
                raise ConfigurationError(f"the environment variable {self.api_key_env} holds characters no API key has")
            headers["Authorization"] = f"Bearer {key}"
        return headers

    def concurrency_cap(self, servers: int) -> int:
        """Return the most calls that may be under way at one of `servers` servers: every call needs a file descriptor."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return self.max_concurrency
        return max(1, min(self.max_concurrency, (soft - _FILES_FOR_OTHERS) // servers))


def api_urls(base_urls: str | Sequence[str]) -> list[tuple[str, str]]:
    """Return (API URL, server root) of each base URL: `http://host:8000` becomes (`http://host:8000/v1`, `http://host:8000`).

    Raises:
        ConfigurationError: there is none, one is named twice, is no http(s) URL, or holds a password.
    """
    urls: list[tuple[str, str]] = []
    for given in [base_urls] if isinstance(base_urls, str) else base_urls:
        url = given.strip().rstrip("/")
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
            shown = f"base URL {given.split('?')[0].split('#')[0].rpartition('@')[2]!r}"  # what follows may hold a key
            raise ConfigurationError(f"{shown} is not one; it looks like http://host:8000 or https://host/v1, without a query")
        if parts.username is not None:
            raise ConfigurationError(
                f"the base URL for {host} holds a password; put the key into an environment variable instead"
            )
        url = url if parts.path else url + "/v1"
        urls.append((url, url.removesuffix("/v1")))
    if not urls:
        raise ConfigurationError("no base URL is given; name at least one server")
    if len(set(urls)) < len(urls):
        raise ConfigurationError("a base URL is given twice; name each server once")
    return urls
