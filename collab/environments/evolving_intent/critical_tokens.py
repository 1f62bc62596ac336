"""What a rewording must not lose: numbers, quoted strings and names of several words (paper, section 4 and appendix C.2)."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from collab.language.numbers import find_numbers

MAX_GROWTH = 3
"""A rewording may have this many times the words of its reference, plus ten."""

_QUOTED = re.compile(r"\"([^\"]{1,200})\"|(?<!\w)'([^'\s][^']{0,200})'(?!\w)|`([^`]{1,200})`")
_NAMES = re.compile(r"\b[A-Z][\w'-]*(?: (?:of |the )?[A-Z][\w'-]*)+")
_OPENERS = frozenset(
    "a after all alright also an and at before but can correction each every finally first for from good he her here "
    "his how however i if in it its last lastly let next now of ok on one our she so some sorry thanks that the their "
    "then there these they this those today today's tomorrow two wait we what when where which while who with "
    "yesterday you".split()
)
"""Words that are written large because a sentence starts with them."""


@dataclass(frozen=True, slots=True)
class CriticalTokens:
    """The parts of a message that carry its meaning: values (with how often), quoted strings, names of several words."""

    values: Counter[Fraction]
    quoted: frozenset[str]
    names: frozenset[str]


def critical_tokens(text: str) -> CriticalTokens:
    """Return the critical tokens of a text; strings and names in lower case."""
    quoted = frozenset(next(group for group in match.groups() if group).lower() for match in _QUOTED.finditer(text))
    names = frozenset(name for match in _NAMES.finditer(text) if len((name := _without_opener(match.group())).split()) > 1)
    return CriticalTokens(Counter(number.value for number in find_numbers(text)), quoted, names)


def _without_opener(name: str) -> str:
    words = name.lower().split()
    while words and words[0] in _OPENERS:
        words.pop(0)
    return " ".join(words)


def lost_meaning(reference: str, rewording: str) -> str | None:
    """Say what a rewording lost or made up against its reference, None where it kept everything that is checked.

    Every value must be said (how often does not matter), no other value may appear, quoted strings and names must stay, a
    question must stay one, and the length must stay within reason.
    """
    wanted, found = critical_tokens(reference), critical_tokens(rewording)
    if missing := sorted(map(str, wanted.values.keys() - found.values.keys())):
        return f"the value {missing[0]} is missing"
    if added := sorted(map(str, found.values.keys() - wanted.values.keys())):
        return f"the value {added[0]} was never there"
    lowered = re.sub(r"\s+", " ", rewording.lower())
    for text in sorted(wanted.quoted | wanted.names):
        if text not in lowered:
            return f"{text!r} is missing"
    if "?" in reference and not re.search(r"\?|\b(?:how|what|which|who|when|where|find|tell|work out|know)\b", lowered):
        return "the question is missing"
    if not rewording.strip() or len(rewording.split()) > MAX_GROWTH * len(reference.split()) + 10:
        return "it is empty or far too long"
    return None
