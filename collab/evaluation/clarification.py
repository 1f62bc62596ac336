"""Asking back when, and only when, a question is ambiguous: CollabLLM Table 2 from evaluated conversations (Abg-CoQA)."""

from __future__ import annotations

from collections.abc import Iterable

from collab.evaluation.paper_tables import ActionCounts
from collab.evaluation.run import EvaluatedConversation

COMPONENT = "action_accuracy"
"""The reward component that is 1 where the first reply took the right action."""


def action_counts(
    method: str, conversations: Iterable[EvaluatedConversation], *, baseline: bool = False
) -> ActionCounts | None:  # fmt: skip
    """Return what a method did with ambiguous and with clear questions; None where the conversations are not about such.

    Conversations whose action could not be told are left out.
    """
    hits: dict[bool, list[float]] = {True: [], False: []}
    for conversation in conversations:
        ambiguous, right = conversation.task.get("ambiguous"), conversation.components.get(COMPONENT)
        if isinstance(ambiguous, bool) and right is not None:
            hits[ambiguous].append(right)
    if not hits[True] and not hits[False]:
        return None
    return ActionCounts(
        method, len(hits[True]), round(sum(hits[True])), len(hits[False]), round(sum(hits[False])), baseline
    )  # fmt: skip


def clarification_figures(conversations: Iterable[EvaluatedConversation]) -> dict[str, float]:
    """Return the figures of Table 2 by name, as fractions; those that the conversations cannot give are absent."""
    counts = action_counts("", conversations)
    if counts is None:
        return {}
    figures = {
        "ambiguous_accuracy": counts.ambiguous_accuracy,
        "clear_accuracy": counts.clear_accuracy,
        "macro_accuracy": counts.macro_accuracy,
        "macro_f1": counts.macro_f1,
    }
    return {name: value for name, value in figures.items() if value is not None}
