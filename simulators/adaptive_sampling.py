"""How many futures a ranking needs: stop sampling a candidate once it is clear that it is not the best.

All k candidates get `min_futures` futures. After that there are looks, at growing numbers of futures (each about 1.4 times the
last, so that there are few, and few waits for the slowest future). At each look a candidate that is still in is compared with the
leader by paired differences d_s = reward(candidate, s) - reward(leader, s) over the futures that both have; future s has the same
seeds for all candidates (common random numbers). A candidate is out when

    mean(d) + t * sqrt(v / n) < 0,      t = the 1 - (1 - confidence) / looks quantile of Student's t

which corrects for the number of looks (Bonferroni). It does not correct for the number of candidates: the best one meets one
leader a look, and what is lost in practice is far below 1 - confidence (measured in the tests, near ties included). Few
differences give a poor variance, and rewards of 0 and 1 often none at all; so v is moderated (Smyth 2004): the candidate's own
variance, and the mean variance of all candidates' differences counting for `_PRIOR_DEGREES` more degrees of freedom. Sampling
ends when one candidate is left, at `max_futures`, or at a total limit.

A mean over an adaptively chosen number of futures is biased: a candidate goes on while it looks good. So the *reported* mean of
a candidate is over its first `min_futures` futures, which are always drawn; the others decide the ranking only.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist

Play = Callable[[int, int], Awaitable[float | None]]
"""Plays future s of candidate c (both from 0) and returns its reward; None where it earned none. Seeds must not depend on c,
except for the policy's own draws."""

_PRIOR_DEGREES = 4
_GROWTH = 1.4


@dataclass(frozen=True, slots=True)
class CandidateRewards:
    """One candidate's rewards in the order of its futures (None: no reward). `reported` counts those that may be reported."""

    rewards: tuple[float | None, ...]
    reported: int

    @property
    def mean(self) -> float | None:
        """The unbiased mean: over the first `reported` futures that earned a reward; None without any."""
        values = self._values(self.rewards[: self.reported])
        return math.fsum(values) / len(values) if values else None

    @property
    def std_error(self) -> float | None:
        """The standard error of `mean`; None below two rewards."""
        values = self._values(self.rewards[: self.reported])
        if len(values) < 2:
            return None
        mean = math.fsum(values) / len(values)
        return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))

    @property
    def ranking_mean(self) -> float | None:
        """The mean over every future drawn; it ranks, and is biased by how many were drawn."""
        values = self._values(self.rewards)
        return math.fsum(values) / len(values) if values else None

    @staticmethod
    def _values(rewards: Sequence[float | None]) -> list[float]:
        return [reward for reward in rewards if reward is not None]


@dataclass(frozen=True, slots=True)
class AdaptiveRanking:
    """What was sampled and what follows from it.

    `ranking` holds the candidates that earned any reward, best first: those that stayed in longest, by `ranking_mean` among
    equals. `decided` says that one was left at the confidence asked for.
    """

    candidates: tuple[CandidateRewards, ...]
    ranking: tuple[int, ...]
    decided: bool

    @property
    def futures(self) -> int:
        """Futures drawn over all candidates."""
        return sum(len(candidate.rewards) for candidate in self.candidates)


@dataclass(frozen=True, slots=True)
class AdaptiveSampling:
    """Settings, see the module. `max_total` limits the futures of all candidates of one ranking together (None: no limit).

    Raises:
        ValueError: for fewer than 2 `min_futures`, a maximum below them, or a confidence outside (0, 1).
    """

    min_futures: int = 3
    max_futures: int = 12
    confidence: float = 0.95
    max_total: int | None = None

    def __post_init__(self) -> None:
        if self.min_futures < 2:
            raise ValueError(f"min_futures is {self.min_futures}; comparing candidates needs at least 2")
        if self.max_futures < self.min_futures:
            raise ValueError(f"max_futures is {self.max_futures}; it must be at least min_futures ({self.min_futures})")
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence is {self.confidence}; it must lie in (0, 1)")

    @property
    def looks(self) -> list[int]:
        """Numbers of futures at which candidates are compared; none at `max_futures`, where nothing more would be drawn."""
        looks = []
        futures = self.min_futures
        while futures < self.max_futures:
            looks.append(futures)
            futures = max(futures + 1, round(futures * _GROWTH))
        return looks

    async def rank(self, play: Play, num_candidates: int) -> AdaptiveRanking:
        """Sample futures of `num_candidates` candidates until their best is known. Whatever `play` raises ends it."""
        rewards: list[list[float | None]] = [[] for _ in range(num_candidates)]
        remaining = list(range(num_candidates))
        first = await asyncio.gather(
            *(play(candidate, index) for index in range(self.min_futures) for candidate in range(num_candidates))
        )
        for position, reward in enumerate(first):
            rewards[position % num_candidates].append(reward)
        for seen, following in pairwise((*self.looks, self.max_futures)):
            remaining = self._still_in(rewards, remaining)
            more = [(candidate, index) for index in range(seen, following) for candidate in remaining]
            if len(remaining) < 2 or (self.max_total is not None and sum(map(len, rewards)) + len(more) > self.max_total):
                break
            for (candidate, _), reward in zip(more, await asyncio.gather(*(play(*each) for each in more)), strict=True):
                rewards[candidate].append(reward)
        candidates = tuple(CandidateRewards(tuple(each), self.min_futures) for each in rewards)
        ranked = [index for index, candidate in enumerate(candidates) if candidate.ranking_mean is not None]
        ranked.sort(key=lambda index: (index in remaining, len(rewards[index]), candidates[index].ranking_mean), reverse=True)
        return AdaptiveRanking(candidates, tuple(ranked), decided=len(remaining) == 1 < num_candidates)

    def _still_in(self, rewards: list[list[float | None]], remaining: list[int]) -> list[int]:
        """Return which of the remaining candidates may still be the best."""
        if len(remaining) < 2:
            return remaining
        means = {index: _mean_or_none(rewards[index]) for index in remaining}
        leader = max(remaining, key=lambda index: (means[index] is not None, means[index] or 0.0))
        differences = {
            index: [
                own - best
                for own, best in zip(rewards[index], rewards[leader], strict=True)
                if own is not None and best is not None
            ]
            for index in remaining
            if index != leader
        }
        variances = {index: _variance(each) for index, each in differences.items() if len(each) > 1}
        if not variances:
            return remaining
        prior = math.fsum(variances.values()) / len(variances)
        staying = {leader}
        for index, each in differences.items():
            if index not in variances:
                staying.add(index)
                continue
            own_degrees = len(each) - 1
            degrees = own_degrees + _PRIOR_DEGREES
            variance = (own_degrees * variances[index] + _PRIOR_DEGREES * prior) / degrees
            critical = t_quantile(1 - (1 - self.confidence) / len(self.looks), degrees)
            if math.fsum(each) / len(each) + critical * math.sqrt(variance / len(each)) >= 0:
                staying.add(index)
        return [index for index in remaining if index in staying]


def t_quantile(probability: float, degrees: int) -> float:
    """Return a quantile of Student's t by the Cornish-Fisher expansion (Abramowitz and Stegun 26.7.5).

    Within 1% for 4 degrees of freedom and more, and probabilities from 0.5 to 0.9995.
    """
    z = NormalDist().inv_cdf(probability)
    n = float(degrees)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )


def _mean_or_none(rewards: Sequence[float | None]) -> float | None:
    values = [reward for reward in rewards if reward is not None]
    return math.fsum(values) / len(values) if values else None


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
