"""Credit for turns: what telescopes, what is left out, and that long conversations do not count more."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collab.training.credit import (
    TurnValues,
    count_groups,
    mr_difference_advantages,
    mr_differences,
    outcome_advantages,
    turn_advantages,
    without_dead_groups,
)

worth = st.floats(-2, 2, allow_nan=False).map(lambda value: round(value, 3))
maybe = st.none() | worth
episodes = st.lists(
    st.builds(
        lambda group, before, last: TurnValues(group, (*before, last)),
        st.integers(0, 2),
        st.lists(maybe, max_size=4),
        maybe,
    ),
    min_size=1,
    max_size=9,
)


@given(episodes)
def test_mr_differences_sum_to_the_reward_less_the_groups_start(batch: list[TurnValues]) -> None:
    """sum_j A_j = R* - MR_0 whatever the number of turns, and whichever MRs between are missing."""
    result = mr_differences(batch)
    for episode, turns in zip(batch, result, strict=True):
        if episode.reward is None:
            assert turns is None
            continue
        firsts = [e.worths[0] for e in batch if e.group == episode.group and e.reward is not None and e.worths[0] is not None]
        rewards = [e.reward for e in batch if e.group == episode.group and e.reward is not None]
        start = statistics.fmean(firsts or rewards)
        assert turns is not None and len(turns) == len(episode.worths)
        assert math.isclose(sum(turns), episode.reward - start, abs_tol=1e-9)


def test_mr_differences_by_hand() -> None:
    batch = [TurnValues("t", (0.2, 0.5, 1.0)), TurnValues("t", (0.4, 0.1)), TurnValues("t", (0.9,))]
    first, second, third = mr_differences(batch)
    assert first == pytest.approx([0.2 - 0.5, 0.3, 0.5])
    assert second == pytest.approx([0.4 - 0.5, -0.3])
    assert third == pytest.approx([0.4])


def test_turns_between_which_no_mr_is_known_share_the_change() -> None:
    (turns, _) = mr_differences([TurnValues("t", (None, None, 0.9)), TurnValues("t", (0.0, 0.0))])
    assert turns == pytest.approx([0.3, 0.3, 0.3])


def test_long_conversations_do_not_count_more_in_the_scale() -> None:
    """The scale of a group is the same whether one of its episodes took one turn or repeats its differences over many."""
    short = [TurnValues("t", (0.0, 1.0)), TurnValues("t", (0.0, -1.0))]
    long = [TurnValues("t", (0.0, 1.0)), TurnValues("t", (0.0, -1.0, -2.0, -3.0, -4.0))]
    a, b = mr_difference_advantages(short, "group")[0], mr_difference_advantages(long, "group")[0]
    assert a is not None and b is not None
    squares = [1.0 / 2, 4.0 / 5]  # mean square of the differences of each episode
    assert a[1] / b[1] == pytest.approx(math.sqrt(statistics.fmean(squares) / 0.5), rel=1e-3)


def test_outcome_advantages_are_trls() -> None:
    rewards = [0.0, 1.0, 1.0, 4.0]
    result = outcome_advantages([TurnValues("t", (None, reward)) for reward in rewards], "group")
    spread = statistics.stdev(rewards) + 1e-4
    assert result == [[pytest.approx((reward - 1.5) / spread)] * 2 for reward in rewards]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_an_episode_without_a_reward_is_left_out_of_its_groups_mean(scale: str) -> None:
    full = [TurnValues("t", (1.0,)), TurnValues("t", (3.0,)), TurnValues("u", (5.0,)), TurnValues("u", (6.0,))]
    holed = [full[0], TurnValues("t", (None,)), *full[1:]]
    with_hole = outcome_advantages(holed, scale)
    assert with_hole.pop(1) is None
    assert with_hole == outcome_advantages(full, scale)


def test_batch_scale_is_the_spread_of_all_deviations() -> None:
    batch = [TurnValues("t", (1.0,)), TurnValues("t", (3.0,)), TurnValues("u", (0.0,)), TurnValues("u", (8.0,))]
    result = outcome_advantages(batch, "batch")
    spread = statistics.stdev([-1.0, 1.0, -4.0, 4.0]) + 1e-4
    assert [turns[0] for turns in result if turns] == pytest.approx([-1 / spread, 1 / spread, -4 / spread, 4 / spread])


def test_groups_are_counted() -> None:
    batch = [
        TurnValues("alive", (0.0,)),
        TurnValues("alive", (1.0,)),
        TurnValues("dead", (1.0,)),
        TurnValues("dead", (1.0,)),
        TurnValues("failed", (None,)),
        TurnValues("one left", (None,)),
        TurnValues("one left", (2.0,)),
    ]
    counts = count_groups(batch)
    assert (counts.groups, counts.dead, counts.failed) == (4, 2, 1)


@pytest.mark.parametrize("credit", ["outcome", "mr_difference"])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_groups_that_teach_nothing_are_left_out_and_no_others(credit: str, scale: str) -> None:
    """Rewards of 0.1, as their mean is not exactly 0.1."""
    batch = [TurnValues("dead", (0.1, 0.1))] * 3 + [TurnValues("alive", (0.5, 0.0)), TurnValues("alive", (0.5, 1.0))]
    batch += [TurnValues("alive", (None,)), TurnValues("failed", (None,))]
    advantages = turn_advantages(batch, credit, scale)
    kept = without_dead_groups(batch, advantages)
    assert kept[:3] == [None, None, None] and kept[3:] == advantages[3:]
    assert kept[3] and kept[4] and kept[5:] == [None, None]
