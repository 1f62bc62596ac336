"""A user made of rules and hidden facts: no LLM, no randomness, and honest about what it was asked.

It opens with a message that may lack something, tells a hidden fact only when it is asked (or, if it `volunteers`, also when
the policy went ahead without asking), and leaves when it has been given an answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from simulators.conversation import Conversation
from simulators.questions import asks
from simulators.users.protocol import UserTurn

_WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True, slots=True)
class HiddenFact:
    """Something the user knows and has not said. `statement` is how it says it; `cues` are words of a question about it."""

    statement: str
    cues: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ScriptedUser:
    """See the module. Facts are told in the order given, unless a question's words point at a later one.

    `nothing_left` is the answer to a question when no fact is hidden any more.
    """

    opening: str
    facts: tuple[HiddenFact, ...] = ()
    volunteers: bool = False
    nothing_left: str = "I have told you everything I know. Please go ahead."

    async def next_turn(self, conversation: Conversation, seed: int) -> UserTurn:
        """Return the opening, a fact, `nothing_left`, or leave. The seed is not used: nothing here is drawn."""
        if not conversation:
            return UserTurn(self.opening)
        said = {message.content for message in conversation if message.role == "user"}
        hidden = [fact for fact in self.facts if fact.statement not in said]
        reply = conversation[-1].content
        if asks(reply):
            return UserTurn(_best_answer(reply, hidden).statement if hidden else self.nothing_left)
        if self.volunteers and hidden:
            return UserTurn(hidden[0].statement)
        return UserTurn("", ends=True)


def _best_answer(question: str, hidden: list[HiddenFact]) -> HiddenFact:
    words = set(_WORD.findall(question.lower()))
    return max(hidden, key=lambda fact: len(fact.cues & words))  # max keeps the first of equals: the order given
