"""Cheap signals that a simulated user misbehaves: each is a flag on the user's turn, counted and never silently repaired.

A user simulator is a model with faults, and a policy can learn to live off them. The signals are rules over one message and the
conversation before it, so they cost microseconds and are the same in every run:

    role_flip          the message sounds like an assistant's ("How can I help you today?"); English phrases only
    goal_leak          it copies a long run of words out of the goal text, which no human would have at hand
    repeated_message   the user said (nearly) the same before
    empty_message      it says nothing, and does not leave either
    early_stop         it leaves right after the assistant asked it something

They are signals, not verdicts: a user that is asked for the exact wording leaks it rightly. Rates matter, not single flags.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from simulators.conversation import Conversation
from simulators.questions import asks

ROLE_FLIP = "role_flip"
GOAL_LEAK = "goal_leak"
REPEATED_MESSAGE = "repeated_message"
EMPTY_MESSAGE = "empty_message"
EARLY_STOP = "early_stop"
FLAGS = (ROLE_FLIP, GOAL_LEAK, REPEATED_MESSAGE, EMPTY_MESSAGE, EARLY_STOP)

LEAKED_WORDS = 8
"""Words in a row that a message may not share with the goal."""

_SHORTEST_LEAK = 4
_NEARLY_THE_SAME = 0.9
_SHORTEST_COMPARED = 4

_WORD = re.compile(r"\w+")
_ASSISTANT_PHRASES = re.compile(
    r"how (?:can|may) i (?:help|assist)|(?:can|may) i (?:help|assist) you|i(?:'d| would) be (?:happy|glad) to (?:help|assist)"
    r"|i(?:'m| am) (?:here|happy|glad) to (?:help|assist)|as an ai\b|is there anything else (?:i can|you(?:'d| would))"
    r"|let me know if you (?:have|need|would|'d)|feel free to ask|would you like me to|i hope this helps"
    r"|could you (?:please )?provide more (?:details|context)"
    r"|^(?:certainly|absolutely|of course|sure)[!,.]? (?:here(?:'s| is| are)|i can|let me|let's)",
    re.IGNORECASE,
)


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return _WORD.findall(text.lower())


def word_runs(text: str, length: int = LEAKED_WORDS) -> frozenset[tuple[str, ...]]:
    """Return every run of `length` words in a text; a shorter text is one run, unless it is too short to be telling."""
    words = words_of(text)
    if len(words) < length:
        return frozenset({tuple(words)}) if len(words) >= _SHORTEST_LEAK else frozenset()
    return frozenset(tuple(words[start : start + length]) for start in range(len(words) - length + 1))


def flags_of(message: str, *, ends: bool, conversation: Conversation, goal_runs: frozenset[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the flags that a simulated user's message raises.

    `conversation` is what came before it; `goal_runs` are the `word_runs` of the user's goal, worked out once.
    """
    flags = []
    words = words_of(message)
    earlier = [words_of(said.content) for said in conversation if said.role == "user"]
    if _ASSISTANT_PHRASES.search(message.strip().replace("’", "'")):
        flags.append(ROLE_FLIP)
    if _leaks(words, goal_runs):
        flags.append(GOAL_LEAK)
    if words and any(_nearly_equal(words, said) for said in earlier):
        flags.append(REPEATED_MESSAGE)
    if not message.strip() and not ends:
        flags.append(EMPTY_MESSAGE)
    if ends and conversation and asks(conversation[-1].content):
        flags.append(EARLY_STOP)
    return tuple(flags)


def _leaks(words: list[str], goal_runs: frozenset[tuple[str, ...]]) -> bool:
    if not goal_runs:
        return False
    length = len(next(iter(goal_runs)))  # all runs of one goal have the same
    return any(tuple(words[start : start + length]) in goal_runs for start in range(len(words) - length + 1))


def _nearly_equal(words: list[str], others: list[str]) -> bool:
    if words == others:
        return True
    if min(len(words), len(others)) < _SHORTEST_COMPARED:
        return False
    shared = sum((Counter(words) & Counter(others)).values())
    return shared >= _NEARLY_THE_SAME * max(len(words), len(others))


class FlagCounter:
    """Counts flags over the turns of any number of conversations."""

    def __init__(self) -> None:
        self.turns = 0
        self.flagged: Counter[str] = Counter()

    def add(self, flags: Iterable[str]) -> None:
        """Count one user turn with its flags (none, mostly)."""
        self.turns += 1
        self.flagged.update(set(flags))

    def rates(self) -> dict[str, float]:
        """Return the share of user turns that raised each flag; empty before the first turn."""
        return {flag: self.flagged[flag] / self.turns for flag in FLAGS} if self.turns else {}
