"""Statistics against known cases: closed forms, scipy, and coverage by simulation."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from collab.evaluation.statistics import (
    Interval,
    bootstrap_interval,
    compare_by_task,
    kendall_tau_b,
    mcnemar,
    mean_and_error,
    paired_bootstrap,
    reliability,
    spearman,
    win_rate,
)

scores = st.lists(st.floats(-100, 100), min_size=2, max_size=40)


# --- means and intervals -------------------------------------------------------------------------------------------------


def test_standard_error_is_the_textbook_one():
    values = [0.1, 0.4, 0.9, 0.2]
    estimate = mean_and_error(values)
    assert estimate.mean == pytest.approx(0.4)
    assert estimate.std_error == pytest.approx(scipy.stats.sem(values))
    assert estimate.count == 4


def test_one_value_has_a_mean_and_no_error():
    assert mean_and_error([0.3]).std_error is None
    assert mean_and_error([0.3, 0.4], clusters=["a", "a"]).std_error is None
    interval = bootstrap_interval([0.3])
    assert (interval.estimate, interval.low, interval.high, interval.excludes_zero) == (0.3, None, None, False)


def test_clustered_error_of_repeated_values_counts_tasks_not_runs():
    once = [0.0, 1.0, 1.0, 0.0, 1.0]
    often = [value for value in once for _ in range(8)]
    labels = [task for task in range(5) for _ in range(8)]
    assert mean_and_error(often, labels).std_error == pytest.approx(mean_and_error(once).std_error)
    assert mean_and_error(often).std_error < mean_and_error(once).std_error / 2


@given(scores)
def test_the_interval_holds_the_mean_and_stays_in_range(values):
    interval = bootstrap_interval(values, resamples=300)
    assert min(values) - 1e-9 <= interval.low <= interval.high <= max(values) + 1e-9
    assert interval.estimate == pytest.approx(np.mean(values), abs=1e-9)


def test_the_same_seed_gives_the_same_interval_and_another_seed_another():
    values = np.random.default_rng(1).normal(size=50)
    assert bootstrap_interval(values, seed=4) == bootstrap_interval(values, seed=4)
    assert bootstrap_interval(values, seed=4) != bootstrap_interval(values, seed=5)


def test_chunks_do_not_change_what_is_estimated(monkeypatch):
    values = np.random.default_rng(1).normal(size=200)
    whole = bootstrap_interval(values)
    monkeypatch.setattr("collab.evaluation.statistics._CHUNK", 1000)
    pieces = bootstrap_interval(values)
    assert pieces.low == pytest.approx(whole.low, abs=0.01)
    assert pieces.high == pytest.approx(whole.high, abs=0.01)


def test_bootstrap_agrees_with_scipy():
    values = np.random.default_rng(2).exponential(size=80)
    ours = bootstrap_interval(values, resamples=20_000)
    theirs = scipy.stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=3).confidence_interval
    assert ours.low == pytest.approx(theirs.low, abs=0.01)
    assert ours.high == pytest.approx(theirs.high, abs=0.01)


def _coverage(draw, truth, *, clustered, trials=400):
    hits = 0
    for trial in range(trials):
        values, labels = draw(np.random.default_rng(trial))
        interval = bootstrap_interval(values, labels if clustered else None, resamples=800, seed=trial)
        hits += interval.low <= truth <= interval.high
    return hits / trials


def test_a_95_per_cent_interval_covers_the_truth_95_times_in_100():
    def draw(rng):
        return rng.normal(0.3, 1.0, size=60), None

    # 400 trials: the share of hits has a standard deviation of 0.011, and n = 60 costs the percentile method about 0.01
    assert 0.91 <= _coverage(draw, 0.3, clustered=False) <= 0.98


def test_runs_of_a_task_need_clustering_to_be_covered():
    def draw(rng):
        tasks = rng.normal(0.3, 1.0, size=50)
        values = (tasks[:, None] + rng.normal(0, 0.3, size=(50, 6))).ravel()
        return values, np.repeat(np.arange(50), 6).tolist()

    assert _coverage(draw, 0.3, clustered=True) >= 0.90
    assert _coverage(draw, 0.3, clustered=False) <= 0.70


def test_unequal_clusters_weigh_every_value_alike():
    values, labels = [1.0, 1.0, 1.0, 0.0], ["a", "a", "a", "b"]
    interval = bootstrap_interval(values, labels)
    assert interval.estimate == pytest.approx(0.75)
    assert (interval.low, interval.high) == (0.0, 1.0)


@pytest.mark.parametrize("bad", [[], [0.1, math.nan], [0.1, math.inf], [0.1, None], [[0.1]]])
def test_missing_values_are_refused_not_averaged(bad):
    with pytest.raises(ValueError, match=r"missing or not finite|no values|list of numbers"):
        bootstrap_interval(bad)
    with pytest.raises(ValueError, match=r"missing or not finite|no values|list of numbers"):
        mean_and_error(bad)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="between 0 and 1"):
        bootstrap_interval([1, 2], level=95)
    with pytest.raises(ValueError, match="2 values but 1 cluster"):
        bootstrap_interval([1, 2], ["a"])


def test_scaling_keeps_the_ends_in_order():
    assert Interval(0.2, 0.1, 0.4).scaled(100) == Interval(20.0, 10.0, 40.0)
    assert Interval(0.2, 0.1, 0.4).scaled(-1) == Interval(-0.2, -0.4, -0.1)
    assert Interval(0.2, None, None).scaled(2).low is None


# --- comparisons -----------------------------------------------------------------------------------------------------------


def test_pairing_removes_what_tasks_have_in_common():
    rng = np.random.default_rng(0)
    hard = rng.normal(0, 5, size=100)
    before, after = hard, hard + rng.normal(0.5, 0.5, size=100)
    result = paired_bootstrap(before, after)
    assert result.difference.excludes_zero
    assert result.difference.estimate == pytest.approx(result.after - result.before)
    alone_before, alone_after = bootstrap_interval(before), bootstrap_interval(after)
    assert alone_before.high > alone_after.low, "unpaired intervals overlap, so the pairing is what finds the difference"


def test_no_difference_is_not_found_too_often():
    found = 0
    for trial in range(300):
        rng = np.random.default_rng(trial)
        task = rng.normal(size=40)
        result = paired_bootstrap(task + rng.normal(size=40), task + rng.normal(size=40), resamples=600, seed=trial)
        found += result.difference.excludes_zero
    assert found / 300 <= 0.10


def test_a_missing_score_drops_the_pair_and_is_counted():
    before = {("a", 0): 0.0, ("a", 1): 1.0, ("b", 0): 0.0, ("c", 0): None}
    after = {("a", 0): 1.0, ("a", 1): 1.0, ("b", 0): None, ("d", 0): 1.0}
    result = compare_by_task(before, after)
    assert (result.pairs, result.dropped) == (2, 3)
    assert (result.before, result.after) == (0.5, 1.0)
    with pytest.raises(ValueError, match="nothing to compare"):
        compare_by_task({("a", 0): None}, {("a", 0): 1.0})


def test_sides_of_different_length_are_refused():
    for compare in (paired_bootstrap, win_rate, kendall_tau_b, spearman):
        with pytest.raises(ValueError, match="got 2 and 3"):
            compare([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="2 results before and 1 after"):
        mcnemar([True, False], [True])


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 5))
def test_mcnemar_is_the_exact_binomial_test(gained, lost, same):
    before = [False] * gained + [True] * lost + [True] * same
    after = [True] * gained + [False] * lost + [True] * same
    result = mcnemar(before, after)
    assert (result.gained, result.lost) == (gained, lost)
    expected = scipy.stats.binomtest(gained, gained + lost, 0.5).pvalue if gained + lost else 1.0
    assert result.p_value == pytest.approx(expected, rel=1e-9)


def test_mcnemar_of_many_pairs_does_not_overflow():
    before, after = [False] * 9000 + [True] * 9400, [True] * 9000 + [False] * 9400
    assert mcnemar(before, after).p_value == pytest.approx(scipy.stats.binomtest(9000, 18400, 0.5).pvalue, rel=1e-6)


def test_win_rate_counts_a_tie_as_half():
    result = win_rate([1.0, 0.5, 0.2, 0.9], [0.5, 0.5, 0.4, 0.1])
    assert (result.wins, result.ties, result.losses) == (2, 1, 1)
    assert result.rate.estimate == pytest.approx(0.625)
    assert win_rate([0.51], [0.5], tolerance=0.05).ties == 1


# --- rank correlations and reliability ---------------------------------------------------------------------------------------

tied = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=30)


@given(tied)
def test_rank_correlations_agree_with_scipy(pairs):
    x, y = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    tau, rho = kendall_tau_b(x, y), spearman(x, y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert tau is None and rho is None
    else:
        assert tau == pytest.approx(scipy.stats.kendalltau(x, y).statistic, abs=1e-9)
        assert rho == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-9)


@pytest.mark.parametrize(
    ("right", "unreliability"), [(0, 0.0), (1, 10.0), (2, 100.0), (5, 100.0), (8, 100.0), (9, 10.0), (10, 0.0)]
)
def test_unreliability_of_ten_binary_runs_is_nearly_a_step(right, unreliability):
    result = reliability({"a": [1.0] * right + [0.0] * (10 - right)})
    assert result.performance.estimate == pytest.approx(10 * right)
    assert result.unreliability.estimate == pytest.approx(unreliability)


def test_reliability_is_averaged_over_instructions():
    result = reliability({"a": [1.0] * 10, "b": [0.0] * 10, "c": [0.5] * 10})
    assert result.performance.estimate == pytest.approx(50)
    assert result.aptitude.estimate == pytest.approx(50)
    assert result.unreliability == Interval(0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="no instructions"):
        reliability({})
    with pytest.raises(ValueError, match="no values"):
        reliability({"a": []})
