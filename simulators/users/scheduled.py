"""A user with a fixed script: says its messages one by one, whatever is replied, and leaves after the last.

What is said does not depend on the policy, so all candidates of a turn face exactly the same user, and no model is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulators.conversation import Conversation
from simulators.users.protocol import UserTurn


@dataclass(frozen=True, slots=True)
class ScheduledUser:
    """Says `messages` in order, one a turn.

    Raises:
        ValueError: when there is no message, or an empty one.
    """

    messages: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.messages or not all(message.strip() for message in self.messages):
            raise ValueError("a scheduled user needs at least one message, and none may be empty")

    async def next_turn(self, conversation: Conversation, seed: int) -> UserTurn:
        """Return the message of this turn, counted by the user messages so far; leave when there is none left."""
        said = sum(message.role == "user" for message in conversation)
        return UserTurn(self.messages[said]) if said < len(self.messages) else UserTurn("", ends=True)
