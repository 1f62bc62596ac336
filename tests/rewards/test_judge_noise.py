"""Judge noise: figures with known values, failures counted, no call shared."""

import json
import math

import pytest

from collab.rewards.judge import interactivity_judge
from collab.rewards.judge_noise import RatedTranscript, intraclass_correlation, measure_judge_noise, summarise
from collab.tasks.task import Task
from simulators.chat_models.scripted import ScriptedChatModel
from tests.rewards.conversations import says

TRANSCRIPTS = [(says(text), Task(text, "g")) for text in ("good", "bad", "fair")]
RATINGS = {"good": 5, "fair": 3, "bad": 1}


def judge_that(rate):
    requests = []

    def script(request, rng):
        requests.append(request)
        said = request.messages[1].content
        base = next(value for word, value in RATINGS.items() if word in said)
        lowest_first = request.messages[0].content.index("1: ") < request.messages[0].content.index("5: ")
        value = rate(base, rng, lowest_first)
        return "no idea" if value is None else json.dumps({"rating": min(5, max(1, value))})

    return interactivity_judge(ScriptedChatModel(script)), requests


async def test_a_judge_without_noise():
    judge, requests = judge_that(lambda base, rng, lowest_first: base)
    noise = await measure_judge_noise(judge, TRANSCRIPTS, repeats=4)
    assert (noise.repeat_sd, noise.position_shift, noise.position_gap, noise.failed, noise.asked) == (0.0, 0.0, 0.0, 0, 24)
    assert noise.between_sd == pytest.approx(0.5)
    assert noise.reliability == pytest.approx(1.0)
    assert len({request.seed for request in requests}) == 4
    assert len(requests) == 24


async def test_position_noise_is_told_from_repeat_noise():
    judge, _ = judge_that(lambda base, rng, lowest_first: 3 if lowest_first else 4)
    noise = await measure_judge_noise(judge, TRANSCRIPTS, repeats=3)
    assert noise.repeat_sd == 0.0
    assert noise.position_shift == pytest.approx(-0.25)
    assert noise.position_gap == pytest.approx(0.25)
    assert noise.between_sd == 0.0


async def test_a_judge_that_guesses_has_no_reliability():
    judge, _ = judge_that(lambda base, rng, lowest_first: rng.randint(1, 5))
    noise = await measure_judge_noise(judge, TRANSCRIPTS * 5, repeats=10)
    assert noise.repeat_sd > 0.2
    assert noise.reliability < 0.3


async def test_failed_ratings_are_counted_and_left_out():
    judge, _ = judge_that(lambda base, rng, lowest_first: base if lowest_first else None)
    noise = await measure_judge_noise(judge, TRANSCRIPTS, repeats=2)
    assert (noise.failed, noise.asked) == (6, 12)
    assert noise.position_shift is None
    assert noise.repeat_sd == 0.0
    assert all(each.highest_first == (None, None) for each in noise.transcripts)


def test_figures_by_hand():
    rated = [RatedTranscript("a", (0.0, 0.5), (0.5, 1.0)), RatedTranscript("b", (1.0, 1.0), (None, 0.5))]
    noise = summarise("j", rated, asked=8)
    assert noise.failed == 1
    assert noise.repeat_sd == pytest.approx(math.sqrt((0.125 + 0.125 + 0) / 3))
    assert noise.position_shift == pytest.approx(((0.25 - 0.75) + (1.0 - 0.5)) / 2)
    assert noise.position_gap == pytest.approx(0.5)


def test_intraclass_correlation_by_hand():
    # mean squares: between 2 * (0.25**2 * 2) / 1 = 0.25, within (4 * 0.25**2) / 2 = 0.125
    assert intraclass_correlation([[0.0, 0.5], [0.5, 1.0]]) == pytest.approx((0.25 - 0.125) / (0.25 + 0.125))
    assert intraclass_correlation([[0.5, 0.5], [0.5, 0.5]]) is None
    assert intraclass_correlation([[0.5], [0.7]]) is None
    assert intraclass_correlation([[0.5, 0.6], []]) is None


async def test_too_little_to_measure():
    judge, _ = judge_that(lambda base, rng, lowest_first: base)
    with pytest.raises(ValueError, match="2 or more repeats"):
        await measure_judge_noise(judge, TRANSCRIPTS, repeats=1)
    with pytest.raises(ValueError, match="a transcript"):
        await measure_judge_noise(judge, [], repeats=3)
