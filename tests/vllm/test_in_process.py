"""VLLMChatModel with the real engine and the embedded model on this CPU."""

import asyncio
import importlib.util
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from simulators.chat_models.protocol import ChatRequest, Completion, SamplingSettings
from simulators.chat_models.vllm_model import VLLMChatModel
from simulators.conversation import Message, Usage
from simulators.errors import ConfigurationError, ContextOverflow
from tests.chat_models.rows import row

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (make venv-vllm)"),
]

GREEDY = SamplingSettings(max_tokens=12, temperature=0.0)
LONG_PROMPT = "You keep the diary of a lighthouse. " + " ".join(f"On day {day} the sea was calm." for day in range(1, 21))


ENDLESS = SamplingSettings(max_tokens=60, temperature=2.0)  # so hot that hardly a reply ends by itself


def ask(text: str = "Name three colours.", sampling: SamplingSettings = GREEDY, **settings: object) -> ChatRequest:
    return ChatRequest((Message("user", text),), sampling, **settings)  # type: ignore[arg-type]


def diary(text: str = "What was day 3 like?", sampling: SamplingSettings = GREEDY) -> ChatRequest:
    return ChatRequest((Message("system", LONG_PROMPT), Message("user", text)), sampling)


async def running(model: VLLMChatModel, request: ChatRequest) -> asyncio.Task[Completion]:
    """Return a call that the engine has begun to work on."""
    call = asyncio.create_task(one(model, request))
    await asyncio.sleep(0)
    await model.dispatcher.call(lambda: None)
    return call


async def one(model: VLLMChatModel, request: ChatRequest) -> Completion:
    (completion,) = await model.complete(request)
    return completion


async def test_a_completion_tells_tokens_logprobs_and_usage(model: VLLMChatModel) -> None:
    completion = await one(model, ask(sampling=SamplingSettings(max_tokens=8)))
    assert completion.token_ids is not None and completion.logprobs is not None
    assert model.template.tokenizer.decode(completion.token_ids, skip_special_tokens=True) == completion.text
    assert len(completion.logprobs) == len(completion.token_ids) == completion.usage.completion_tokens
    assert all(value <= 0 for value in completion.logprobs) and min(completion.logprobs) < 0
    assert completion.usage.prompt_tokens > 10 and completion.finish_reason == "length"
    assert completion.weights_version == model.weights_version


async def test_logprobs_are_at_the_given_temperature_and_after_the_cuts(model: VLLMChatModel) -> None:
    cold = SamplingSettings(max_tokens=1, temperature=0.2)
    sharp = await one(model, ask("The capital of France is", cold))
    greedy = await one(model, ask("The capital of France is", replace(cold, temperature=0.0)))
    if sharp.token_ids == greedy.token_ids:  # nearly always: it is five times as sharp
        assert sharp.logprobs and greedy.logprobs and sharp.logprobs[0] > greedy.logprobs[0]
    certain = await one(model, ask(sampling=SamplingSettings(max_tokens=2, top_k=1)))
    assert certain.logprobs == pytest.approx((0.0, 0.0), abs=1e-6)


