"""Adaptive sampling on synthetic rankings with known means: how much it saves, what it loses, and that it reports no bias."""

import asyncio
import math
import random
import statistics

import pytest
from scipy.stats import t as student_t

from simulators.adaptive_sampling import AdaptiveSampling, CandidateRewards, t_quantile

CANDIDATES = 8


class Problem:
    """Candidates with known means. A future's reward = the candidate's mean + luck shared by all candidates + luck of its own."""

    def __init__(self, seed: int, spread: float) -> None:
        rng = random.Random(seed)
        self.means = [rng.gauss(0, spread) for _ in range(CANDIDATES)]
        self.best = max(range(CANDIDATES), key=self.means.__getitem__)
        shared = [rng.gauss(0, 0.5) for _ in range(24)]
        self.rewards = [[mean + luck + rng.gauss(0, 0.5) for luck in shared] for mean in self.means]

    async def play(self, candidate: int, future: int) -> float:
        return self.rewards[candidate][future]

    def fixed_choice(self, futures: int) -> int:
        return max(range(CANDIDATES), key=lambda candidate: sum(self.rewards[candidate][:futures]))


def z_score(values: list[float]) -> float:
    """How many standard errors the mean of independent values lies away from 0."""
    return statistics.fmean(values) / (statistics.stdev(values) / math.sqrt(len(values)))


async def test_at_equal_top_1_accuracy_it_needs_40_percent_fewer_futures_and_reports_no_bias() -> None:
    sampling = AdaptiveSampling(min_futures=3, max_futures=24)
    problems = [Problem(seed, spread=0.5) for seed in range(500)]
    futures = hits = fixed_hits = 0
    reported_errors, ranking_errors = [], []  # one a problem: its candidates share luck
    for problem in problems:
        result = await sampling.rank(problem.play, CANDIDATES)
        futures += result.futures
        hits += result.ranking[0] == problem.best
        fixed_hits += problem.fixed_choice(24) == problem.best
        pairs = list(zip(result.candidates, problem.means, strict=True))
        reported_errors.append(statistics.fmean(candidate.mean - mean for candidate, mean in pairs))
        ranking_errors.append(statistics.fmean(candidate.ranking_mean - mean for candidate, mean in pairs))
    assert hits >= fixed_hits - 5  # of 500
    assert futures <= 0.6 * 24 * CANDIDATES * len(problems)
    assert abs(z_score(reported_errors)) < 3
    drift = [ranking - reported for ranking, reported in zip(ranking_errors, reported_errors, strict=True)]
    assert z_score(drift) < -3  # the mean over all futures is biased, which is why it is not reported


async def test_the_reported_mean_is_the_one_a_fixed_number_of_futures_gives() -> None:
    problem = Problem(1, spread=0.5)
    adaptive = await AdaptiveSampling(3, 24).rank(problem.play, CANDIDATES)
    fixed = await AdaptiveSampling(3, 3).rank(problem.play, CANDIDATES)
    assert [each.mean for each in adaptive.candidates] == [each.mean for each in fixed.candidates]
    assert [each.std_error for each in adaptive.candidates] == [each.std_error for each in fixed.candidates]
    assert adaptive.futures > fixed.futures == 3 * CANDIDATES


@pytest.mark.parametrize("spread", [0.02, 0.15])
async def test_near_ties_are_not_decided_rashly(spread: float) -> None:
    """The best is dropped, where sampling to the end would have found it, far less often than 1 - confidence."""
    lost = 0
    for seed in range(150):
        problem = Problem(seed, spread)
        result = await AdaptiveSampling(3, 12, confidence=0.9).rank(problem.play, CANDIDATES)
        lost += problem.fixed_choice(12) == problem.best != result.ranking[0]
    assert lost <= 0.05 * 150


async def test_clear_cases_stop_at_the_minimum() -> None:
    async def play(candidate: int, future: int) -> float:
        return float(candidate) + 0.001 * future

    result = await AdaptiveSampling(3, 24).rank(play, 5)
    assert result.ranking == (4, 3, 2, 1, 0)
    assert result.decided
    assert result.futures == 15


async def test_identical_candidates_are_sampled_to_the_end_undecided() -> None:
    async def play(candidate: int, future: int) -> float:
        return float(future % 2)

    result = await AdaptiveSampling(2, 9).rank(play, 4)
    assert (result.futures, result.decided) == (36, False)
    assert len(result.ranking) == 4


async def test_all_candidates_meet_the_same_futures_and_first_ones_run_at_once() -> None:
    seen: list[tuple[int, int]] = []
    running = peak = 0

    async def play(candidate: int, future: int) -> float:
        nonlocal running, peak
        seen.append((candidate, future))
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1
        return random.Random(f"{candidate} {future}").random()

    result = await AdaptiveSampling(3, 6).rank(play, 4)
    assert peak >= 12
    assert len(seen) == len(set(seen)) == result.futures
    for candidate, rewards in enumerate(result.candidates):
        assert [future for each, future in sorted(seen) if each == candidate] == list(range(len(rewards.rewards)))


async def test_failed_futures_are_missing_and_never_zero() -> None:
    async def play(candidate: int, future: int) -> float | None:
        if candidate == 0 or (candidate == 1 and future != 1):
            return None
        return {1: 0.2, 2: -1.0, 3: -2.0}[candidate] + 0.01 * future

    result = await AdaptiveSampling(3, 6).rank(play, 4)
    none, one, better, worse = result.candidates
    assert (none.mean, none.std_error, none.ranking_mean) == (None, None, None)
    assert (one.mean, one.std_error) == (0.2 + 0.01, None)
    assert better.mean == pytest.approx(-0.99)
    assert 0 not in result.ranking  # never chosen, and never rejected either
    assert result.ranking[0] == 1
    assert worse.std_error is not None


async def test_the_total_is_kept_and_one_or_no_candidate_needs_no_looks() -> None:
    async def play(candidate: int, future: int) -> float:
        return random.Random(f"{candidate} {future}").random()

    limited = await AdaptiveSampling(3, 24, max_total=20).rank(play, 4)
    assert 12 <= limited.futures <= 20
    alone = await AdaptiveSampling(3, 24).rank(play, 1)
    assert (alone.futures, alone.ranking, alone.decided) == (3, (0,), False)
    assert (await AdaptiveSampling(3, 24).rank(play, 0)).ranking == ()


async def test_an_error_ends_the_ranking() -> None:
    async def play(candidate: int, future: int) -> float:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        await AdaptiveSampling().rank(play, 2)


def test_looks_are_few_and_end_before_the_maximum() -> None:
    assert AdaptiveSampling(3, 24).looks == [3, 4, 6, 8, 11, 15, 21]
    assert AdaptiveSampling(3, 3).looks == []


@pytest.mark.parametrize("wrong", [{"min_futures": 1}, {"max_futures": 2}, {"confidence": 1.0}, {"confidence": 0.0}])
def test_settings_must_make_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        AdaptiveSampling(**wrong)  # type: ignore[arg-type]


def test_quantiles_of_students_t() -> None:
    for degrees in (5, 6, 10, 30):
        for probability in (0.5, 0.9, 0.99, 0.995, 0.999):
            assert t_quantile(probability, degrees) == pytest.approx(student_t.ppf(probability, degrees), rel=0.01, abs=1e-9)


def test_a_mean_of_nothing_is_nothing() -> None:
    assert CandidateRewards((None, None, 5.0), reported=2).mean is None
    assert CandidateRewards((1.0, None, 5.0), reported=2).mean == 1.0
