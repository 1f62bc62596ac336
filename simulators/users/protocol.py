"""What every simulated user answers to: given the conversation so far, say the next thing, or leave.

Users hold no state: everything they know beyond the conversation is fixed when they are made (the goal, hidden facts, shards).
So one user can carry on any number of futures of a conversation at once, and a fork needs no copying.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from simulators.chat_models.protocol import Completion
from simulators.conversation import Conversation


@dataclass(frozen=True, slots=True)
class UserTurn:
    """A user's next move: `text` (may be empty when leaving), and whether the conversation `ends` with it.

    `completion` is the model call behind it, where there was one. `flags` name suspicions about the simulator's own behaviour
    (role flip, leaked goal, ...), which are counted and never silently repaired.
    """

    text: str
    ends: bool = False
    completion: Completion | None = None
    flags: tuple[str, ...] = ()


@runtime_checkable
class User(Protocol):
    """A simulated (or human) user with an implicit goal."""

    async def next_turn(self, conversation: Conversation, seed: int) -> UserTurn:
        """Return the user's next move; an empty conversation asks for the opening message.

        Raises:
            SimulatorError: no usable message came out, after the user's own attempts to mend it.
            ChatModelError: the model behind the user failed.
        """
        ...
