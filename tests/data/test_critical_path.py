"""The longest chain of calls behind a tree, a user's leaving without a word among them."""

import pytest

from collab.data.critical_path import critical_path_s
from simulators.conversation import ConversationTree, Departure, Message
from tests.data.small_trees import small_tree


def tree_with_futures() -> ConversationTree:
    """An opening of 1 s and two candidates of 2 s; a future of 3 + 4 s below the first, and one that is its leaving alone."""
    tree = small_tree("a", [("do it", [("Which?", 1.0), ("Done.", 0.0)])])
    tree.nodes[0].latency_s = 1.0
    said = tree.add(1, Message("user", "that one"), "user", latency_s=3.0)
    leaf = tree.add(said.id, Message("assistant", "Done."), "policy", latency_s=4.0)
    for reply, leaves in ((tree.nodes[1], [leaf.id, 1]), (tree.nodes[2], [2, 2])):
        reply.latency_s = 2.0
        reply.annotations["mr"]["futures"] = [{"leaf": each} for each in leaves]
    return tree


def test_a_turn_takes_as_long_as_its_slowest_candidate_with_its_slowest_future() -> None:
    assert critical_path_s(tree_with_futures()) == pytest.approx(1 + 2 + 3 + 4)


@pytest.mark.parametrize(
    ("last_node", "latencies", "expected"),
    [
        (4, [0.5], 1 + 2 + 3 + 4 + 0.5),
        (1, [0.5, 6.0], 10),
        (1, [9.0, 0.5], 1 + 2 + 9),
        (2, [0.5, 8.0], 1 + 2 + 8),
        (2, [None], 10),
    ],
)
def test_a_leaving_without_a_word_is_the_last_call_of_its_future(
    last_node: int, latencies: list[float | None], expected: float
) -> None:
    tree = tree_with_futures()
    for latency in latencies:
        Departure(latency_s=latency).write(tree.nodes[last_node])
    assert critical_path_s(tree) == pytest.approx(expected)
