"""The same problems as an environment to train in: what a conversation is worth, and in which order problems come.

Three rewards, each the score of the conversation less what it does wrong on the way:

- `outcome`: the score alone.
- `premature`: less `premature_penalty` x the share of replies before all shards were told that were wrong answers.
- `abstention`: less also `refusal_penalty` x the share of replies after all shards were told that were no answer.

Answering too early is the behaviour to train away (first attempts in the first fifth of a conversation score 30.9, in the last
64.4); the third term keeps a policy from learning never to answer. A right answer before the last shard is not premature: it
shows that the shards sufficed. RLAAR trains on accuracy and abstention in the same spirit, with a curriculum over shards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from collab.environments.domain import BadRecord
from collab.environments.lost_in_conversation.assessment import (
    FULLY_RIGHT,
    AssessedReply,
    Assessor,
    ScoreMode,
    conversation_score,
)
from collab.environments.lost_in_conversation.schema import Instruction, Split, instruction_from_record
from collab.environments.lost_in_conversation.simulations import Simulation, preamble_of, sufficient_turn
from collab.rewards.component import RewardComponent, ScoringError
from collab.tasks.task import Task
from simulators.conversation import Conversation, Outcome
from simulators.errors import ConfigurationError

RewardName = Literal["outcome", "premature", "abstention"]


def task_from_instruction(instruction: Instruction) -> Task:
    """Return an instruction as a task; the record travels in the metadata, the user and the reward read it there."""
    return Task(
        id=instruction.id,
        goal=instruction.full,
        reference=None,
        opening=preamble_of(instruction) + instruction.shards[0].text,
        metadata={"instruction": {"split": str(instruction.split), "record": dict(instruction.record)}},
    )


def instruction_of_task(task: Task) -> Instruction:
    """Return the instruction that a task was made from.

    Raises:
        ConfigurationError: when the task was made by another environment.
    """
    data = task.metadata.get("instruction")
    if not isinstance(data, Mapping):
        raise ConfigurationError(f"task {task.id} is not one of lost_in_conversation; load it with this environment")
    try:
        return instruction_from_record(data["record"], Split(data["split"]))
    except (BadRecord, KeyError, ValueError) as error:
        raise ConfigurationError(f"task {task.id} holds a record that cannot be read: {error}") from None


@dataclass(frozen=True, slots=True)
class _Component:
    """What the three components share: they assess the conversation, and the assessor remembers it for the next one.

    `max_turns` is where the environment ends a conversation.
    """

    assessor: Assessor
    simulation: Simulation
    max_turns: int

    @property
    def value_range(self) -> tuple[float, float]:
        return (0.0, 1.0)

    async def _assessed(self, conversation: Conversation, task: Task) -> tuple[list[AssessedReply], int | None]:
        """Return the replies and the turn at which all shards were told.

        Raises:
            ScoringError: also where the turns ran out before the user had told everything, which is not the policy's doing.
        """
        instruction = instruction_of_task(task)
        replies = await self.assessor.assess(conversation, instruction, self.simulation)
        told = sufficient_turn(conversation, instruction, self.simulation, preamble_of(instruction))
        solved = any((reply.score or 0.0) >= FULLY_RIGHT for reply in replies)
        if told is None and len(replies) >= self.max_turns and not solved:
            raise ScoringError(f"the user did not tell all of {task.id} in {self.max_turns} turns", Outcome.USER_ERROR)
        return replies, told


@dataclass(frozen=True, slots=True)
class ConversationOutcome(_Component):
    """The score of the conversation's attempts, 0..1."""

    mode: ScoreMode = ScoreMode.FINAL_TURN
    name: str = "outcome"
    source: str = "Lost in Conversation, section 4.2"

    async def score(self, conversation: Conversation, task: Task) -> float:
        """Return the score under the mode.

        Raises:
            ScoringError: when a reply cannot be classified or scored.
        """
        replies, _ = await self._assessed(conversation, task)
        return conversation_score(replies, self.mode)


@dataclass(frozen=True, slots=True)
class PrematureAnswers(_Component):
    """The share of replies before all shards were told that were answers and not fully right, 0..1; 0 without such replies."""

    name: str = "premature"
    source: str = "Lost in Conversation, appendix on premature attempts"

    async def score(self, conversation: Conversation, task: Task) -> float:
        """Return the share.

        Raises:
            ScoringError: as `ConversationOutcome` does.
        """
        replies, sufficient = await self._assessed(conversation, task)
        early = [reply for reply in replies if sufficient is None or reply.turn < sufficient]
        wrong = sum(reply.score is not None and reply.score < 1.0 for reply in early)
        return wrong / len(early) if early else 0.0


@dataclass(frozen=True, slots=True)
class WithheldAnswers(_Component):
    """The share of replies from the turn on at which all shards were told that were no answer, 0..1; 0 without such replies."""

    name: str = "withheld"
    source: str = "abstention-aware reward in the spirit of RLAAR"

    async def score(self, conversation: Conversation, task: Task) -> float:
        """Return the share.

        Raises:
            ScoringError: as `ConversationOutcome` does.
        """
        replies, sufficient = await self._assessed(conversation, task)
        late = [reply for reply in replies if sufficient is not None and reply.turn >= sufficient]
        return sum(not reply.is_attempt for reply in late) / len(late) if late else 0.0


def reward_terms(
    reward: RewardName,
    assessor: Assessor,
    simulation: Simulation,
    mode: ScoreMode,
    premature_penalty: float,
    refusal_penalty: float,
    max_turns: int,
) -> tuple[tuple[RewardComponent, float], ...]:
    """Return the reward's components with their weights. Those that a reward does not use are measured with weight 0."""
    premature = premature_penalty if reward in ("premature", "abstention") else 0.0
    withheld = refusal_penalty if reward == "abstention" else 0.0
    return (
        (ConversationOutcome(assessor, simulation, max_turns, mode), 1.0),
        (PrematureAnswers(assessor, simulation, max_turns), -premature),
        (WithheldAnswers(assessor, simulation, max_turns), -withheld),
    )
