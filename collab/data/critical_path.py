"""The longest chain of model calls behind a tree: what no scheduler can shorten (the first bound on a run's speed)."""

from __future__ import annotations

from collab.data.views import candidates, kept_nodes
from simulators.conversation import ConversationTree, Node, departures


def critical_path_s(tree: ConversationTree) -> float:
    """Return the seconds that a built tree takes with unlimited parallelism, from the latencies of its calls.

    Turns follow one another: a turn's candidates must be there and all their futures played before one is chosen. A turn takes
    as long as its slowest candidate with its slowest future; judges' calls are not in the tree and not counted.
    """
    total = 0.0
    for node in kept_nodes(tree):
        if node.message.role == "user":
            if node.parent is None:
                total += node.latency_s or 0.0
            total += max((_longest_below(tree, reply) for reply in candidates(tree, node.id)), default=0.0)
    return total


def _longest_below(tree: ConversationTree, reply: Node) -> float:
    """Return the latency of a candidate and of its slowest future; candidates of the next turn are not part of a future.

    A user's leaving without a word is the last call of its future. Futures that are nothing else all end at the candidate, where
    the slowest of them counts.
    """
    futures = (
        sum(node.latency_s or 0.0 for node in tree.path(record["leaf"])[len(tree.path(reply.id)) :])
        + max((departure.latency_s or 0.0 for departure in departures(tree.nodes[record["leaf"]])), default=0.0)
        for record in reply.annotations.get("mr", {}).get("futures", [])
    )
    return (reply.latency_s or 0.0) + max(futures, default=0.0)
