"""Requests that arrive together are decoded together, and what befalls one is not the others' affair."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from simulators.chat_models.protocol import SamplingSettings
from simulators.chat_models.transformers_model import TransformersChatModel
from simulators.errors import ChatModelError
from tests.chat_models.requests import CONVERSATIONS, GREEDY, asked, one, together, without_clock
from tests.scripted_environment import says
from tests.training.tiny_models import tiny_tokenizer


async def test_requests_that_arrive_together_are_decoded_together(
    model: TransformersChatModel, forwards: list[tuple[int, int]]
) -> None:
    await together(model, [asked(conversation, SamplingSettings(4)) for conversation in CONVERSATIONS])
    longest = max(len(model.template.prompt_ids(conversation)) for conversation in CONVERSATIONS)
    assert forwards == [(4, longest), (4, 1), (4, 1), (4, 1)]


async def test_equal_prompts_are_read_once_and_finished_rows_leave(
    model: TransformersChatModel, forwards: list[tuple[int, int]]
) -> None:
    long, short = asked(sampling=SamplingSettings(5), n=3), asked(sampling=SamplingSettings(2), seed=9, n=2)
    await together(model, [long, short])
    assert forwards == [(1, len(model.template.prompt_ids(CONVERSATIONS[0]))), (5, 1), (3, 1), (3, 1), (3, 1)]


async def test_a_batch_is_not_larger_than_it_may_be(weights: Any, forwards: list[tuple[int, int]]) -> None:
    model = TransformersChatModel(weights, tiny_tokenizer(), name="tiny", max_batch_size=3)
    requests = [asked(says(f"say {number}"), SamplingSettings(2), seed=number) for number in range(7)]
    completions = await together(model, requests)
    assert max(rows for rows, _ in forwards) == 3
    many = await model.complete(asked(sampling=SamplingSettings(2), n=8))
    assert len({completion.token_ids for completion in many}) > 1
    assert max(rows for rows, _ in forwards) == 3
    await model.aclose()
    assert len(completions) == 7


async def test_a_later_request_joins_between_two_steps_and_finishes_first(
    model: TransformersChatModel, weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, short = asked(CONVERSATIONS[3], SamplingSettings(40, 0.0)), asked(sampling=SamplingSettings(3, 0.0))
    alone = [await one(model, request) for request in (long, short)]
    loop, started, asked_again = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    forward, rows = weights.forward, []

    def watched(*arguments: Any, **named: Any) -> Any:
        rows.append(len(named["input_ids"]))
        if len(rows) == 5:
            loop.call_soon_threadsafe(started.set)
            assert asked_again.wait(10)
        return forward(*arguments, **named)

    monkeypatch.setattr(weights, "forward", watched)
    first = asyncio.create_task(one(model, long))
    await started.wait()
    second = asyncio.create_task(one(model, short))
    await asyncio.sleep(0)
    asked_again.set()
    joined = await second
    assert not first.done()
    assert [without_clock(each) for each in (await first, joined)] == [without_clock(each) for each in alone]
    assert rows == [1] * 6 + [2] * 2 + [1] * (40 - 7)  # five of the long one, the short one's prompt, and on


@pytest.mark.parametrize("limit", [1, 2, 5])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_nobody_can_tell_from_its_reply_whom_it_met_on_the_way(
    model: TransformersChatModel, weights: Any, limit: int, temperature: float
) -> None:
    requests = [
        asked(says("say " + "it again " * (number % 5)), SamplingSettings(2 + 7 * number % 11, temperature), seed=number, n=2)
        for number in range(9)
    ]
    alone = [completion for request in requests for completion in await model.complete(request)]
    crowded = TransformersChatModel(weights, tiny_tokenizer(), name="tiny", max_batch_size=limit)
    met = await together(crowded, requests)
    await crowded.aclose()
    assert [without_clock(completion) for completion in met] == [without_clock(completion) for completion in alone]


async def test_padding_goes_with_the_row_that_needed_it(
    model: TransformersChatModel, weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, widths = weights.forward, []

    def watched(*arguments: Any, **named: Any) -> Any:
        widths.append(named["attention_mask"].shape[1])
        return forward(*arguments, **named)

    monkeypatch.setattr(weights, "forward", watched)
    await together(model, [asked(CONVERSATIONS[3], SamplingSettings(3)), asked(sampling=SamplingSettings(6))])
    long, short = (len(model.template.prompt_ids(CONVERSATIONS[index])) for index in (3, 0))
    assert widths == [long, long + 1, long + 2, short + 3, short + 4, short + 5]


async def test_caches_that_cannot_be_shifted_are_left_to_finish() -> None:
    """Layers with a sliding window: a new row waits until the running ones are done, and nothing changes for any."""
    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=16, initializer_range=0.5, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=None,
    )  # fmt: skip
    model = TransformersChatModel(MistralForCausalLM(config).eval(), tokenizer, name="tiny", max_batch_size=2)
    requests = [asked(says("say " * (1 + number)), SamplingSettings(2 + number, 0.0)) for number in range(5)]
    alone = [await one(model, request) for request in requests]
    met = await together(model, requests)
    await model.aclose()
    assert [without_clock(completion) for completion in met] == [without_clock(completion) for completion in alone]


@pytest.fixture
def poisoned(weights: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes the model fail on whatever has an X in it."""
    forward = weights.forward
    poison = tiny_tokenizer()("X").input_ids[0]

    def failing(*arguments: Any, **named: Any) -> Any:
        if (named["input_ids"] == poison).any():
            raise RuntimeError("index out of range\nand a long story")
        return forward(*arguments, **named)

    return lambda: monkeypatch.setattr(weights, "forward", failing)


