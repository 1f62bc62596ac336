"""What a server's failure means: this run is misconfigured, this conversation is too long, or try again.

401, 402, 403, 404, 405, redirects, exhausted quota   ConfigurationError: no call of this run can succeed
400 about the context's length                        ContextOverflow: this conversation no longer fits
400, 413, 422 and other refusals                      ChatModelError: this request is not acceptable, again or not
408, 409, 425, 429, 5xx, broken connections, replies  AttemptFailed: try again, within the call's deadline
that cannot be read, time-outs
"""

from __future__ import annotations

import json
import re
from typing import Any

from simulators.chat_models.retry import retry_after_s
from simulators.errors import ChatModelError, CollabError, ConfigurationError, ContextOverflow

_EXCERPT_CHARACTERS = 300
_SPACES = re.compile(r"\s+")
_TOO_LONG = re.compile(
    r"context_length_exceeded|context (?:length|window|size)|maximum (?:input|model|sequence) length|max_model_len"
    r"|max_tokens too large|(?:prompt|input|request) (?:is |was )?too (?:long|large)|exceeds? the (?:available )?context"
    r"|too many (?:input |prompt )?tokens",
    re.IGNORECASE,
)


class AttemptFailed(Exception):
    """One attempt failed and another may succeed.

    `congested`: the endpoint has too much to do, so the limit on calls shrinks. `unreachable`: nobody answered there.
    `may_cost`: the provider may have charged for it (anything but a refusal before work began). `retry_after_s`: the wait the
    server asked for.
    """

    def __init__(
        self,
        reason: str,
        *,
        congested: bool = False,
        unreachable: bool = False,
        may_cost: bool = True,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(reason)
        self.congested = congested
        self.unreachable = unreachable
        self.may_cost = may_cost
        self.retry_after_s = retry_after_s


class RequestRefused(ChatModelError):
    """The server refused this request as it stands (400, 422); sending it again as it is cannot help."""


class ModelNotServed(ConfigurationError):
    """The server does not know the model (404); for a LoRA adapter that means it was restarted since."""


def error_of(status: int, body: bytes, retry_after: str | None, where: str, model: str) -> CollabError | AttemptFailed:
    """Return the error that a response other than 200 means. `where` is the server's URL."""
    code, said = _message(body)
    text = f"the server at {where} answered {status} ({said})" if said else f"the server at {where} answered {status}"
    if status in (401, 403):
        return ConfigurationError(f"{text}; check the API key and what it may use")
    if status == 402 or code == "insufficient_quota":
        return ConfigurationError(f"{text}; the account has no credit left")
    if status == 404:
        return ModelNotServed(f"{text}; it serves no model {model!r}, or no chat completions at that URL")
    if status == 405 or 300 <= status < 400:
        return ConfigurationError(f"{text}; that is not the base URL of an OpenAI-compatible server")
    if status in (429, 503, 529):
        return AttemptFailed(text, congested=True, may_cost=False, retry_after_s=retry_after_s(retry_after))
    if status in (408, 504):
        return AttemptFailed(text, congested=True, retry_after_s=retry_after_s(retry_after))
    if status in (409, 425) or status >= 500:
        return AttemptFailed(text, retry_after_s=retry_after_s(retry_after))
    if status in (400, 413, 422) and (code == "context_length_exceeded" or _TOO_LONG.search(said)):
        return ContextOverflow(text)
    return RequestRefused(text)


def _message(body: bytes) -> tuple[str, str]:
    """Return the error code and the first words of an error response, on one line."""
    text = body[:20_000].decode("utf-8", "replace")
    code = ""
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if isinstance(data, dict):
        error = data.get("error", data)
        if isinstance(error, dict):
            code = str(error.get("code") or error.get("type") or "")
            text = str(error.get("message") or error.get("detail") or text)
        elif isinstance(error, str):
            text = error
    return code, _SPACES.sub(" ", text).strip()[:_EXCERPT_CHARACTERS]
