"""Trees written by hand, in the shape that the builder gives them."""

from typing import Any

from simulators.conversation import ConversationTree, Message, Node

Reply = tuple[str, float | None]


def small_tree(task_id: str, turns: list[tuple[str, list[Reply]]], **metadata: Any) -> ConversationTree:
    """A tree of (user message, candidate replies with their MR) a turn; it goes on with the best reply, the first of equals."""
    tree = ConversationTree(task_id, metadata)
    parent: int | None = None
    for said, replies in turns:
        user = tree.add(parent, Message("user", said), "user")
        user.annotations["kept"] = True
        nodes = [_candidate(tree, user.id, index, *reply) for index, reply in enumerate(replies)]
        scored = [node for node in nodes if node.annotations["mr"]["mean"] is not None]
        if not scored:
            break
        best = max(scored, key=lambda node: node.annotations["mr"]["mean"])
        best.annotations["kept"] = True
        parent = best.id
    return tree


def _candidate(tree: ConversationTree, user_id: int, index: int, text: str, worth: float | None) -> Node:
    node = tree.add(user_id, Message("assistant", text), "policy")
    node.annotations["candidate"] = {"index": index, "source": "plain", "rank": None}
    node.annotations["mr"] = {"mean": worth, "used": 0 if worth is None else 3, "failed": 3 if worth is None else 1}
    return node


TREES = [
    small_tree(
        "a",
        [
            ("book a table", [("For when?", 0.5), ("Done.", -0.25), ("Hm.", None), ("Sure!", 0.0)]),
            ("Monday", [("Booked for Monday.", 1.0), ("Booked for Friday.", 0.25)]),
        ],
    ),
    small_tree("b", [("write a label", [("To whom?", 0.75), ("To whom, please?", 0.75)])]),
    small_tree("c", [("a tag", [("Hm.", None)])], stopped="turn 1: no candidate could be scored"),
    small_tree("d", [("a sum", [("4", -0.5), ("5", -1.0)])]),
]
