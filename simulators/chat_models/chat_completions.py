"""The wire format of chat completions: requests written, responses read, nothing sent.

The extensions are vLLM's: `continue_final_message` carries on a reply that was started for the model, `return_token_ids` returns
the sampled tokens, `top_k` and `include_stop_str_in_output` are sampling parameters. Servers without them reject or ignore them,
so they are only used where the server is said to have them.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from simulators.chat_models.protocol import ChatRequest, Completion, FinishReason
from simulators.chat_models.server_errors import AttemptFailed
from simulators.conversation import Message, Usage
from simulators.errors import ChatModelError

_SEED_RANGE = 2**31  # what every server takes; the prompt tells equal seeds of different draws apart


def request_body(
    request: ChatRequest,
    model: str,
    *,
    n: int = 1,
    seed: int | None = None,
    with_schema: bool = False,
    extensions: bool = False,
    token_ids: bool = False,
    logprobs: bool = False,
    limit_name: str = "max_tokens",
) -> bytes:
    """Return the JSON body of one request. `seed` None sends none; `limit_name` is what the server calls max_tokens."""
    sampling = request.sampling
    messages = [_written(message) if message.role == "system" else json.dumps(message.as_dict()) for message in request.messages]
    body: dict[str, Any] = {
        "model": model,
        limit_name: sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if n > 1:
        body["n"] = n
    if seed is not None:
        body["seed"] = seed % _SEED_RANGE
    if sampling.stop:
        body["stop"] = list(sampling.stop)
        if sampling.include_stop:
            body["include_stop_str_in_output"] = True
    if sampling.top_k or extensions:  # vLLM takes a missing top_k from the model's own generation config
        body["top_k"] = sampling.top_k
    if logprobs:
        body["logprobs"] = True
    if token_ids:
        body["return_token_ids"] = True
    if request.reply_prefix:
        messages.append(json.dumps({"role": "assistant", "content": request.reply_prefix}))
        body["add_generation_prompt"] = False
        body["continue_final_message"] = True
    if with_schema and request.json_schema is not None:
        schema = {"name": "reply", "schema": request.json_schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return f'{{"messages": [{", ".join(messages)}], {json.dumps(body)[1:]}'.encode("ascii")


@functools.lru_cache(maxsize=256)
def _written(message: Message) -> str:
    """Return a system message as JSON: long, and the same for every turn, future and candidate of a task."""
    return json.dumps(message.as_dict())


def prefix_token_ids(prompt_with_prefix: list[int] | None, prompt: list[int]) -> list[int] | None:
    """Return the tokens of a reply prefix: what the prompt with it has beyond the one without; None where it is no extension."""
    if not prompt_with_prefix or prompt_with_prefix[: len(prompt)] != prompt:
        return None
    return prompt_with_prefix[len(prompt) :]


def read_response(
    data: Any, request: ChatRequest, weights_version: str, latency_s: float, prompt: list[int] | None, keep_logprobs: bool
) -> list[Completion]:
    """Return the completions of a parsed response, in the order of their indices; at most `request.n`, maybe fewer.

    `prompt` are the prompt's token ids without the reply prefix, where one was sent and tokens were asked for. A server counts
    tokens for all samples together: the prompt is put down to the first, the completion's tokens are split evenly where the
    samples' own counts are unknown.

    Raises:
        AttemptFailed: the response is not one of chat completions, or holds no reply at all.
        ChatModelError: the server's content filter cut a reply.
    """
    try:
        choices = sorted(data["choices"], key=lambda choice: choice.get("index", 0))[: request.n]
        usage = _usage(data.get("usage"))
        head = _head(data, request, prompt)
        completions = []
        for position, choice in enumerate(choices):
            token_ids, logprobs = _tokens(choice, head, keep_logprobs)
            share = usage.completion_tokens // len(choices) + (position < usage.completion_tokens % len(choices))
            sampled = len(token_ids) - len(head or ()) if token_ids is not None else share
            completions.append(
                Completion(
                    text=request.reply_prefix + _text(choice, usage),
                    finish_reason=_finish_reason(choice),
                    token_ids=token_ids,
                    logprobs=logprobs,
                    usage=Usage(usage.prompt_tokens, sampled, usage.cached_tokens) if position == 0 else Usage(0, sampled, 0),
                    model=str(data.get("model") or ""),
                    weights_version=weights_version,
                    latency_s=latency_s,
                )
            )
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise AttemptFailed(f"the response is not one of chat completions ({type(error).__name__}: {error})"[:300]) from None
    if not completions:
        raise AttemptFailed("the response holds no choices")
    return completions


def _text(choice: dict[str, Any], usage: Usage) -> str:
    message = choice["message"]
    text = message.get("content")
    if text is None:
        text = message.get("refusal") or ""
    if not isinstance(text, str):
        raise TypeError("content is not a text")
    # A model may really say nothing (its first token ends the reply): then tokens were counted. A server's slip has none.
    if not text and not usage.completion_tokens:
        raise AttemptFailed("the reply is empty")
    return text


def _finish_reason(choice: dict[str, Any]) -> FinishReason:
    reason = choice.get("finish_reason")
    if reason == "content_filter":
        raise ChatModelError("the server's content filter cut the reply")
    return "length" if reason == "length" else "stop"


def _usage(data: dict[str, Any] | None) -> Usage:
    if not data:
        return Usage()
    details = data.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens") or 0
    return Usage(int(data.get("prompt_tokens") or 0), int(data.get("completion_tokens") or 0), int(cached))


def _head(data: dict[str, Any], request: ChatRequest, prompt: list[int] | None) -> list[int] | None:
    """Return the reply prefix's token ids: [] without a prefix, None where they are unknown."""
    if not request.reply_prefix:
        return []
    return None if prompt is None else prefix_token_ids(data.get("prompt_token_ids"), prompt)


def _tokens(
    choice: dict[str, Any], head: list[int] | None, keep_logprobs: bool
) -> tuple[tuple[int, ...] | None, tuple[float, ...] | None]:
    """Return token ids and log-probs of one choice, both with the reply prefix's tokens; None each where unknown."""
    sampled = choice.get("token_ids")
    if sampled is None or head is None:
        return None, None
    token_ids = (*head, *sampled)
    content = (choice.get("logprobs") or {}).get("content") if keep_logprobs else None
    if content is None or len(content) != len(sampled):
        return token_ids, None
    return token_ids, (*(0.0 for _ in head), *(float(entry["logprob"]) for entry in content))
