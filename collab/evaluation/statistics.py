"""Statistics of scored conversations: means, intervals, paired comparisons, rank correlations.

Runs of one task are not independent, so every interval here can resample whole tasks (`clusters`), and two policies are
compared on the tasks both of them finished. Missing is never zero: a value that is None, or is not finite, is refused or
counted, never averaged.

Percentile bootstrap: Efron and Tibshirani, An Introduction to the Bootstrap, chapter 13. Exact McNemar: the two-sided binomial
test on the discordant pairs. Aptitude and unreliability: Lost in Conversation, section 5.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

RESAMPLES = 10_000
_CHUNK = 4_000_000
"""Most draws held in memory at once (32 MB of float64)."""


@dataclass(frozen=True, slots=True)
class MeanEstimate:
    """A mean with its standard error. `std_error` is None where a single value (or a single cluster) gives none."""

    mean: float
    std_error: float | None
    count: int


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with a confidence interval. `low` and `high` are None where fewer than two clusters give none."""

    estimate: float
    low: float | None
    high: float | None
    level: float = 0.95

    @property
    def excludes_zero(self) -> bool:
        """True where the whole interval lies on one side of 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def scaled(self, factor: float) -> Interval:
        """Return the interval in another unit (100 for per cent); a negative factor swaps the ends."""
        if self.low is None or self.high is None:
            return Interval(self.estimate * factor, None, None, self.level)
        ends = sorted((self.low * factor, self.high * factor))
        return Interval(self.estimate * factor, ends[0], ends[1], self.level)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """`after` - `before` on the same tasks; `dropped` counts the keys that one of the two sides has no value for."""

    before: float
    after: float
    difference: Interval
    pairs: int
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class McNemar:
    """Exact McNemar test: `gained` went from wrong to right, `lost` from right to wrong; `p_value` is two-sided."""

    gained: int
    lost: int
    p_value: float


@dataclass(frozen=True, slots=True)
class WinRate:
    """How often one side beats the other; a tie counts half in `rate`."""

    wins: int
    ties: int
    losses: int
    rate: Interval


@dataclass(frozen=True, slots=True)
class Reliability:
    """Lost in Conversation's three metrics in points of 0 to 100, each averaged over instructions.

    `performance` is P, `aptitude` A90 (the 90th percentile of an instruction's runs), `unreliability` U = p90 - p10.
    """

    performance: Interval
    aptitude: Interval
    unreliability: Interval


def mean_and_error(values: ArrayLike, clusters: Sequence[Hashable] | None = None) -> MeanEstimate:
    """Return the mean of the values, shape (n,), with its standard error.

    With `clusters` (one label a value) the error is the cluster-robust one: values of a cluster may depend on each other.

    Raises:
        ValueError: for no values, values that are not finite, or labels of another length.
    """
    data = _checked(values)
    sums, counts = _by_cluster(data, clusters)
    mean = float(data.mean())
    if len(sums) < 2:
        return MeanEstimate(mean, None, len(data))
    residuals = sums - counts * mean
    spread = float(np.sum(residuals**2)) * len(sums) / (len(sums) - 1)
    return MeanEstimate(mean, math.sqrt(spread) / len(data), len(data))


def bootstrap_interval(
    values: ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Return the mean of the values, shape (n,), with its percentile bootstrap interval.

    With `clusters` (one label a value, a task id as a rule) whole clusters are drawn, and a resample's mean weighs every value
    of the drawn clusters alike. The same arguments give the same interval.

    Raises:
        ValueError: as `mean_and_error` does, or for a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it must lie between 0 and 1, as 0.95 does")
    data = _checked(values)
    sums, counts = _by_cluster(data, clusters)
    mean = float(data.mean())
    if len(sums) < 2:
        return Interval(mean, None, None, level)
    means = _resampled_means(sums, counts, resamples, np.random.default_rng(seed))
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, float(low), float(high), level)


def paired_bootstrap(
    before: ArrayLike,
    after: ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> PairedDifference:
    """Compare two aligned arrays of scores, shape (n,) each: position i is the same task (and run) on both sides.

    Raises:
        ValueError: as `bootstrap_interval` does, or when the lengths differ.
    """
    first, second = _aligned(before, after)
    difference = bootstrap_interval(second - first, clusters, level=level, resamples=resamples, seed=seed)
    return PairedDifference(float(first.mean()), float(second.mean()), difference, len(first))


def compare_by_task(
    before: Mapping[tuple[str, int], float | None],
    after: Mapping[tuple[str, int], float | None],
    *,
    level: float = 0.95,
    seed: int = 0,
) -> PairedDifference:
    """Compare scores keyed by (task id, run), resampling tasks; keys without a value on both sides are dropped and counted.

    Raises:
        ValueError: when no key has a value on both sides, or a value is not finite.
    """
    keys, first, second = [], [], []
    for key, value in before.items():
        other = after.get(key)
        if value is not None and other is not None:
            keys.append(key)
            first.append(value)
            second.append(other)
    if not keys:
        raise ValueError("no task has a score on both sides, so there is nothing to compare")
    result = paired_bootstrap(first, second, [task for task, _ in keys], level=level, seed=seed)
    dropped = len(before.keys() | after.keys()) - len(keys)
    return PairedDifference(result.before, result.after, result.difference, result.pairs, dropped)


def mcnemar(before: Sequence[bool], after: Sequence[bool]) -> McNemar:
    """Test whether two policies are right equally often on the same tasks, one pair a task.

    Repeated runs of a task are not independent pairs: use `compare_by_task` for them.

    Raises:
        ValueError: when the lengths differ.
    """
    if len(before) != len(after):
        raise ValueError(f"McNemar needs pairs, got {len(before)} results before and {len(after)} after")
    gained = sum(bool(y) and not x for x, y in zip(before, after, strict=True))
    lost = sum(bool(x) and not y for x, y in zip(before, after, strict=True))
    return McNemar(gained, lost, _two_sided_binomial(min(gained, lost), gained + lost))


def _two_sided_binomial(fewer: int, trials: int) -> float:
    """Return min(1, 2 P(X <= fewer)) for X ~ Binomial(trials, 1/2), summed in log space so that any size is exact enough."""
    if trials == 0:
        return 1.0
    whole = math.lgamma(trials + 1) - trials * math.log(2)
    logs = [whole - math.lgamma(k + 1) - math.lgamma(trials - k + 1) for k in range(fewer + 1)]
    top = max(logs)
    return min(1.0, 2 * math.exp(top) * math.fsum(math.exp(value - top) for value in logs))


def win_rate(
    ours: ArrayLike,
    theirs: ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    *,
    tolerance: float = 0.0,
    level: float = 0.95,
    seed: int = 0,
) -> WinRate:
    """Count how often `ours` beats `theirs`, shape (n,) each; a difference of at most `tolerance` is a tie.

    Raises:
        ValueError: as `paired_bootstrap` does.
    """
    first, second = _aligned(ours, theirs)
    difference = first - second
    wins, losses = difference > tolerance, difference < -tolerance
    points = np.where(wins, 1.0, np.where(losses, 0.0, 0.5))
    rate = bootstrap_interval(points, clusters, level=level, seed=seed)
    return WinRate(int(wins.sum()), int(len(points) - wins.sum() - losses.sum()), int(losses.sum()), rate)


def kendall_tau_b(x: ArrayLike, y: ArrayLike) -> float | None:
    """Return Kendall's rank correlation tau-b, which corrects for ties; None where one side is constant.

    Compares all pairs, row by row: n of some thousands takes a second.

    Raises:
        ValueError: when the lengths differ or a value is not finite.
    """
    first, second = _aligned(x, y)
    concordance = pairs_x = pairs_y = 0.0
    for position in range(len(first) - 1):
        sign_x = np.sign(first[position + 1 :] - first[position])
        sign_y = np.sign(second[position + 1 :] - second[position])
        concordance += float(sign_x @ sign_y)
        pairs_x += float(np.abs(sign_x).sum())
        pairs_y += float(np.abs(sign_y).sum())
    if not pairs_x or not pairs_y:
        return None
    return concordance / math.sqrt(pairs_x * pairs_y)


def spearman(x: ArrayLike, y: ArrayLike) -> float | None:
    """Return Spearman's rank correlation, ties given their average rank; None where one side is constant.

    Raises:
        ValueError: when the lengths differ or a value is not finite.
    """
    first, second = (_average_ranks(side) for side in _aligned(x, y))
    first, second = first - first.mean(), second - second.mean()
    scale = math.sqrt(float(first @ first) * float(second @ second))
    return float(first @ second) / scale if scale > 0 else None


def reliability(runs: Mapping[str, Sequence[float]], *, level: float = 0.95, seed: int = 0) -> Reliability:
    """Return P, A90 and U (points of 0 to 100) of scores in 0..1, given the runs of each instruction.

    Percentiles are linearly interpolated, as the paper's are: with binary scores and 10 runs U is nearly a step function, hence
    the intervals, which resample instructions.

    Raises:
        ValueError: for no instructions, or an instruction without a finite score.
    """
    if not runs:
        raise ValueError("no instructions, so there is no reliability to report")
    scores = [_checked(values) * 100 for values in runs.values()]
    tails = np.array([np.quantile(values, [0.1, 0.9]) for values in scores])
    return Reliability(
        performance=bootstrap_interval([values.mean() for values in scores], level=level, seed=seed),
        aptitude=bootstrap_interval(tails[:, 1], level=level, seed=seed),
        unreliability=bootstrap_interval(tails[:, 1] - tails[:, 0], level=level, seed=seed),
    )


def _checked(values: ArrayLike) -> Floats:
    """Return the values as a float array, shape (n,), after refusing what a mean must not swallow."""
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1:
        raise ValueError(f"expected a list of numbers, got an array of shape {data.shape}")
    if not len(data):
        raise ValueError("no values, so there is no mean to report")
    missing = int((~np.isfinite(data)).sum())
    if missing:
        raise ValueError(f"{missing} of {len(data)} values are missing or not finite; leave them out first")
    return data


def _aligned(x: ArrayLike, y: ArrayLike) -> tuple[Floats, Floats]:
    first, second = _checked(x), _checked(y)
    if len(first) != len(second):
        raise ValueError(f"a paired comparison needs as many values on both sides, got {len(first)} and {len(second)}")
    return first, second


def _by_cluster(data: Floats, clusters: Sequence[Hashable] | None) -> tuple[Floats, Floats]:
    """Return the sum and the number of values of every cluster, shape (clusters,) each; without labels each value is one."""
    if clusters is None:
        return data, np.ones_like(data)
    if len(clusters) != len(data):
        raise ValueError(f"got {len(data)} values but {len(clusters)} cluster labels")
    numbers: dict[Hashable, int] = {}
    labels = np.array([numbers.setdefault(label, len(numbers)) for label in clusters])
    counts = np.bincount(labels, minlength=len(numbers)).astype(np.float64)
    return np.bincount(labels, weights=data, minlength=len(numbers)).astype(np.float64), counts


def _resampled_means(sums: Floats, counts: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Return the mean of `resamples` draws of as many clusters as there are, with replacement, shape (resamples,)."""
    size = len(sums)
    rows = max(1, _CHUNK // size)
    equal = bool((counts == counts[0]).all())
    means = np.empty(resamples)
    for start in range(0, resamples, rows):
        drawn = rng.integers(size, size=(min(rows, resamples - start), size))
        totals = sums[drawn].sum(axis=1)
        sizes = size * counts[0] if equal else counts[drawn].sum(axis=1)
        means[start : start + len(drawn)] = totals / sizes
    return means


def _average_ranks(values: Floats) -> Floats:
    """Return the ranks of the values from 1, ties sharing their average, shape (n,)."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Floats = (last - (counts - 1) / 2)[inverse]
    return ranks
