"""The third role of the simulation (section 4.2): what each reply does, the answer it gives, and what that is worth.

In a multi-turn conversation only answer attempts are extracted and scored; in a single-turn one the reply always is. A
conversation has up to one score a turn, and `ScoreMode` says which of them counts.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from collab.environments.lost_in_conversation.schema import Instruction
from collab.environments.lost_in_conversation.simulations import Simulation
from collab.environments.lost_in_conversation.strategy import Strategy, visible_text
from collab.environments.lost_in_conversation.strategy_judge import RuleClassifier, StrategyClassifier
from collab.environments.lost_in_conversation.verifiers import Verifiers
from simulators.conversation import Conversation
from simulators.users.protocol import User, UserTurn

FULLY_RIGHT = 1.0 - 1e-9

Result = TypeVar("Result")


class ScoreMode(StrEnum):
    """Which attempt counts for a conversation. Without any attempt the score is 0: the policy never answered."""

    MAX = "max"
    """The best attempt. The paper's, and kind: a conversation of n turns has n tries."""
    LAST = "last"
    """The last attempt: what the user is left with."""
    FINAL_TURN = "final_turn"
    """The last reply, 0 where that is no attempt: what the policy says when it knows everything."""


@dataclass(frozen=True, slots=True)
class AssessedReply:
    """One reply: its turn (from 1), strategy, length in words, and for an attempt the answer found in it and its score (0..1).

    `strategy` is None in single-turn simulations, which do not classify. An attempt without an extractable answer scores 0.
    """

    turn: int
    strategy: Strategy | None
    words: int
    answer: str | None = None
    score: float | None = None

    @property
    def is_attempt(self) -> bool:
        return self.score is not None


def conversation_score(replies: Sequence[AssessedReply], mode: ScoreMode) -> float:
    """Return the conversation's score in 0..1; 0 where nothing was attempted."""
    scores = [reply.score for reply in replies if reply.score is not None]
    match mode:
        case ScoreMode.MAX:
            return max(scores, default=0.0)
        case ScoreMode.LAST:
            return scores[-1] if scores else 0.0
        case ScoreMode.FINAL_TURN:
            return (replies[-1].score or 0.0) if replies else 0.0


@dataclass(slots=True)
class Assessor:
    """Classifies, extracts and scores. A reply is assessed once and an answer verified once, however many ask for it."""

    verifiers: Verifiers = field(default_factory=Verifiers)
    classifier: StrategyClassifier = field(default_factory=RuleClassifier)
    _replies: _Once[AssessedReply] = field(default_factory=lambda: _Once(), repr=False)
    _answers: _Once[tuple[str | None, float]] = field(default_factory=lambda: _Once(), repr=False)

    async def assess(self, conversation: Conversation, instruction: Instruction, simulation: Simulation) -> list[AssessedReply]:
        """Assess every reply of a conversation, in order.

        Raises:
            ScoringError: when a reply cannot be classified or scored.
        """
        ends = [position + 1 for position, message in enumerate(conversation) if message.role == "assistant"]
        return [await self.assess_last(conversation[:end], instruction, simulation) for end in ends]

    async def assess_last(self, conversation: Conversation, instruction: Instruction, simulation: Simulation) -> AssessedReply:
        """Assess the last message of a conversation, a reply.

        Raises:
            ScoringError: as `assess` does.
        """
        said = (part for message in conversation for part in (message.role, message.content))
        key = _digest(instruction.id, simulation, *said)
        return await self._replies.get(key, lambda: self._assess_last(conversation, instruction, simulation))

    async def _assess_last(self, conversation: Conversation, instruction: Instruction, simulation: Simulation) -> AssessedReply:
        reply = conversation[-1].content
        turn = sum(message.role == "assistant" for message in conversation)
        words = len(visible_text(reply).split())
        strategy = None if simulation.single_turn else await self.classifier.strategy(conversation, instruction)
        if strategy not in (None, Strategy.ANSWER_ATTEMPT):
            return AssessedReply(turn, strategy, words)
        key = _digest(instruction.id, reply)
        answer, score = await self._answers.get(key, lambda: self.verifiers.verify(reply, instruction))
        return AssessedReply(turn, strategy, words, answer, score)


@dataclass(frozen=True, slots=True)
class StopWhenRight:
    """A user who leaves as soon as an attempt is fully right, as the paper's do. A deployed model never gets that feedback."""

    inner: User
    assessor: Assessor
    instruction: Instruction
    simulation: Simulation

    async def next_turn(self, conversation: Conversation, seed: int) -> UserTurn:
        """Return the inner user's move, or leave after a right answer.

        Raises:
            ScoringError: when the last reply cannot be scored.
            SimulatorError, ChatModelError: as the inner user does.
        """
        if conversation and conversation[-1].role == "assistant":
            assessed = await self.assessor.assess_last(conversation, self.instruction, self.simulation)
            if assessed.score is not None and assessed.score >= FULLY_RIGHT:
                return UserTurn("", ends=True)
        return await self.inner.next_turn(conversation, seed)


class _Once(Generic[Result]):
    """Remembers results by key, and lets all who ask for one at the same time wait for a single piece of work."""

    def __init__(self, most: int = 20_000) -> None:
        self._most = most
        self._known: dict[str, Result] = {}
        self._under_way: dict[str, asyncio.Task[Result]] = {}

    async def get(self, key: str, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Return the result of a key; an error is passed on and not remembered."""
        if key in self._known:
            return self._known[key]
        task = self._under_way.get(key)
        if task is None or task.get_loop() is not asyncio.get_running_loop():
            task = asyncio.create_task(work())
            self._under_way[key] = task
            task.add_done_callback(lambda done: self._under_way.pop(key, None))
        result = await asyncio.shield(task)
        if len(self._known) >= self._most:
            self._known.clear()
        self._known[key] = result
        return result


def _digest(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
