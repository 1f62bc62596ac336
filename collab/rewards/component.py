"""What a reward is made of: components that score a conversation, each with a name, a range and a source.

**Where a score ends and a failure begins.** One rule holds for all components:

- What the *policy* did earns a score, however bad. No answer, an answer nobody can parse, code that crashes, loops or attacks
  the sandbox, a query that fails or runs too long: 0 (or the component's lowest value).
- What *measuring* did wrong earns none. A judge without a usable verdict, a verifier that hangs and is killed, a sandbox that
  could not be set up, tests or gold queries that do not run: `ScoringError`, and the conversation is left out of every mean.
- What can never work (no reference, no judge configured, no sandbox on this machine) is a `ConfigurationError`.

A component that cannot score never returns a made-up number. Missing is never zero.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from collab.tasks.task import Task
from simulators.conversation import Conversation, Outcome
from simulators.errors import CollabError, ConfigurationError


class ScoringError(CollabError):
    """A component could not score this conversation; `outcome` says whose failure it was (judge, infrastructure, user)."""

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


def reference_of(task: Task, component: str) -> str:
    """Return the task's reference solution y_g.

    Raises:
        ConfigurationError: when the task has none; no conversation about it could ever be scored.
    """
    if task.reference is None or not task.reference.strip():
        raise ConfigurationError(f"task {task.id} has no reference; {component} cannot score it, drop the task or the component")
    return task.reference