async def test_requests_made_together_reach_the_engine_together(model: VLLMChatModel, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []
    admit = model.engine.admit
    monkeypatch.setattr(model.engine, "admit", lambda rows: (batches.append(len(rows)), admit(rows)))
    await asyncio.gather(*(model.complete(ask(f"Say {number}.")) for number in range(8)))
    assert [size for size in batches if size] == [8]


async def test_a_later_request_joins_the_running_ones(model: VLLMChatModel) -> None:
    long = await running(model, ask("Tell a story.", replace(ENDLESS, max_tokens=400)))
    await one(model, ask(sampling=replace(GREEDY, max_tokens=2)))
    assert not long.done()
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long
    unfinished = await model.dispatcher.call(model.engine.engine.has_unfinished_requests)
    assert unfinished is False  # given up by its caller, given up by the engine


async def test_settings_that_vllm_does_not_have_are_a_clear_error(model: VLLMChatModel) -> None:
    with pytest.raises(ConfigurationError, match=r"sampling settings.*temperature"):
        await model.complete(ask(sampling=SamplingSettings(temperature=2.5)))


async def test_stop_strings_are_cut_or_kept(model: VLLMChatModel) -> None:
    stopping = SamplingSettings(max_tokens=30, temperature=0.0, stop=(" ",))
    cut = await one(model, ask(sampling=stopping, reply_prefix="The first"))
    kept = await one(model, ask(sampling=replace(stopping, include_stop=True), reply_prefix="The first"))
    assert cut.finish_reason == kept.finish_reason == "stop"
    assert cut.text.startswith("The first") and not cut.text.endswith(" ")
    assert kept.text.startswith("The first") and kept.text.endswith(" ")


async def test_a_reply_prefix_heads_text_and_tokens(model: VLLMChatModel) -> None:
    completion = await one(model, ask(reply_prefix="What is the"))
    prefix = model.template.tokenizer("What is the", add_special_tokens=False).input_ids
    assert completion.text.startswith("What is the") and len(completion.text) > len("What is the")
    assert completion.token_ids is not None and list(completion.token_ids[: len(prefix)]) == prefix
    assert completion.logprobs is not None and set(completion.logprobs[: len(prefix)]) == {0.0}
    assert len(completion.logprobs) == len(completion.token_ids)
    assert model.template.tokenizer.decode(completion.token_ids, skip_special_tokens=True) == completion.text


async def test_samples_of_one_request_differ_and_their_prompt_is_counted_once(model: VLLMChatModel) -> None:
    completions = await model.complete(ask(sampling=SamplingSettings(max_tokens=20), n=4))
    assert len({completion.text for completion in completions}) > 1
    assert completions[0].usage.prompt_tokens > 0
    assert [completion.usage.prompt_tokens for completion in completions[1:]] == [0, 0, 0]


async def test_greedy_samples_are_drawn_once(model: VLLMChatModel) -> None:
    first, second = await model.complete(ask(n=2))
    assert first.text == second.text and second.usage == Usage()


async def test_seeds_are_sent_only_when_asked_for(model: VLLMChatModel, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = SamplingSettings(max_tokens=20)
    assert model.engine.sampling(row(sampling, 5)).seed is None
    monkeypatch.setattr(model.engine, "_send_seed", True)
    first, again, other = [(await one(model, ask(sampling=sampling, seed=seed))).text for seed in (5, 5, 2**40)]
    assert first == again != other


async def test_the_engine_does_not_start_from_the_same_seed_every_time(model: VLLMChatModel) -> None:
    assert model.engine.engine.model_config.seed != 0  # vLLM's default


async def test_a_json_schema_is_obeyed_and_a_nonsensical_one_left_out(model: VLLMChatModel) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    sampling = SamplingSettings(max_tokens=60, temperature=0.0)
    obeying = await one(model, ask("Your favourite colour?", sampling, json_schema=schema))
    assert json.loads(obeying.text)["colour"] in ("red", "blue")
    free = await one(model, ask(json_schema={"type": "no such type"}))
    assert free.text and not free.text.startswith("{")


async def test_cached_tokens_are_counted(model: VLLMChatModel) -> None:
    first = await one(model, diary("What was day 3 like?"))
    second = await one(model, diary("What was day 12 like?"))
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens > 0.8 * first.usage.prompt_tokens


async def test_a_conversation_that_is_too_long_overflows(model: VLLMChatModel) -> None:
    with pytest.raises(ContextOverflow, match="no room"):
        await model.complete(ask("word " * 2000))
    nearly_full = await one(model, ask("word " * 980, SamplingSettings(max_tokens=500)))
    assert nearly_full.usage.prompt_tokens + nearly_full.usage.completion_tokens <= 1024


async def test_a_new_adapter_is_seen_by_the_next_sample(model: VLLMChatModel, adapters: tuple[Path, Path]) -> None:
    texts, versions = [], []
    for adapter in (None, *adapters):
        if adapter is not None:
            version = await model.load_adapter("policy", adapter)
            assert version == model.weights_version
        completion = await one(model, diary())
        assert completion.usage.cached_tokens == 0  # keys and values of other weights are not met again
        hot = await one(model, diary())
        assert hot.usage.cached_tokens > 0 and hot.logprobs and completion.logprobs
        assert hot.logprobs[0] == pytest.approx(completion.logprobs[0], abs=0.1)
        texts.append(completion.text)
        versions.append(completion.weights_version)
    assert len(set(texts)) == len(set(versions)) == 3


async def test_other_weights_under_the_same_name_and_version_are_seen_too(
    model: VLLMChatModel, adapters: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "policy"
    texts = []
    for adapter in adapters:
        shutil.copytree(adapter, folder, dirs_exist_ok=True)
        await model.load_adapter("policy", folder, version="latest")
        completion = await one(model, diary())
        assert completion.usage.cached_tokens == 0
        texts.append(completion.text)
    assert texts[0] != texts[1]


async def test_calls_under_way_keep_their_adapter_and_it_goes_after_them(
    model: VLLMChatModel, adapters: tuple[Path, Path]
) -> None:
    first, second = adapters
    old = await model.load_adapter("policy", first)
    number = model.dispatcher.adapter.lora_int_id
    long = await running(model, ask("Tell a story.", ENDLESS))
    new = await model.load_adapter("policy", second)
    after = await one(model, ask())
    assert (await long).weights_version == old and after.weights_version == new != old
    loaded = await model.dispatcher.call(model.engine.engine.list_loras)
    assert model.dispatcher.adapter.lora_int_id in loaded
    assert number not in loaded


async def test_an_adapter_that_is_not_there_is_refused(model: VLLMChatModel, tmp_path: Path) -> None:
    before = model.weights_version
    with pytest.raises(ConfigurationError, match="LoRA adapter"):
        await model.load_adapter("policy", tmp_path / "nothing")
    assert model.weights_version == before
    assert (await one(model, ask())).text


async def test_new_weights_are_seen_and_those_under_way_finish_with_the_old(
    model: VLLMChatModel, embedded_folder: str, tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    weights = load_file(Path(embedded_folder) / "model.safetensors")
    torch.manual_seed(0)
    name = next(each for each in weights if each.endswith("layers.5.mlp.down_proj.weight"))
    weights[name] = torch.randn_like(weights[name].float()).to(weights[name].dtype)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    before = await one(model, diary())
    long = await running(model, ask("Tell a story.", ENDLESS))
    update = asyncio.create_task(model.reload_weights(tmp_path))
    assert (await long).weights_version == before.weights_version
    version = await update
    changed = await one(model, diary())
    assert changed.text != before.text and changed.usage.cached_tokens == 0
    assert changed.weights_version == version != before.weights_version
    assert await model.reload_weights(embedded_folder) == before.weights_version
    back = await one(model, diary())
    assert back.usage.cached_tokens == 0 and back.logprobs and before.logprobs
    assert back.logprobs[0] == pytest.approx(before.logprobs[0], abs=0.1)
    with pytest.raises(ConfigurationError, match="no weights"):
        await model.reload_weights(tmp_path / "nothing")


def test_a_model_that_cannot_be_loaded_is_a_clear_error(tiny_model_folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_model_folder, broken)
    config = json.loads((broken / "config.json").read_text()) | {"architectures": ["NoSuchModel"], "model_type": "nosuch"}
    (broken / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigurationError, match="cannot load"):
        VLLMChatModel(str(broken))
