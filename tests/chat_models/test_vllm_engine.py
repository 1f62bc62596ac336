"""vLLM in this process, with an engine of straw in its place; the real one is in tests/vllm."""

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from simulators.chat_models import vllm_model
from simulators.chat_models.protocol import ChatRequest, Completion, SamplingSettings
from simulators.chat_models.vllm_engine import VLLMEngine
from simulators.chat_models.vllm_model import VLLMChatModel, VLLMOptions
from simulators.conversation import Usage
from simulators.errors import ConfigurationError
from tests.chat_models.straw import StrawLLMEngine
from tests.scripted_environment import says


@dataclass(frozen=True)
class LoRARequest:
    """vLLM's, which is not installed here."""

    lora_name: str
    lora_int_id: int
    lora_path: str


@pytest.fixture
def straw(monkeypatch: pytest.MonkeyPatch) -> StrawLLMEngine:
    engine = StrawLLMEngine()
    monkeypatch.setattr(VLLMEngine, "sampling", lambda self, row, with_schema=False: row.request.sampling)
    monkeypatch.setattr(vllm_model, "build_engine", lambda model, options: engine)

    def request(self: VLLMChatModel, name: str, path: Path, version: str) -> LoRARequest:
        number = next(self._adapter_numbers)
        return LoRARequest(f"{name}-{version}-{number}", number, str(path) if path.name != "nothing" else "")

    monkeypatch.setattr(VLLMChatModel, "_request", request)
    return engine


@pytest.fixture
async def model(straw: StrawLLMEngine, tiny_model_folder: Path) -> AsyncIterator[VLLMChatModel]:
    made = VLLMChatModel(str(tiny_model_folder), VLLMOptions(adapters=True))
    yield made
    await made.aclose()
    assert straw.events[-1] == "shutdown"


async def ask(model: VLLMChatModel, steps: int = 2, **rest: Any) -> Completion:
    (completion,) = await model.complete(ChatRequest(says("hi"), SamplingSettings(steps), **rest))
    return completion


async def test_a_completion_tells_tokens_logprobs_and_usage(model: VLLMChatModel) -> None:
    prompt = len(model.template.prompt_ids(says("hi")))
    completion = await ask(model, reply_prefix="Oh ")
    assert (completion.text, completion.token_ids) == ("Oh AB", (*model.template.encode("Oh "), 65, 66))
    assert completion.logprobs == (0.0, 0.0, 0.0, -0.5, -0.25)
    assert completion.usage == Usage(prompt + 3, 2, 2)
    assert (completion.finish_reason, completion.model) == ("length", model.name)


async def test_samples_of_one_request_count_the_prompt_once(model: VLLMChatModel) -> None:
    first, second = await model.complete(ChatRequest(says("hi"), SamplingSettings(2), n=2))
    assert first.usage.prompt_tokens > 0 and second.usage == Usage(0, 2, 0)
    first, second = await model.complete(ChatRequest(says("hi"), SamplingSettings(2, 0.0), n=2))
    assert first.text == second.text and second.usage == Usage()


async def test_a_schema_that_vllm_refuses_is_left_out(
    model: VLLMChatModel, straw: StrawLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[bool] = []
    add = straw.add_request

    def sampling(self: VLLMEngine, row: Any, with_schema: bool = False) -> Any:
        tried.append(with_schema)
        return row.request.sampling

    def refusing(number: str, *arguments: Any, **named: Any) -> None:
        if tried[-1]:
            raise ValueError("no such schema")
        add(number, *arguments, **named)

    monkeypatch.setattr(VLLMEngine, "sampling", sampling)
    monkeypatch.setattr(straw, "add_request", refusing)
    assert (await ask(model, json_schema={"type": "no such type"})).text == "AB"
    assert tried == [True, False]


async def test_calls_under_way_keep_their_adapter_which_goes_after_them(model: VLLMChatModel, straw: StrawLLMEngine) -> None:
    base = model.weights_version
    old = await model.load_adapter("policy", "a", version="1")
    straw.held = True
    under_way = asyncio.create_task(ask(model))
    await asyncio.sleep(0)
    new = await model.load_adapter("policy", "a", version="2")
    assert set(straw.loras) == {1, 2} and not under_way.done()
    straw.held = False
    after, before = await ask(model), await under_way
    assert (before.weights_version, after.weights_version) == (old, new) == (f"{base}+policy-1", f"{base}+policy-2")
    assert [adapter.lora_int_id for adapter in straw.adapters.values()] == [1, 2]
    assert set(straw.loras) == {2}


async def test_an_adapter_that_cannot_be_loaded_changes_nothing(model: VLLMChatModel, straw: StrawLLMEngine) -> None:
    before = model.weights_version
    with pytest.raises(ConfigurationError, match="cannot load the LoRA adapter in : no adapter"):
        await model.load_adapter("policy", "nothing", version="1")
    assert model.weights_version == before and (await ask(model)).text


async def test_new_weights_wait_for_what_was_asked_before(
    model: VLLMChatModel, straw: StrawLLMEngine, tiny_model_folder: Path
) -> None:
    old = model.weights_version
    under_way = asyncio.create_task(ask(model, 3))
    await asyncio.sleep(0)
    update = asyncio.create_task(model.reload_weights(tiny_model_folder, version="new"))
    await asyncio.sleep(0)
    later = asyncio.create_task(ask(model, 1))
    assert (await under_way).weights_version == old
    assert (await later).weights_version == await update == "new"
    assert straw.events == ["step 1"] * 3 + [f"reload_weights {tiny_model_folder}", "reset", "step 1"]
    with pytest.raises(ConfigurationError, match="no weights to load"):
        await model.reload_weights(tiny_model_folder / "nothing")


async def test_weights_that_are_not_taken_end_the_engine(
    model: VLLMChatModel, straw: StrawLLMEngine, tiny_model_folder: Path
) -> None:
    straw.broken = True
    for attempt in (model.reload_weights(tiny_model_folder), ask(model)):
        with pytest.raises(ConfigurationError, match=r"did not take the weights in .*: shapes differ"):
            await attempt


async def test_a_model_may_start_with_an_adapter(straw: StrawLLMEngine, tiny_model_folder: Path) -> None:
    model = VLLMChatModel(str(tiny_model_folder), adapter="a")
    assert straw.loras == {1: "a"} and "+adapter-" in model.weights_version
    await ask(model)
    assert [adapter.lora_int_id for adapter in straw.adapters.values()] == [1]
    await model.aclose()


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_the_extra_is_named(tiny_model_folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"collab\[vllm\]"):
        VLLMChatModel(str(tiny_model_folder))


@pytest.mark.parametrize("wrong", [{"max_batch_size": 0}, {"context_tokens": 1}])
def test_options_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="vllm: "):
        VLLMOptions(**wrong)  # type: ignore[arg-type]
