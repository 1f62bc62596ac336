"""The simulation types (section 4.1): one problem, six ways for a user to tell it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from collab.environments.lost_in_conversation.schema import Instruction
from simulators.chat_models.protocol import ChatModel, SamplingSettings
from simulators.conversation import Conversation
from simulators.users.protocol import User
from simulators.users.shard_tracking import told_by_turn
from simulators.users.sharded import ModelShardedUser, RecapUser, ShardedUser, SingleTurnUser, SnowballUser, concat


class Simulation(StrEnum):
    """How the user tells the problem."""

    FULL = "full"
    """The original instruction, in one turn."""
    CONCAT = "concat"
    """All shards as points, in one turn: no loss from telling it in turns, only from the wording of the shards."""
    SHUFFLE_CONCAT = "shuffle_concat"
    """CONCAT with all points but the first in random order."""
    SHARDED = "sharded"
    """The first shard, then at most one more each turn."""
    RECAP = "recap"
    """SHARDED, then one turn that restates everything."""
    SNOWBALL = "snowball"
    """SHARDED, where each turn restates everything told before."""

    @property
    def single_turn(self) -> bool:
        """True where everything is said at once: the reply is not classified, its answer is always extracted."""
        return self in (Simulation.FULL, Simulation.CONCAT, Simulation.SHUFFLE_CONCAT)


ALL_SIMULATIONS = tuple(Simulation)


@dataclass(frozen=True, slots=True)
class UserSettings:
    """Who plays the multi-turn user: `model` at `temperature` (the paper: 1.0), or the rule user where there is none.

    A simulator at temperature 0 lowers the measured unreliability by itself, so its temperature belongs in every report.
    `attempts` bounds the model calls of one turn.
    """

    model: ChatModel | None = None
    temperature: float = 1.0
    max_tokens: int = 256
    attempts: int = 3

    def describe(self) -> dict[str, str | float | int]:
        """Return what a report should say about the user."""
        if self.model is None:
            return {"user": "rules"}
        return {
            "user": self.model.name,
            "user_temperature": self.temperature,
            "user_max_tokens": self.max_tokens,
            "user_attempts": self.attempts,
        }


def make_user(instruction: Instruction, simulation: Simulation, settings: UserSettings | None = None, preamble: str = "") -> User:
    """Return the user of one conversation. `preamble` stands before the opening, for what the assistant must have anyway.

    Tables and documents are handed over as they are, so their tasks have the rule user whatever the settings.

    Raises:
        ConfigurationError: when the shards cannot be told in this simulation.
    """
    texts = instruction.shard_texts
    match simulation:
        case Simulation.FULL:
            return SingleTurnUser(instruction.full, preamble=preamble)
        case Simulation.CONCAT:
            return SingleTurnUser(concat(texts), preamble=preamble)
        case Simulation.SHUFFLE_CONCAT:
            return SingleTurnUser(points=texts, preamble=preamble)
    settings = settings or UserSettings()
    user: User
    if settings.model is None or instruction.kind.verbatim:
        user = ShardedUser(texts, preamble)
    else:
        sampling = SamplingSettings(max_tokens=settings.max_tokens, temperature=settings.temperature)
        user = ModelShardedUser(settings.model, texts, preamble, sampling, settings.attempts)
    if simulation is Simulation.RECAP:
        return RecapUser(user, texts)
    if simulation is Simulation.SNOWBALL:
        return SnowballUser(user, texts, preamble)
    return user


def turn_cap(instruction: Instruction, simulation: Simulation, max_turns: int | None = None) -> int:
    """Return the most turns a conversation may have: `max_turns`, by default twice the shards (and the recapitulation).

    The paper has none, so that a user who never tells anything new talks for ever.
    """
    if simulation.single_turn:
        return 1
    cap = 2 * len(instruction.shards) if max_turns is None else max_turns
    return cap + 1 if simulation is Simulation.RECAP else cap


def sufficient_turn(
    conversation: Conversation, instruction: Instruction, simulation: Simulation, preamble: str = ""
) -> int | None:
    """Return the turn (from 1) from which on all shards were told, None where some never were.

    Read from the conversation alone. It is on the safe side: a problem may be soluble before its last shard.
    """
    if simulation.single_turn:
        return 1
    told = 0
    for turn, new in enumerate(told_by_turn(conversation, instruction.shard_texts, preamble), start=1):
        told += len(new)
        if told == len(instruction.shards):
            return turn
    return None


def preamble_of(instruction: Instruction) -> str:
    """Return the text that stands before the opening where there is no system prompt to hold the task's context."""
    return f"{instruction.context}\n\n" if instruction.context else ""
