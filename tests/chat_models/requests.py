"""Requests for the tests of the in-process backend, and what of an answer must not depend on the company it was decoded in."""

import asyncio
from typing import Any

from simulators.chat_models.protocol import ChatRequest, Completion, SamplingSettings
from simulators.chat_models.transformers_model import TransformersChatModel
from simulators.conversation import Conversation, Message
from tests.scripted_environment import says

GREEDY = SamplingSettings(max_tokens=24, temperature=0)
CONVERSATIONS: list[Conversation] = [
    says("hi"),
    says("Write a label for my box.", "Where does it go?", "To 12 Oak Street."),
    (Message("system", "Be brief."), *says("Wann? Größe 😀")),
    says("a " * 40),
]


def asked(conversation: Conversation = CONVERSATIONS[0], sampling: SamplingSettings = GREEDY, **rest: Any) -> ChatRequest:
    return ChatRequest(conversation, sampling, **rest)


async def one(model: TransformersChatModel, request: ChatRequest) -> Completion:
    (completion,) = await model.complete(request)
    return completion


async def together(model: TransformersChatModel, requests: list[ChatRequest]) -> list[Completion]:
    return [completion for completions in await asyncio.gather(*map(model.complete, requests)) for completion in completions]


def without_clock(completion: Completion) -> tuple[Any, ...]:
    return (completion.text, completion.token_ids, completion.finish_reason, completion.usage)
