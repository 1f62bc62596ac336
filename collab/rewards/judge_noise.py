"""How much of a judge's rating is noise: the same transcripts, rated again and again.

Two sources. *Repeat* noise: the same prompt at temperature 0 with another seed (batching and kernels of a server do not always
agree with themselves). *Position* noise: the same rubric with its anchors listed in the other order. Both are set against how
much transcripts differ from each other: a judge that tells them apart no better than itself carries no signal.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from collab.rewards.component import ScoringError
from collab.rewards.judge import Judge
from collab.tasks.task import Task
from simulators.conversation import Conversation
from simulators.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class RatedTranscript:
    """The ratings of one transcript in [0, 1], by the order in which the anchors were listed; None where the judge failed."""

    task_id: str
    lowest_first: tuple[float | None, ...]
    highest_first: tuple[float | None, ...]

    @property
    def ratings(self) -> list[float]:
        return [rating for rating in (*self.lowest_first, *self.highest_first) if rating is not None]


@dataclass(frozen=True, slots=True)
class JudgeNoise:
    """What the ratings say. All figures are on the judge's [0, 1] scale; None where there are too few ratings to tell.

    `repeat_sd`: pooled standard deviation of repeats within transcript and order. `position_shift`: mean over transcripts of
    (rating with the lowest anchor first) - (rating with the highest first); `position_gap`: mean of its absolute value.
    `between_sd`: standard deviation of the transcripts' mean ratings. `reliability`: share of the variance of one rating that is
    between transcripts (ICC(1), one-way, anchors' orders taken together): 1 is no noise, 0 or less is no signal.
    """

    judge: str
    transcripts: tuple[RatedTranscript, ...]
    repeat_sd: float | None
    position_shift: float | None
    position_gap: float | None
    between_sd: float | None
    reliability: float | None
    failed: int
    asked: int


async def measure_judge_noise(judge: Judge, transcripts: Sequence[tuple[Conversation, Task]], repeats: int = 5) -> JudgeNoise:
    """Rate every transcript `repeats` times with the anchors in each order, 2 x `repeats` calls a transcript.

    A failed rating is counted and left out. The seeds differ, so a journal never gives one call's reply for another's.

    Raises:
        ValueError: for fewer than two repeats, or no transcript.
        ConfigurationError: as the judge does.
    """
    if repeats < 2 or not transcripts:
        raise ValueError(f"judge noise needs 2 or more repeats and a transcript, got {repeats} and {len(transcripts)}")

    async def rate(conversation: Conversation, task: Task, repeat: int, lowest_first: bool) -> float | None:
        variant = judge.variant(derive_seed("judge noise", repeat), lowest_first)
        try:
            return await variant.score(conversation, task)
        except ScoringError:
            return None

    async def rate_all(conversation: Conversation, task: Task) -> RatedTranscript:
        ratings = await asyncio.gather(
            *(rate(conversation, task, repeat, order) for order in (True, False) for repeat in range(repeats))
        )
        return RatedTranscript(task.id, tuple(ratings[:repeats]), tuple(ratings[repeats:]))

    rated = await asyncio.gather(*(rate_all(conversation, task) for conversation, task in transcripts))
    return summarise(judge.name, rated, asked=2 * repeats * len(transcripts))


def summarise(name: str, rated: Sequence[RatedTranscript], asked: int) -> JudgeNoise:
    """Return the figures for ratings that were already made."""
    shifts = [
        _mean(known(transcript.lowest_first)) - _mean(known(transcript.highest_first))
        for transcript in rated
        if known(transcript.lowest_first) and known(transcript.highest_first)
    ]
    means = [_mean(transcript.ratings) for transcript in rated if transcript.ratings]
    made = sum(len(transcript.ratings) for transcript in rated)
    return JudgeNoise(
        judge=name,
        transcripts=tuple(rated),
        repeat_sd=_pooled_sd(
            [known(each) for transcript in rated for each in (transcript.lowest_first, transcript.highest_first)]
        ),
        position_shift=_mean(shifts) if shifts else None,
        position_gap=_mean([abs(shift) for shift in shifts]) if shifts else None,
        between_sd=statistics.stdev(means) if len(means) > 1 else None,
        reliability=intraclass_correlation([transcript.ratings for transcript in rated]),
        failed=asked - made,
        asked=asked,
    )


def known(ratings: Sequence[float | None]) -> list[float]:
    """Return the ratings that were given."""
    return [rating for rating in ratings if rating is not None]


def intraclass_correlation(groups: Sequence[Sequence[float]]) -> float | None:
    """Return ICC(1) of ratings grouped by transcript (one-way analysis of variance, unequal group sizes allowed).

    None with fewer than two groups, no repeats, or no variance at all.
    """
    groups = [group for group in groups if group]
    total = sum(map(len, groups))
    if len(groups) < 2 or total <= len(groups):
        return None
    grand = math.fsum(rating for group in groups for rating in group) / total
    between = math.fsum(len(group) * (_mean(group) - grand) ** 2 for group in groups) / (len(groups) - 1)
    within = math.fsum((rating - _mean(group)) ** 2 for group in groups for rating in group) / (total - len(groups))
    size = (total - sum(len(group) ** 2 for group in groups) / total) / (len(groups) - 1)
    spread = between + (size - 1) * within
    return (between - within) / spread if spread else None


def _pooled_sd(groups: Sequence[Sequence[float]]) -> float | None:
    degrees = sum(len(group) - 1 for group in groups if len(group) > 1)
    if not degrees:
        return None
    return math.sqrt(math.fsum((rating - _mean(group)) ** 2 for group in groups if len(group) > 1 for rating in group) / degrees)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
