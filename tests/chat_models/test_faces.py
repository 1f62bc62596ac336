"""The same failures through the chat model of a build and through the sampler of a trainer: one engine, one outcome."""

import asyncio
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from collab.training import vllm_sampling
from collab.training.online_settings import RolloutSettings
from collab.training.token_sampling import make_sampler
from collab.training.turn_tokens import TurnTokens
from simulators.chat_models import vllm_model
from simulators.chat_models.protocol import ChatRequest, SamplingSettings
from simulators.chat_models.template_model import TemplateChatModel
from simulators.chat_models.token_sampler import TokenSampler
from simulators.chat_models.transformers_model import TransformersChatModel
from simulators.chat_models.vllm_engine import VLLMEngine
from simulators.errors import ContextOverflow
from tests.chat_models.straw import StrawLLMEngine
from tests.scripted_environment import says
from tests.training.tiny_models import tiny_tokenizer

Ask = Callable[[str, int, int], Awaitable[Any]]
FACES = ["building", "training"]


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def chat(model: TemplateChatModel) -> Ask:
    return lambda text, tokens, seed: model.complete(ChatRequest(says(text), SamplingSettings(tokens), seed=seed))


def tokens_only(sampler: TokenSampler, tokens: TurnTokens) -> Ask:
    return lambda text, count, seed: sampler.sample(tokens.prompt_ids(says(text)), SamplingSettings(count), seed)


def trainer_of(weights: Any) -> Any:
    accelerator = SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=None), autocast=nullcontext, device=torch.device("cpu"))
    return SimpleNamespace(model=weights, accelerator=accelerator, is_fsdp_enabled=False)


@pytest.fixture
async def transformers(face: str, weights: Any) -> AsyncIterator[Ask]:
    """Transformers as a build and as a trainer have it."""
    if face == "building":
        model = TransformersChatModel(weights, tiny_tokenizer(), name="tiny", max_batch_size=4)
        yield chat(model)
        await model.aclose()
        return
    tokens, thread = TurnTokens.of(tiny_tokenizer(), weights), ThreadPoolExecutor(1)
    sampler, _ = make_sampler(trainer_of(weights), RolloutSettings(max_batch_size=4), tokens, thread)
    yield tokens_only(sampler, tokens)
    await sampler.aclose()
    thread.shutdown()


@pytest.fixture
def straw(monkeypatch: pytest.MonkeyPatch) -> StrawLLMEngine:
    engine = StrawLLMEngine()
    monkeypatch.setattr(VLLMEngine, "sampling", lambda self, row, with_schema=False: row.request.sampling)
    monkeypatch.setattr(vllm_model, "build_engine", lambda model, options: engine)
    generation = SimpleNamespace(mode="colocate", llm=SimpleNamespace(llm_engine=engine))
    monkeypatch.setattr(vllm_sampling, "_generation", lambda *arguments: generation)
    monkeypatch.setattr(importlib.import_module("trl.import_utils"), "is_vllm_available", lambda: True)
    return engine


@pytest.fixture
async def vllm(face: str, straw: StrawLLMEngine, weights: Any, tiny_model_folder: Any) -> AsyncIterator[Ask]:
    """vLLM in process as a build and as a trainer have it."""
    if face == "building":
        model = vllm_model.VLLMChatModel(str(tiny_model_folder))
        yield chat(model)
        await model.aclose()
        return
    tokens, thread = TurnTokens.of(tiny_tokenizer(), weights), ThreadPoolExecutor(1)
    sampler, _ = make_sampler(trainer_of(weights), RolloutSettings(engine="vllm_in_process"), tokens, thread)
    yield tokens_only(sampler, tokens)
    await sampler.aclose()
    thread.shutdown()


async def outcomes(ask: Ask, *texts: str) -> list[str]:
    results = await asyncio.gather(*(ask(text, 4, seed) for seed, text in enumerate(texts)), return_exceptions=True)
    return [type(result).__name__ if isinstance(result, BaseException) else "ok" for result in results]


async def test_out_of_memory_halves_and_answers_everyone(
    transformers: Ask, weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = weights.forward

    def small(*arguments: Any, **named: Any) -> Any:
        if len(named["input_ids"]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(*arguments, **named)

    monkeypatch.setattr(weights, "forward", small)
    assert await outcomes(transformers, *"abcd") == ["ok"] * 4


async def test_a_bad_request_fails_alone(transformers: Ask, weights: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = weights.forward

    def poisoned(*arguments: Any, **named: Any) -> Any:
        if (named["input_ids"] == tiny_tokenizer()("X").input_ids[0]).any():
            raise RuntimeError("index out of range")
        return forward(*arguments, **named)

    monkeypatch.setattr(weights, "forward", poisoned)
    assert await outcomes(transformers, "a", "X", "c") == ["ok", "ChatModelError", "ok"]


async def test_vllm_refuses_a_bad_request_alone(vllm: Ask, straw: StrawLLMEngine) -> None:
    straw.POISON = tiny_tokenizer()("X").input_ids[0]
    assert await outcomes(vllm, "a", "X", "c") == ["ok", "RequestRefused", "ok"]


async def test_vllm_gives_a_request_up(vllm: Ask, straw: StrawLLMEngine) -> None:
    straw.finish_reason = "abort"
    assert await outcomes(vllm, "a") == ["ChatModelError"]


async def test_a_cancelled_request_leaves_the_others_alone(transformers: Ask, vllm: Ask) -> None:
    for ask in (transformers, vllm):
        calls = [asyncio.ensure_future(ask(text, 30, seed)) for seed, text in enumerate("abc")]
        await asyncio.sleep(0)
        calls[1].cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result).__name__ for result in results] == ["list", "CancelledError", "list"]
        assert await outcomes(ask, "d") == ["ok"]


async def test_a_dead_engine_says_so_to_everyone_from_then_on(vllm: Ask, straw: StrawLLMEngine) -> None:
    straw.broken = True
    for _ in range(2):
        assert await outcomes(vllm, "a", "b") == ["ConfigurationError"] * 2
    assert not any(event.startswith("step") for event in straw.events)


async def test_a_conversation_without_room_overflows_and_says_how_long_it_is(transformers: Ask, vllm: Ask) -> None:
    for ask in (transformers, vllm):
        assert await outcomes(ask, "a", "long " * 200) == ["ok", "ContextOverflow"]
        with pytest.raises(ContextOverflow, match=r"has 10\d\d tokens and .* takes 512; no room for a reply"):
            await ask("long " * 200, 4, 0)
