"""What a rollout samples from a model in training: exact log-probabilities of current weights, own seeds."""

import asyncio
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from simulators.chat_models.dispatcher import Dispatcher
from simulators.chat_models.protocol import SamplingSettings
from simulators.chat_models.token_sampler import SampledReply
from simulators.chat_models.transformers_decoding import TransformersEngine
from simulators.errors import ContextOverflow
from tests.training.runs import wait
from tests.training.tiny_models import tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
EOS = frozenset({TOKENIZER.eos_token_id})
SAMPLING = SamplingSettings(max_tokens=6)


def sampler(model: Any = None, precision: Any = nullcontext, max_batch_size: int = 64) -> Dispatcher:
    model = model or tiny_model(TOKENIZER)
    model.eval()
    return Dispatcher(TransformersEngine(model, TOKENIZER, EOS, precision), "the policy", 512, max_batch_size)


def ids(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False).input_ids


def sample(engine: Dispatcher, *prompts: str, seed: int = 1, n: int = 1) -> list[list[SampledReply]]:
    async def run() -> list[list[SampledReply]]:
        try:
            return await asyncio.gather(
                *(engine.sample(ids(prompt), SAMPLING, seed + index, n) for index, prompt in enumerate(prompts))
            )
        finally:
            await engine.aclose()

    return wait(run())


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_the_model_at_the_temperature(temperature: float) -> None:
    """trl#4159: log-probabilities at temperatures other than 1."""
    model = tiny_model(TOKENIZER)
    engine = sampler(model)

    async def run() -> SampledReply:
        (reply,) = await engine.sample(ids("Pick."), SamplingSettings(max_tokens=6, temperature=temperature), 3)
        await engine.aclose()
        return reply

    reply = wait(run())
    whole = torch.tensor([[*ids("Pick."), *reply.token_ids]])
    with torch.no_grad():
        logprobs = (model(input_ids=whole).logits[0] / temperature).log_softmax(-1)
    places = range(len(ids("Pick.")) - 1, whole.size(1) - 1)
    expected = [logprobs[place, token].item() for place, token in zip(places, reply.token_ids, strict=True)]
    assert reply.logprobs == pytest.approx(expected, abs=1e-4)


def test_a_sample_does_not_depend_on_its_neighbours() -> None:
    alone = [sample(sampler(), prompt, seed=1 + index)[0] for index, prompt in enumerate(["a", "a longer one", "b?"])]
    together = sample(sampler(), "a", "a longer one", "b?")
    assert [reply.token_ids for (reply,) in together] == [reply.token_ids for (reply,) in alone]


def test_equal_requests_with_other_seeds_differ() -> None:
    (replies,) = sample(sampler(), "a", n=8)
    assert len({reply.token_ids for reply in replies}) > 4


def test_the_prefix_is_returned_and_was_not_sampled() -> None:
    engine = sampler()

    async def run() -> SampledReply:
        (reply,) = await engine.sample(ids("a"), SAMPLING, 1, prefix_ids=ids("Wh"))
        await engine.aclose()
        return reply

    reply = wait(run())
    assert reply.text.startswith("Wh") and reply.logprobs[:2] == (0.0, 0.0) and reply.logprobs[2] < 0
    assert engine.counts.tokens == len(reply.token_ids) - 2 and engine.counts.busy_s > 0


def test_new_weights_are_used_at_once() -> None:
    model = tiny_model(TOKENIZER)
    before = sample(sampler(model), "a", n=4)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
    assert sample(sampler(model), "a", n=4) != before


def test_a_prompt_that_leaves_no_room_overflows() -> None:
    with pytest.raises(ContextOverflow, match="the policy takes 512"):
        sample(sampler(), "x" * 512)


def test_decoding_runs_in_the_trainers_precision() -> None:
    entered = []

    @contextmanager
    def precision():
        entered.append(True)
        yield

    sample(sampler(precision=precision), "a")
    assert entered
