"""Turns segments into shards by rules: the intent as a short opener, each fact as a sentence that can stand by itself.

Wording changes as little as it can (property P5): conditions lose their "if", sentences get a capital and a full stop, and a
pronoun that opens a fact becomes the name it stands for where only one name can be meant. No number is touched. What the rules
cannot mend (a pronoun that stays, a word that needs an order) is reported by `properties`, for the person who reviews.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from collab.environments.lost_in_conversation.sharding.segmentation import Segments
from collab.language.sentences import as_sentence, capitalise

_OPENING_WORDS = re.compile(r"^(?:and|so|now|but|then|finally|thus|therefore|well|also|next|lastly)\b,?\s+(?=\w)", re.I)
_CONDITION = re.compile(
    r"^(?:if(?! possible)|assuming(?: that)?|given that|knowing that|considering that|supposing|suppose(?: that)?)\s+", re.I
)
_PERSON = re.compile(r"^(?P<pronoun>he|she)\b", re.I)
_POSSESSIVE = re.compile(r"^(?P<pronoun>his|her)\b(?=\s+[a-z])", re.I)
_NAME = re.compile(r"\b[A-Z][a-z]{2,}\b")
_CAPITALISED_WORDS = (
    "monday tuesday wednesday thursday friday saturday sunday january february march april may june july august "
    "september october november december christmas easter halloween thanksgiving the she they his her their its "
    "there this that these those each every after before during when while then how what which who where for from "
    "with one two three four five six seven eight nine ten half all both some many most another first second third "
    "and but not our your you if since because every last next yesterday today tomorrow now assuming given suppose "
    "mr mrs miss"
)
_NOT_NAMES = frozenset(_CAPITALISED_WORDS.split())


def rephrase(segments: Segments) -> tuple[str, ...]:
    """Return the shards, the intent first."""
    people = _people((segments.intent, *segments.facts))
    facts = (_as_fact(fact, people) for fact in segments.facts)
    return (_as_opener(segments.intent), *facts)


def _as_opener(intent: str) -> str:
    text = capitalise(_OPENING_WORDS.sub("", intent).strip())
    return text if text.endswith(("?", ".", "!")) else text + "?"


def _as_fact(fact: str, people: Sequence[str]) -> str:
    text = _CONDITION.sub("", _OPENING_WORDS.sub("", fact.strip()))
    if len(people) == 1:
        text = _PERSON.sub(people[0], text, count=1)
        text = _POSSESSIVE.sub(f"{people[0]}'s", text, count=1)
    return as_sentence(text)


def _people(texts: Sequence[str]) -> list[str]:
    """Return the names in the texts. A word that opens a sentence counts only if it also stands elsewhere or a verb follows."""
    names: dict[str, None] = {}
    for text in texts:
        for match in _NAME.finditer(text):
            word = match.group()
            if word.casefold() in _NOT_NAMES or word.endswith("'s"):
                continue
            follows = re.match(r"(?:'s)?\s+[a-z]+(?:s|ed|d|t|ad|as|ew|old|ew)?\b", text[match.end() :])
            if match.start() > 0 or follows:
                names.setdefault(word)
    return list(names)
