"""One policy in one environment with one user, all its conversations together; what they come to, and how two such differ.

What could not be scored is counted and left out of every mean: missing is never zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collab.evaluation.clarification import clarification_figures
from collab.evaluation.run import EvaluatedConversation
from collab.evaluation.statistics import McNemar, MeanEstimate, PairedDifference, compare_by_task, mcnemar, mean_and_error
from simulators.budget import Price

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Cell:
    """The conversations of one policy in one environment with one user, over all seeds.

    `task_score` names the component that says how well the task was done; a conversation in which it reaches `success_at` is a
    success. `domain` and `options` are what the environment was made of, `trained_with` the user that the policy was trained
    against, `baseline` marks a policy that was not trained; `prices` are by role.
    """

    environment: str
    user: str
    policy: str
    conversations: Sequence[EvaluatedConversation]
    task_score: str | None = None
    success_at: float = 1.0
    domain: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    trained_with: str | None = None
    baseline: bool = False
    prices: Mapping[str, Price] = field(default_factory=dict)

    @property
    def scored(self) -> list[EvaluatedConversation]:
        """The conversations that have an R*."""
        return [each for each in self.conversations if each.reward is not None]

    @property
    def unscored(self) -> int:
        """How many have none."""
        return len(self.conversations) - len(self.scored)

    def score(self, conversation: EvaluatedConversation) -> float | None:
        """Return a conversation's task score, None where it has none."""
        if conversation.reward is None or self.task_score is None:
            return None
        return conversation.components.get(self.task_score)

    def success(self, conversation: EvaluatedConversation) -> bool | None:
        """Return whether a conversation was a success, None where that cannot be told."""
        score = self.score(conversation)
        return None if score is None else score >= self.success_at - _ROUNDING

    def cost(self, conversation: EvaluatedConversation) -> float | None:
        """Return what a conversation cost, in money; None where no role that was asked has a price."""
        priced = [self.prices[role].of_usage(spent) for role, spent in conversation.spent.items() if role in self.prices]
        return math.fsum(priced) if priced else None

    def mean(self, value: Callable[[EvaluatedConversation], float | None]) -> MeanEstimate | None:
        """Return the mean of a value over the scored conversations that have it, runs of a task clustered."""
        found = [(each.task_id, number) for each in self.scored if (number := value(each)) is not None]
        return mean_and_error([number for _, number in found], [task for task, _ in found]) if found else None

    @property
    def components(self) -> list[str]:
        """The components that a scored conversation has, in the order of the environment's reward."""
        return list(dict.fromkeys(name for each in self.scored for name in each.components))


def is_binary(cells: Iterable[Cell]) -> bool:
    """Return whether every task score is 0 or the one that makes a success: then the score says what success says."""
    return all(
        score in (0.0, cell.success_at) for cell in cells for each in cell.scored if (score := cell.score(each)) is not None
    )


def rewards(cell: Cell) -> dict[tuple[str, int], float | None]:
    """Return R* by task and run."""
    return {(each.task_id, each.run): each.reward for each in cell.conversations}


def task_scores(cell: Cell) -> dict[tuple[str, int], float | None]:
    """Return the task score by task and run."""
    return {(each.task_id, each.run): cell.score(each) for each in cell.conversations}


def successes(cell: Cell) -> dict[tuple[str, int], float | None]:
    """Return success (1 or 0) by task and run."""
    return {
        (each.task_id, each.run): None if (success := cell.success(each)) is None else float(success)
        for each in cell.conversations
    }  # fmt: skip


def seconds(conversation: EvaluatedConversation) -> float:
    """Return the seconds that the answers of all models took, added up."""
    return math.fsum(spent.seconds for spent in conversation.spent.values())


def all_tokens(conversation: EvaluatedConversation) -> float | None:
    """Return the tokens of all models, prompts and completions; None where a server does not tell how many there were."""
    spent = conversation.spent.values()
    return float(sum(each.tokens for each in spent)) if all(each.tokens or not each.calls for each in spent) else None


def figures(cell: Cell) -> dict[str, Any]:
    """Return the mean figures of one policy, by name; those that the conversations cannot give are absent."""
    scored = cell.scored
    result: dict[str, Any] = {"conversations": len(cell.conversations), "unscored": cell.unscored}
    reward = cell.mean(lambda each: each.reward)
    if reward is None:
        return result
    result |= {"r_star": reward.mean, "r_star_error": reward.std_error}
    for name in sorted(cell.components):
        values = [each.components[name] for each in scored if name in each.components]
        result[name] = sum(values) / len(values)
    if (success := cell.mean(cell.success)) is not None:
        result["success"] = success.mean
    result["tokens"] = sum(each.policy_tokens for each in scored) / len(scored)
    result["turns"] = sum(each.turns for each in scored) / len(scored)
    replies = sum(each.turns for each in scored)
    result["asking_turns"] = sum(sum(each.asked) for each in scored) / max(1, replies)
    result |= clarification_figures(cell.conversations)
    if (tokens := cell.mean(all_tokens)) is not None:
        result["all_tokens"] = tokens.mean
    if (cost := cell.mean(cell.cost)) is not None:
        result["cost"] = cost.mean
    result["seconds"] = math.fsum(map(seconds, scored)) / len(scored)
    return result


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a policy differs from the first one on the conversations that both have a value for; None where there are none.

    McNemar's test is on tasks, a task being solved where more than half of its runs are a success: runs of one task are not
    independent pairs.
    """

    r_star: PairedDifference | None
    task_score: PairedDifference | None
    success: PairedDifference | None
    test: McNemar | None


def compare(first: Cell, other: Cell) -> Comparison:
    """Compare two policies in one environment with one user."""
    return Comparison(
        _difference(rewards(first), rewards(other)),
        _difference(task_scores(first), task_scores(other)),
        _difference(successes(first), successes(other)),
        _test(successes(first), successes(other)),
    )


Scores = Mapping[tuple[str, int], float | None]


def _difference(before: Scores, after: Scores) -> PairedDifference | None:
    try:
        return compare_by_task(before, after)
    except ValueError:  # nothing that both have
        return None


def _test(before: Scores, after: Scores) -> McNemar | None:
    pairs: dict[str, list[tuple[float, float]]] = {}
    for key, value in before.items():
        other = after.get(key)
        if value is not None and other is not None:
            pairs.setdefault(key[0], []).append((value, other))
    if not pairs:
        return None
    solved = [tuple(sum(side) > len(side) / 2 for side in zip(*runs, strict=True)) for runs in pairs.values()]
    return mcnemar([each[0] for each in solved], [each[1] for each in solved])
