"""What the in-process backend samples, against plain forward passes, and where its replies end."""

import asyncio
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

from simulators.chat_models import transformers_decoding
from simulators.chat_models.protocol import Completion, SamplingSettings
from simulators.chat_models.transformers_decoding import Draw
from simulators.chat_models.transformers_model import TransformersChatModel
from simulators.errors import ContextOverflow
from tests.chat_models.requests import CONVERSATIONS, asked, one, together, without_clock
from tests.chat_models.rows import row
from tests.training.tiny_models import tiny_tokenizer


async def test_rows_of_a_batch_are_what_they_are_alone(model: TransformersChatModel) -> None:
    sampled = SamplingSettings(max_tokens=16, temperature=0.8, top_p=0.9)
    for requests in (
        [asked(conversation) for conversation in CONVERSATIONS],
        [asked(conversation, sampled, seed=7 * number) for number, conversation in enumerate(CONVERSATIONS)],
    ):
        alone = [await one(model, request) for request in requests]
        batch = await together(model, requests)
        assert [without_clock(completion) for completion in batch] == [without_clock(completion) for completion in alone]
        for first, second in zip(batch, alone, strict=True):
            assert first.logprobs == pytest.approx(second.logprobs, abs=1e-4)


async def test_padding_does_not_shift_absolute_positions() -> None:
    """Llama's positions are relative, and would not notice."""
    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=512, n_embd=32, n_layer=1, n_head=2, initializer_range=0.5,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    model = TransformersChatModel(GPT2LMHeadModel(config).eval(), tokenizer, name="tiny")
    requests = [asked(conversation) for conversation in CONVERSATIONS]
    alone = [await one(model, request) for request in requests]
    batch = await together(model, requests)
    await model.aclose()
    assert [without_clock(completion) for completion in batch] == [without_clock(completion) for completion in alone]


async def test_greedy_is_what_transformers_generates(model: TransformersChatModel, weights: Any) -> None:
    for conversation in CONVERSATIONS:
        prompt = model.template.prompt_ids(conversation)
        generated = weights.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, len(prompt) :].tolist()
        completion = await one(model, asked(conversation))
        assert list(completion.token_ids or ()) == generated


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0, 1.7])
async def test_log_probabilities_are_those_of_a_forward_pass(
    model: TransformersChatModel, weights: Any, temperature: float
) -> None:
    """At the sampling temperature (1 for greedy) and before any cut; 0 for the words that the reply was made to start with."""
    request = asked(CONVERSATIONS[1], SamplingSettings(12, temperature, top_k=40), seed=3, reply_prefix="What")
    completion = await one(model, request)
    assert completion.token_ids is not None and completion.logprobs is not None
    prompt = model.template.prompt_ids(request.messages)
    with torch.no_grad():
        logits = weights(torch.tensor([[*prompt, *completion.token_ids]])).logits[0, len(prompt) - 1 : -1]
    expected = (logits / (temperature or 1.0)).log_softmax(-1)[range(len(completion.token_ids)), completion.token_ids]
    prefix = len("What")  # a token a byte
    assert completion.logprobs[:prefix] == (0.0,) * prefix
    assert completion.logprobs[prefix:] == pytest.approx(expected[prefix:].tolist(), abs=1e-4)


async def test_a_seed_names_a_draw(model: TransformersChatModel) -> None:
    hot = SamplingSettings(max_tokens=16)
    first, again, other = await together(model, [asked(sampling=hot, seed=seed) for seed in (5, 5, 6)])
    assert first.token_ids == again.token_ids
    assert first.token_ids != other.token_ids
    three = await model.complete(asked(sampling=hot, seed=5, n=3))
    alone = await together(model, [asked(sampling=hot, seed=seed) for seed in (5, 6, 7)])
    assert [completion.text for completion in three] == [completion.text for completion in alone]
    assert len({completion.text for completion in three}) == 3


async def test_every_row_has_its_own_settings(model: TransformersChatModel) -> None:
    greedy, most_likely, hot, short = await together(
        model,
        [
            asked(),
            asked(sampling=SamplingSettings(24, 5.0, top_k=1), seed=1),
            asked(sampling=SamplingSettings(24, 5.0), seed=1),
            asked(sampling=SamplingSettings(3, 0.0)),
        ],
    )
    assert most_likely.token_ids == greedy.token_ids
    assert hot.token_ids != greedy.token_ids
    assert short.token_ids == (greedy.token_ids or ())[:3]
    assert (short.finish_reason, short.usage.completion_tokens) == ("length", 3)


def reference_cut(probabilities: list[float], top_k: int, top_p: float) -> dict[int, float]:
    """What may be drawn, and how often: top-k first, then the smallest set that reaches top-p of what is left."""
    order = sorted(range(len(probabilities)), key=lambda token: -probabilities[token])
    order = order[: top_k or len(order)]
    left = sum(probabilities[token] for token in order)
    kept: dict[int, float] = {}
    for token in order:
        if kept and sum(kept.values()) >= top_p * left and top_p < 1:
            break
        kept[token] = probabilities[token]
    total = sum(kept.values())
    return {token: value / total for token, value in kept.items()}


CUTS = [(0, 1.0), (3, 1.0), (0, 0.5), (0, 0.93), (4, 0.7), (1, 0.1), (12, 0.999)]


