"""Views of conversation trees as rows to train on: SFT conversations, DPO pairs, prompts.

Rows are plain dictionaries in TRL's conversational formats, with where they came from (`task_id`, node ids) beside them, so
that every row can be traced back to its tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from simulators.conversation import ConversationTree, Node


@dataclass(frozen=True, slots=True)
class PairSettings:
    """Which pairs a turn gives.

    A pair's chosen reply is the best one, its rejected reply the worst; `pairs_per_turn` n takes the n worst. Pairs whose MR gap
    is below `min_gap` are dropped, and so are pairs whose chosen MR is below `min_chosen_mr`.
    """

    min_gap: float = 0.0
    min_chosen_mr: float | None = None
    pairs_per_turn: int = 1


def kept_nodes(tree: ConversationTree) -> list[Node]:
    """Return the nodes of the kept conversation, from the opening to its last reply."""
    kept = []
    node_id: int | None = None
    while kept_here := [node for node in tree.children(node_id) if node.annotations.get("kept")]:
        kept.append(kept_here[0])
        node_id = kept_here[0].id
    return kept


def candidates(tree: ConversationTree, user_node_id: int) -> list[Node]:
    """Return the candidate replies to a user message, in the order they were sampled."""
    return [node for node in tree.children(user_node_id) if "candidate" in node.annotations]


def mr_of(node: Node) -> float | None:
    """Return a candidate's estimated MR, None where it has none."""
    mean = node.annotations.get("mr", {}).get("mean")
    return None if mean is None else float(mean)


def sft_rows(trees: Iterable[ConversationTree], min_chosen_mr: float | None = None) -> Iterator[dict[str, Any]]:
    """Yield the kept conversations as `{"messages": [...], "task_id", "mr", "turns"}`, one a tree.

    A conversation is cut before the first reply whose MR is missing or below `min_chosen_mr`: what comes before it may still
    be worth imitating. `mr` is the mean over its replies.
    """
    for tree in trees:
        messages: list[dict[str, str]] = []
        worths: list[float] = []
        good = 0
        for node in kept_nodes(tree):
            if node.message.role == "assistant":
                worth = mr_of(node)
                if worth is None or (min_chosen_mr is not None and worth < min_chosen_mr):
                    break
                worths.append(worth)
                good = len(messages) + 1
            messages.append(node.message.as_dict())
        if good:
            yield {
                "messages": messages[:good],
                "task_id": tree.task_id,
                "mr": sum(worths) / len(worths),
                "turns": len(worths),
            }


def dpo_rows(trees: Iterable[ConversationTree], settings: PairSettings | None = None) -> Iterator[dict[str, Any]]:
    """Yield preference pairs as `{"prompt", "chosen", "rejected", "task_id", "turn", "mr_chosen", "mr_rejected", ...}`."""
    settings = settings or PairSettings()
    for tree in trees:
        turn = 0
        for node in kept_nodes(tree):
            if node.message.role != "user":
                continue
            turn += 1
            scored = sorted(
                ((worth, reply) for reply in candidates(tree, node.id) if (worth := mr_of(reply)) is not None),
                key=lambda pair: (-pair[0], pair[1].id),
            )
            prompt = [message.as_dict() for message in tree.conversation(node.id)]
            for worth, reply in scored[:0:-1][: settings.pairs_per_turn]:
                best_worth, best = scored[0]
                if best_worth - worth < max(settings.min_gap, 1e-9):
                    continue
                if settings.min_chosen_mr is not None and best_worth < settings.min_chosen_mr:
                    continue
                yield {
                    "prompt": prompt,
                    "chosen": [best.message.as_dict()],
                    "rejected": [reply.message.as_dict()],
                    "task_id": tree.task_id,
                    "turn": turn,
                    "mr_chosen": best_worth,
                    "mr_rejected": worth,
                    "chosen_node": best.id,
                    "rejected_node": reply.id,
                }
