"""What one line says about a conversation tree: how it opens, how it went, its figures. The viewer lists and filters by it.

Trees come from files, perhaps written by something else, so an annotation that is not shaped as expected is passed over.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simulators.conversation import ConversationTree, Node

OPENING_CHARACTERS = 200

Samples = defaultdict[str, list[float]]
"""Values of a metric, before their mean is taken."""


@dataclass(frozen=True, slots=True)
class TreeSummary:
    """One tree in a line.

    `metrics` are means over the tree: "MR" and the reward components over the futures of kept replies, "MR gap" (chosen -
    rejected) over turns, "score" and its components over evaluated conversations; "best attempt" is the highest score of an
    answer attempt (lost in conversation), "turns" are those of the conversation that is shown first. A metric that the tree has
    no value for is absent. `outcomes` counts futures and evaluated conversations by how they ended.
    """

    task_id: str
    environment: str
    policy: str
    opening: str
    metrics: dict[str, float] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    candidates: int = 0
    futures: int = 0
    failed: int = 0


def main_path(tree: ConversationTree) -> list[Node]:
    """Return the conversation that is shown first: down kept nodes, chosen candidates, and wherever there is one way only.

    For a tree that the builder finished these are its `collab.data.views.kept_nodes`; this one makes do with any tree.
    """
    path: list[Node] = []
    node: Node | None = None
    while (following := _next_of_main(tree, node)) is not None:
        path.append(following)
        node = following
    return path


def _next_of_main(tree: ConversationTree, node: Node | None) -> Node | None:
    children = tree.children(node.id if node else None)
    for child in children:
        if child.annotations.get("kept") is True:
            return child
    if node is not None and is_candidate(node):
        return None  # what follows a candidate without being kept is a simulated future
    for child in children:
        if candidate_of(child).get("role") == "chosen":
            return child
    return children[0] if children and not is_candidate(children[0]) else None


def candidate_of(node: Node) -> Mapping[str, Any]:
    """Return what is noted about a candidate reply, {} for any other message."""
    return as_mapping(node.annotations.get("candidate"))


def is_candidate(node: Node) -> bool:
    """True for a reply that was ranked, or whose MR was estimated."""
    return bool(candidate_of(node) or as_mapping(node.annotations.get("mr")))


def summarise(tree: ConversationTree) -> TreeSummary:
    """Return the summary of a tree."""
    path = main_path(tree)
    opening = next((node.message.content for node in path if node.message.role == "user"), "")
    samples: Samples = defaultdict(list)
    outcomes: Counter[str] = Counter()
    candidates = [node for node in tree.nodes if is_candidate(node)]
    futures = _take_candidates(candidates, samples, outcomes)
    _take_conversations(tree, samples, outcomes)
    if not outcomes:
        outcomes.update(str(node.outcome) for node in tree.nodes if node.outcome is not None)
    samples["turns"] = [sum(node.message.role == "user" for node in path)]
    first = ("MR", "MR gap", "score", "best attempt")  # the order in which the viewer offers them
    return TreeSummary(
        task_id=tree.task_id,
        environment=str(tree.metadata.get("environment") or ""),
        policy=str(tree.metadata.get("policy") or ""),
        opening=" ".join(opening[: 4 * OPENING_CHARACTERS].split())[:OPENING_CHARACTERS],
        metrics={name: math.fsum(samples[name]) / len(samples[name]) for name in (*first, *samples) if samples.get(name)},
        outcomes=dict(outcomes),
        candidates=len(candidates),
        futures=len(futures),
        failed=sum(finite(future.get("reward")) is None for future in futures),
    )


def _take_candidates(candidates: list[Node], samples: Samples, outcomes: Counter[str]) -> list[Mapping[str, Any]]:
    """Add the MR of candidates, turn by turn, and the components of the chosen ones; return all their futures."""
    every: list[Mapping[str, Any]] = []
    turns: dict[int | None, dict[str, float]] = {}
    for node in candidates:
        estimate = as_mapping(node.annotations.get("mr"))
        role = "chosen" if node.annotations.get("kept") is True else candidate_of(node).get("role")
        if role in ("chosen", "rejected") and (mean := finite(estimate.get("mean"))) is not None:
            turns.setdefault(node.parent, {})[role] = mean
        futures = estimate.get("futures")
        for future in filter(None, map(as_mapping, futures if isinstance(futures, list) else ())):
            every.append(future)
            if isinstance(future.get("outcome"), str):
                outcomes[future["outcome"]] += 1
            if role == "chosen":
                _collect(samples, as_mapping(future.get("components")))
    for roles in turns.values():
        if "chosen" in roles:
            samples["MR"].append(roles["chosen"])
        if len(roles) == 2:
            samples["MR gap"].append(roles["chosen"] - roles["rejected"])
    return every


def _take_conversations(tree: ConversationTree, samples: Samples, outcomes: Counter[str]) -> None:
    """Add the scores of evaluated conversations, and the best answer attempt."""
    attempts = []
    for node in tree.nodes:
        if score := as_mapping(node.annotations.get("score")):
            _collect(samples, {"score": score.get("total"), **as_mapping(score.get("components"))})
            if node.outcome is not None:
                outcomes[str(node.outcome)] += 1
        attempts.append(finite(as_mapping(node.annotations.get("assessed")).get("score")))
    scored = [attempt for attempt in attempts if attempt is not None]
    if scored:
        samples["best attempt"] = [max(scored)]


def _collect(samples: Samples, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if (number := finite(value)) is not None:
            samples.setdefault(name, []).append(number)


def finite(value: Any) -> float | None:
    """Return the value where it is a finite number, None for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return the value where it is a mapping, {} for anything else."""
    return value if isinstance(value, Mapping) else {}
