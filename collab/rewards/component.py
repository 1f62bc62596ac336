"""What a reward is made of: components that score a conversation, each with a name, a range and a source.

A component that cannot score raises `ScoringError`; it never returns a made-up number. Missing is never zero.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from collab.tasks.task import Task
from simulators.conversation import Conversation, Outcome
from simulators.errors import CollabError


class ScoringError(CollabError):
    """A component could not score this conversation; `outcome` says whose failure it was (judge_error or infra_error)."""

    def __init__(self, message: str, outcome: Outcome = Outcome.JUDGE_ERROR) -> None:
        super().__init__(message)
        self.outcome = outcome


@runtime_checkable
class RewardComponent(Protocol):
    """One term of R*: scores a whole conversation for a task.

    `value_range` is the closed interval the score lies in; `source` names the paper's equation or section.
    """

    @property
    def name(self) -> str: ...

    @property
    def value_range(self) -> tuple[float, float]: ...

    @property
    def source(self) -> str: ...

    async def score(self, conversation: Conversation, task: Task) -> float:
        """Return the score.

        Raises:
            ScoringError: when there is none to be had (a judge that gives no number, a verifier that hangs).
        """
        ...
