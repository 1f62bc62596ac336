"""Per-turn intent tracking: does each reply answer today's intent, yesterday's value, or yesterday's question?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from collab.environments.evolving_intent.answers import TurnTarget
from collab.tasks.task import Task
from simulators.conversation import Conversation


class Verdict(StrEnum):
    """What a reply shows about the intent that the agent had in mind."""

    CURRENT = "current"
    """The answer of the active function at the active values."""
    STALE_VALUE = "stale_value"
    """The answer before a revision: the agent still holds a corrected value."""
    STALE_FUNCTION = "stale_function"
    """The answer of an earlier function: the agent missed a switch."""
    PREMATURE = "premature"
    """Some answer, although not everything has been told."""
    WAITING = "waiting"
    """No answer while not everything has been told: what a careful agent does."""
    OTHER = "other"
    """Some other answer, or none although everything has been told."""
    UNKNOWN = "unknown"
    """Everything has been told, but the target is not known."""


class ReplyVerifier(Protocol):
    """Compares the answer in a reply with a target, in the manner of a domain."""

    async def gives(self, reply: str, target: str, task: Task) -> bool:
        """Return whether the reply's answer is the target.

        Raises:
            ScoringError: the verifier failed.
        """
        ...

    def answers(self, reply: str) -> bool:
        """Return whether the reply gives any answer at all."""
        ...


Shown = Callable[[Conversation, Task], str]
"""Returns what is graded of a conversation that ends with a reply."""


def last_reply(conversation: Conversation, task: Task) -> str:
    """Return the text of the last reply."""
    return conversation[-1].content


async def track(
    conversation: Conversation, targets: Sequence[TurnTarget], verifier: ReplyVerifier, task: Task, shown: Shown = last_reply
) -> tuple[Verdict, ...]:
    """Return the verdict on the reply to every turn that was played; of a turn with calls of tools its last message counts.

    Raises:
        ScoringError: as the verifier does.
    """
    ends = [
        end
        for end, message in enumerate(conversation, start=1)
        if message.role == "assistant" and (end == len(conversation) or conversation[end].role == "user")
    ]
    replies = [shown(conversation[:end], task) for end in ends]
    return tuple([await _verdict(reply, target, verifier, task) for reply, target in zip(replies, targets, strict=False)])


async def _verdict(reply: str, target: TurnTarget, verifier: ReplyVerifier, task: Task) -> Verdict:
    answers = verifier.answers(reply)
    if not target.told:
        return Verdict.PREMATURE if answers else Verdict.WAITING
    if target.answer is None:
        return Verdict.UNKNOWN
    if answers:
        if await verifier.gives(reply, target.answer, task):
            return Verdict.CURRENT
        for verdict, stale in ((Verdict.STALE_VALUE, target.stale_values), (Verdict.STALE_FUNCTION, target.stale_functions)):
            for text in stale:
                if await verifier.gives(reply, text, task):
                    return verdict
    return Verdict.OTHER


@dataclass(frozen=True, slots=True)
class TrackingFigures:
    """Counts of verdicts by kind of turn (opening, reveal, revision, switch, repeat)."""

    counts: dict[str, Counter[Verdict]]

    def rate(self, kind: str, verdict: Verdict) -> float | None:
        """Return a verdict's share among the turns of a kind where it was possible, None where there were none.

        CURRENT and the stale verdicts are shares of turns with a known target, PREMATURE and WAITING of those that lack
        something.
        """
        counts = self.counts.get(kind, Counter())
        lacking = counts[Verdict.PREMATURE] + counts[Verdict.WAITING]
        known = sum(counts.values()) - lacking - counts[Verdict.UNKNOWN]
        total = lacking if verdict in (Verdict.PREMATURE, Verdict.WAITING) else known
        return counts[verdict] / total if total else None


def tracking_figures(tracked: Iterable[tuple[Sequence[str], Sequence[Verdict]]]) -> TrackingFigures:
    """Count the verdicts of many conversations, each given as (kinds of its turns, verdicts on its replies)."""
    counts: dict[str, Counter[Verdict]] = {}
    for kinds, verdicts in tracked:
        for kind, verdict in zip(kinds, verdicts, strict=False):
            counts.setdefault(kind, Counter())[verdict] += 1
    return TrackingFigures(counts)
