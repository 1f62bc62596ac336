"""The wire format of chat completions: requests written, responses read, nothing sent.

The extensions are vLLM's: `continue_final_message` carries on a reply that was started for the model, `return_token_ids` returns
the sampled tokens, `top_k` and `include_stop_str_in_output` are sampling parameters. Servers without them reject or ignore them,
so they are only used where the server is said to have them.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Set
from typing import Any

from simulators.chat_models.protocol import ChatRequest, Completion, FinishReason
from simulators.chat_models.reply_text import ReplyText, read_reply, well_formed
from simulators.chat_models.server_errors import AttemptFailed
from simulators.chat_models.server_options import ServerOptions
from simulators.conversation import Message, ToolCall, Usage
from simulators.errors import ChatModelError

_SEED_RANGE = 2**31  # what every server takes; the prompt tells equal seeds of different draws apart

_COMPLAINTS = {
    "max_tokens": re.compile("max_completion_tokens"),
    "seed": re.compile(r"\bseed\b", re.IGNORECASE),
    "logprobs": re.compile("logprobs", re.IGNORECASE),
}


def request_body(request: ChatRequest, model: str, options: ServerOptions, left_out: Set[str]) -> bytes:
    """Return the JSON body of one request, without the parts that are left out (see `refused_part`)."""
    sampling = request.sampling
    messages = [_written(message) if message.role == "system" else json.dumps(message.as_dict()) for message in request.messages]
    body: dict[str, Any] = {
        "model": model,
        "max_completion_tokens" if "max_tokens" in left_out else "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if request.n > 1:
        body["n"] = request.n
    if "seed" not in left_out:
        body["seed"] = request.seed % _SEED_RANGE
    if sampling.stop:
        body["stop"] = list(sampling.stop)
        if sampling.include_stop:
            body["include_stop_str_in_output"] = True
    if sampling.top_k or options.extensions:  # vLLM takes a missing top_k from the model's own generation config
        body["top_k"] = sampling.top_k
    if "logprobs" not in left_out:
        body["logprobs"] = True
    if options.token_ids:
        body["return_token_ids"] = True
    if request.tools:
        body |= {"tools": list(request.tools), "tool_choice": "auto"}
    if request.reply_prefix:
        messages.append(json.dumps({"role": "assistant", "content": request.reply_prefix}))
        body["add_generation_prompt"] = False
        body["continue_final_message"] = True
    if request.json_schema is not None and "response_format" not in left_out:
        schema = {"name": "reply", "schema": request.json_schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return f'{{"messages": [{", ".join(messages)}], {json.dumps(body)[1:]}'.encode("ascii")


def refused_part(complaint: str, left_out: Set[str], request: ChatRequest) -> str | None:
    """Return which part of a request a refusal is about, where the call can do without it; None where it cannot.

    Newer APIs have another name for max_tokens; a schema may be what is wrong whatever the server says.
    """
    for part, named in _COMPLAINTS.items():
        if part not in left_out and named.search(complaint):
            return part
    return "response_format" if request.json_schema is not None and "response_format" not in left_out else None


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
            reply = _reply(choice["message"], request, usage)
            completions.append(
                Completion(
                    text=reply.text,
                    finish_reason=_finish_reason(choice),
                    token_ids=token_ids,
                    logprobs=logprobs,
                    usage=Usage(usage.prompt_tokens, sampled, usage.cached_tokens) if position == 0 else Usage(0, sampled, 0),
                    model=str(data.get("model") or ""),
                    weights_version=weights_version,
                    latency_s=latency_s,
                    reasoning=reply.reasoning,
                    tool_calls=reply.tool_calls,
                )
            )
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise AttemptFailed(f"the response is not one of chat completions ({type(error).__name__}: {error})"[:300]) from None
    if not completions:
        raise AttemptFailed("the response holds no choices")
    return completions


def _reply(message: dict[str, Any], request: ChatRequest, usage: Usage) -> ReplyText:
    """Tell visible text, reasoning and calls of tools apart, which servers do more or less of themselves.

    A model may really say nothing (its first token ends the reply): then tokens were counted. A server's slip has none.
    """
    text, thought = _content(message.get("content"))
    thought = thought or message.get("reasoning_content") or message.get("reasoning") or ""
    calls = tuple(_call(call["function"], call.get("id")) for call in message.get("tool_calls") or ())
    if not (text or thought or calls):
        text = _content(message.get("refusal"))[0]
        if not text and not usage.completion_tokens:
            raise AttemptFailed("the reply is empty")
    if not isinstance(thought, str):
        raise TypeError("reasoning is not a text")
    read = read_reply(request.reply_prefix + text, tools=bool(request.tools) and not calls)
    reasoning = "\n\n".join(part for part in (well_formed(thought), read.reasoning) if part)
    return ReplyText(read.text, reasoning, calls or read.tool_calls)


def _content(content: Any) -> tuple[str, str]:
    """Return text and reasoning of a message's content: a text, nothing, or a list of parts."""
    if isinstance(content, list):
        texts = [part.get("text") or "" for part in content if part["type"] in ("text", "output_text")]
        thoughts = [part.get("thinking") or part.get("reasoning") or "" for part in content]
        return "".join(texts), "".join(_content(thought)[0] for thought in thoughts)
    if content is not None and not isinstance(content, str):
        raise TypeError("content is not a text")
    return content or "", ""


def _call(function: dict[str, Any], number: Any) -> ToolCall:
    arguments = function.get("arguments") or {}
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(str(function.get("name") or ""), well_formed(written), str(number or ""))


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
