"""Splits: by task and group, the same wherever a tree is looked at, and about as large as asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collab.data.splits import WHOLE, check_shares, group_of, split_of
from simulators.conversation import ConversationTree
from simulators.errors import ConfigurationError

SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}


def tree(task_id: str, group: str | None = None) -> ConversationTree:
    return ConversationTree(task_id, {"task": {} if group is None else {"group": group}})


@given(st.text())
def test_a_task_is_in_one_split_whatever_else_there_is(task_id: str) -> None:
    assert split_of(tree(task_id), SHARES) == split_of(tree(task_id), SHARES)
    assert split_of(tree(task_id), SHARES) in SHARES


@given(st.text(min_size=1))
def test_what_belongs_together_stays_together(group: str) -> None:
    assert len({split_of(tree(f"task {number}", group), SHARES) for number in range(10)}) == 1


def test_shares_hold_on_average() -> None:
    found = [split_of(tree(f"task-{number}"), SHARES) for number in range(2000)]
    assert all(abs(found.count(name) / 2000 - share) < 0.03 for name, share in SHARES.items())


def test_without_shares_there_is_one_split_and_the_group_is_the_task() -> None:
    assert split_of(tree("t"), {}) == WHOLE
    assert group_of(tree("t")) == "t"
    assert group_of(tree("t", "story")) == "story"
    problem = ConversationTree("t", {"task": {"group": "story"}, "group": "problem"})
    assert group_of(problem) == "problem"
    assert group_of(ConversationTree("t", {"task": "no mapping"})) == "t"


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"train": 0.8}, "the shares add up to 0.8; they must add up to 1"),
        ({"train": 0.9, "test": 0.2}, "the shares add up to 1.1"),
        ({"train": 1.0, "test": 0.0}, "the share of test is 0.0; it must be above 0"),
        ({"train": float("nan")}, "the share of train is nan"),
        ({"a/b": 1.0}, "'a/b' is no name for a split"),
    ],
)
def test_shares_that_cannot_be_are_refused(shares: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        check_shares(shares)
    check_shares({})
    check_shares(SHARES)
