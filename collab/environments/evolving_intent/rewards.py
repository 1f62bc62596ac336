"""What counts: the reply to the last turn, graded by the source's own verifier; and, beside it, every turn on the way."""

from __future__ import annotations

from dataclasses import dataclass, field

from collab.environments.evolving_intent.conversations import targets_from_record
from collab.environments.evolving_intent.tracking import ReplyVerifier, Shown, Verdict, last_reply, track
from collab.rewards.component import RewardComponent
from collab.tasks.task import Task
from simulators.conversation import Conversation, Message


@dataclass(frozen=True, slots=True)
class FinalTurn:
    """The verifier's score of the reply to the last scheduled turn; 0 where the conversation never got there.

    Earlier replies are kept from the verifier, so that a stale answer cannot stand in for a missing last one.
    """

    verifier: RewardComponent
    shown: Shown = last_reply
    name: str = "accuracy"
    source: str = "LLMs Get Lost in Evolving User Intent, section 4: the source verifier on the final turn"
    value_range: tuple[float, float] = (0.0, 1.0)

    async def score(self, conversation: Conversation, task: Task) -> float:
        """Return the verifier's score.

        Raises:
            ScoringError, ConfigurationError: as the verifier does.
        """
        scheduled = len(task.metadata["evolving"]["messages"])
        asked = sum(message.role == "user" for message in conversation)
        if asked < scheduled or conversation[-1].role != "assistant":
            return 0.0
        last = [message for message in conversation if message.role == "user"][-1]
        return await self.verifier.score((last, Message("assistant", self.shown(conversation, task))), task)


@dataclass(frozen=True, slots=True)
class IntentTracking:
    """The share of turns with a known target whose reply gives it: the intermediate verifier that the paper leaves open."""

    verifier: ReplyVerifier
    shown: Shown = last_reply
    name: str = "intent_tracking"
    source: str = "our own: per-turn targets y_t wherever the domain can compute them"
    value_range: tuple[float, float] = field(default=(0.0, 1.0))

    async def score(self, conversation: Conversation, task: Task) -> float:
        """Return the share; turns that were never played count as missed.

        Raises:
            ScoringError: as the verifier does.
        """
        targets = targets_from_record(task.metadata["evolving"])
        known = sum(target.answer is not None for target in targets)
        verdicts = await track(conversation, targets, self.verifier, task, self.shown)
        return sum(verdict is Verdict.CURRENT for verdict in verdicts) / known