async def test_a_request_that_cannot_be_decoded_fails_alone(model: TransformersChatModel, poisoned: Callable[[], None]) -> None:
    good = [asked(conversation) for conversation in CONVERSATIONS[:2]]
    before = await together(model, good)
    poisoned()
    results = await asyncio.gather(*map(model.complete, [good[0], asked(says("X")), good[1]]), return_exceptions=True)
    assert isinstance(results[1], ChatModelError)
    assert str(results[1]) == "tiny failed to decode: index out of range"
    answered = [result[0] for result in (results[0], results[2]) if not isinstance(result, BaseException)]
    assert [without_clock(completion) for completion in answered] == [without_clock(completion) for completion in before]


async def test_logits_that_are_not_numbers_are_an_error_and_no_text(model: TransformersChatModel, weights: Any) -> None:
    with torch.no_grad():
        weights.lm_head.weight.fill_(float("nan"))
    for sampling in (GREEDY, SamplingSettings(4), SamplingSettings(4, top_p=0.5)):
        with pytest.raises(ChatModelError, match="logits are not numbers"):
            await model.complete(asked(sampling=sampling))


async def test_too_little_memory_makes_the_batches_smaller(
    model: TransformersChatModel, weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [asked(conversation, SamplingSettings(6), seed=1) for conversation in CONVERSATIONS]
    before = await together(model, requests)
    forward = weights.forward
    sizes: list[int] = []

    def small(*arguments: Any, **named: Any) -> Any:
        rows, tokens = named["input_ids"].shape
        sizes.append(rows)
        if rows > 2 and tokens == 1:  # it fails late: what had been sampled must not stay
            raise torch.OutOfMemoryError("no memory")
        return forward(*arguments, **named)

    monkeypatch.setattr(weights, "forward", small)
    after = await together(model, requests)
    assert [without_clock(completion) for completion in after] == [without_clock(completion) for completion in before]
    assert sizes[:2] == [4, 4] and max(sizes[2:]) == 2
    await together(model, requests)
    assert max(sizes[2:]) == 2  # and it is remembered


async def test_who_gave_up_is_not_decoded(weights: Any, forwards: list[tuple[int, int]]) -> None:
    model = TransformersChatModel(weights, tiny_tokenizer(), name="tiny", max_batch_size=1)
    calls = [asyncio.create_task(model.complete(asked(says(str(number)), SamplingSettings(1)))) for number in range(3)]
    await asyncio.sleep(0)
    calls[1].cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await model.aclose()
    assert len(forwards) == 2


async def test_closing_ends_every_request(weights: Any) -> None:
    model = TransformersChatModel(weights, tiny_tokenizer(), name="tiny", max_batch_size=1)
    calls = [asyncio.create_task(model.complete(asked(says(str(number)), SamplingSettings(40)))) for number in range(3)]
    await asyncio.sleep(0.005)  # the first is being decoded
    await model.aclose()
    async with asyncio.timeout(5):
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results[1:])


def test_one_model_serves_one_event_loop_after_another(weights: Any) -> None:
    model = TransformersChatModel(weights, tiny_tokenizer(), name="tiny")

    async def leave_one_behind() -> None:
        task = asyncio.create_task(model.complete(asked(CONVERSATIONS[3])))
        await asyncio.sleep(0.002)
        assert not task.done()

    first = asyncio.run(one(model, asked()))
    asyncio.run(leave_one_behind())
    assert without_clock(asyncio.run(one(model, asked()))) == without_clock(first)
    asyncio.run(model.aclose())