@pytest.mark.parametrize("redraws", [12, 0], ids=["by rejection", "sorted"])
@pytest.mark.parametrize(("top_k", "top_p"), CUTS)
def test_cuts_draw_what_a_reference_draws_and_as_often(
    monkeypatch: pytest.MonkeyPatch, redraws: int, top_k: int, top_p: float
) -> None:
    monkeypatch.setattr(transformers_decoding, "_REDRAWS", redraws)
    logits = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5, -2.0, -2.5, -3.0, -3.5])
    expected = reference_cut((logits / 0.8).softmax(-1).double().tolist(), top_k, top_p)
    draws = 1500
    rows = [Draw(row(SamplingSettings(1, 0.8, top_p, top_k), seed)) for seed in range(draws)]
    tokens, logprobs = transformers_decoding._sample(logits.repeat(draws, 1), rows)
    counts = Counter(tokens)
    assert set(counts) <= set(expected)
    for token, share in expected.items():
        assert counts[token] / draws == pytest.approx(share, abs=4.5 * (share * (1 - share) / draws) ** 0.5 + 1e-9)
    uncut = (logits / 0.8).log_softmax(-1)
    assert logprobs == pytest.approx(uncut[tokens].tolist(), abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-20, 20), min_size=1, max_size=30, unique=True),
    st.integers(0, 40),
    st.floats(0.01, 1.0),
    st.integers(0, 2**60),
    st.sampled_from([0, 12]),
)
def test_nothing_outside_a_cut_is_ever_drawn(logits: list[float], top_k: int, top_p: float, seed: int, redraws: int) -> None:
    probabilities = torch.tensor(logits).softmax(-1).double().tolist()
    slack = min(1.0, top_p + 1e-5)  # sums of float32 may fall on either side of the bound
    allowed = reference_cut(probabilities, top_k, slack)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers_decoding, "_REDRAWS", redraws)
        rows = [Draw(row(SamplingSettings(1, 1.0, top_p, top_k), seed + number)) for number in range(8)]
        tokens, _ = transformers_decoding._sample(torch.tensor(logits).repeat(8, 1), rows)
    least = min(probabilities[token] for token in allowed)
    assert all(probabilities[token] >= least - 1e-7 for token in tokens)


# ---------------------------------------------------------------- where a reply ends


async def test_stop_strings_end_a_reply(model: TransformersChatModel) -> None:
    whole = (await one(model, asked())).text
    stop = whole[9:12]  # longer than a token
    at = whole.index(stop)

    async def stopped(*stops: str, include: bool = False) -> Completion:
        return await one(model, asked(sampling=SamplingSettings(24, 0.0, stop=stops, include_stop=include)))

    cut = await stopped(stop)
    assert (cut.text, cut.finish_reason) == (whole[:at], "stop")
    kept = await stopped(stop, include=True)
    assert (kept.text, kept.finish_reason) == (whole[: at + len(stop)], "stop")
    assert kept.token_ids == cut.token_ids  # what was sampled, whatever is shown of it
    assert len(cut.token_ids or ()) == len(cut.logprobs or ()) == cut.usage.completion_tokens < 24
    assert (await stopped(stop, whole[5:7])).text == whole[: whole.index(whole[5:7])]  # the first that appears
    assert (await stopped("never said")).text == whole


async def test_the_end_token_ends_a_reply_and_is_kept_among_the_tokens(weights: Any) -> None:
    plain = TransformersChatModel(weights, tiny_tokenizer(), name="tiny")
    whole = await one(plain, asked())
    await plain.aclose()
    assert whole.token_ids is not None
    end = whole.token_ids[10]
    weights.generation_config.eos_token_id = [999, end]
    model = TransformersChatModel(weights, tiny_tokenizer(), name="tiny")
    completion = await one(model, asked())
    await model.aclose()
    place = whole.token_ids.index(end)
    assert completion.token_ids == whole.token_ids[: place + 1]
    assert completion.text == model.template.tokenizer.decode(whole.token_ids[:place])
    assert completion.finish_reason == "stop"


async def test_a_reply_starts_as_it_is_made_to(model: TransformersChatModel) -> None:
    request = asked(CONVERSATIONS[1], SamplingSettings(8, 0.0), reply_prefix="Größe? What is the")
    completion = await one(model, request)
    prefix_ids = tuple(model.template.tokenizer("Größe? What is the").input_ids)
    assert completion.text.startswith("Größe? What is the")
    assert completion.token_ids is not None
    assert completion.token_ids[: len(prefix_ids)] == prefix_ids
    assert len(completion.token_ids) == len(prefix_ids) + 8  # max_tokens counts what is sampled
    prompt_ids = model.template.prompt_ids(CONVERSATIONS[1])
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (len(prompt_ids) + len(prefix_ids), 8)
    free = await one(model, asked(CONVERSATIONS[1], SamplingSettings(8, 0.0)))
    assert completion.text != free.text


async def test_a_stop_string_in_the_given_start_stops_nothing(model: TransformersChatModel) -> None:
    completion = await one(model, asked(sampling=SamplingSettings(6, 0.0, stop=("?",)), reply_prefix="When? At"))
    assert completion.text.startswith("When? At")
    assert completion.usage.completion_tokens > 1


async def test_a_full_context_cuts_a_reply_and_refuses_a_longer_conversation(weights: Any) -> None:
    weights.config.max_position_embeddings = 60
    model = TransformersChatModel(weights, tiny_tokenizer(), name="tiny")
    prompt = len(model.template.prompt_ids(CONVERSATIONS[0]))
    completion = await one(model, asked(sampling=SamplingSettings(500, 0.0)))
    assert (completion.usage.completion_tokens, completion.finish_reason) == (60 - prompt, "length")
    fits = asked()
    results = await asyncio.gather(model.complete(fits), model.complete(asked(CONVERSATIONS[3])), return_exceptions=True)
    await model.aclose()
    assert not isinstance(results[0], BaseException)
    assert isinstance(results[1], ContextOverflow)
    assert "takes 60; no room for a reply" in str(results[1])
