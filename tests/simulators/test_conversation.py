import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulators.conversation import ConversationTree, Departure, Message, Outcome, Usage, departures

TEXT = st.text(max_size=20)


@st.composite
def trees(draw: st.DrawFn) -> ConversationTree:
    tree = ConversationTree(draw(TEXT), {"goal": draw(TEXT)})
    for number in range(draw(st.integers(0, 8))):
        parent = draw(st.none() | st.integers(0, number - 1)) if number else None
        author = draw(st.sampled_from(["task", "user", "policy"]))
        details = {
            "seed": draw(st.none() | st.integers(0, 2**63 - 1)),
            "usage": draw(st.none() | st.just(Usage(3, 2, 1))),
            "outcome": draw(st.none() | st.sampled_from(Outcome)),
            "token_ids": draw(st.none() | st.lists(st.integers(0, 9), min_size=1, max_size=3)),
            "logprobs": draw(st.none() | st.lists(st.floats(-9, 0), min_size=1, max_size=3)),
            "latency_s": draw(st.none() | st.floats(0, 9)),
            "annotations": draw(st.dictionaries(TEXT, TEXT, max_size=2)),
        }
        tree.add(parent, Message("user" if author == "user" else "assistant", draw(TEXT)), author, **details)
    return tree


@given(tree=trees())
def test_a_tree_survives_its_record(tree: ConversationTree) -> None:
    record = json.loads(json.dumps(tree.to_record()))
    again = ConversationTree.from_record(record)
    assert again.nodes == tree.nodes
    assert again.to_record() == tree.to_record()
    assert (again.task_id, again.metadata) == (tree.task_id, tree.metadata)


@given(tree=trees())
def test_paths_children_and_leaves_agree(tree: ConversationTree) -> None:
    below = [child.id for node in [None, *range(len(tree))] for child in tree.children(node)]
    assert sorted(below) == list(range(len(tree)))
    leaves = {leaf.id for leaf in tree.leaves()}
    inner = {node.parent for node in tree.nodes} - {None}
    assert leaves == set(range(len(tree))) - inner
    for node in tree.nodes:
        path = tree.path(node.id)
        assert path[-1] is node and path[0].parent is None
        assert tree.conversation(node.id) == tuple(each.message for each in path)


def test_forks_share_what_they_have_in_common() -> None:
    tree = ConversationTree("t")
    root = tree.extend(None, [Message("user", "a"), Message("assistant", "b")])
    left, right = (tree.add(root, Message("user", text), "user").id for text in "xy")
    assert len(tree) == 4
    assert [message.content for message in tree.conversation(left)] == ["a", "b", "x"]
    assert [message.content for message in tree.conversation(right)] == ["a", "b", "y"]
    assert tree.extend(left, []) == left
    assert tree.conversation(None) == ()


def test_only_known_parents_are_accepted() -> None:
    tree = ConversationTree("t")
    for parent in (0, -1, 7):
        with pytest.raises(KeyError):
            tree.add(parent, Message("user", "a"), "user")


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"task_id": "t", "nodes": [{"message": {"role": "user", "content": "a"}, "author": "user", "outcome": "won"}]},
        {"task_id": "t", "nodes": [{"id": 4, "message": {"role": "user", "content": "a"}, "author": "user"}]},
        {"task_id": "t", "nodes": [{"message": {"role": "user"}, "author": "user"}]},
        {"task_id": "t", "nodes": [{"message": {"role": "user", "content": "a"}, "author": "user", "parent": 3}]},
        {"task_id": "t", "nodes": [{"message": {"role": "user", "content": "a"}, "author": "user", "colour": "red"}]},
    ],
)
def test_a_record_that_is_no_tree_is_refused(record: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        ConversationTree.from_record(record)


def test_the_fingerprint_forgets_latency_and_nothing_else() -> None:
    def tree(latency_s: float, text: str) -> ConversationTree:
        tree = ConversationTree("t")
        node = tree.add(None, Message("user", text), "user", latency_s=latency_s)
        Departure(("early_stop",), latency_s=latency_s, seed=int(text == "c")).write(node)
        return tree

    assert tree(1, "a").fingerprint() == tree(2, "a").fingerprint()
    assert tree(1, "a").fingerprint() != tree(1, "b").fingerprint()
    assert tree(1, "a").fingerprint()["nodes"][0]["annotations"] != tree(1, "c").fingerprint()["nodes"][0]["annotations"]
    timed = tree(1, "a")
    timed.fingerprint()
    assert [each.latency_s for each in departures(timed.nodes[0])] == [1]


def test_departures_survive_a_record() -> None:
    tree = ConversationTree("t")
    node = tree.add(None, Message("user", "a"), "user")
    left = [Departure(), Departure(("early_stop",), "model", "w", "stop", Usage(3, 2, 1), 0.5, 7)]
    for each in left:
        each.write(node)
    (again,) = ConversationTree.from_record(json.loads(json.dumps(tree.to_record()))).nodes
    assert departures(again) == departures(node) == left
    assert departures(tree.add(0, Message("assistant", "b"), "policy")) == []


def test_only_what_the_policy_caused_earns_reward() -> None:
    earning = {outcome for outcome in Outcome if outcome.earns_reward}
    assert earning == {Outcome.ENDED, Outcome.WINDOW_FULL, Outcome.TRUNCATED, Outcome.TOOL_LIMIT, Outcome.POLICY_ERROR}
