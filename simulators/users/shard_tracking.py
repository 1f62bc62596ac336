"""Reads from the conversation alone which shards a user has told: no state is kept, so any fork of a conversation works.

A user who tells shards word for word is easy to follow. One who rephrases is followed by what a rephrasing must keep: every
number, quoted text and identifier of the shard, and most of its content words. The reading is deterministic, and a user
that rephrases *checks its own message with it before sending* (`simulators.users.sharded`): what cannot be read back as the
shard it is meant to be is never said. So the next turn, on whatever fork, reads exactly what this turn meant.

Shards are known by their position, from 0; position 0 is the intent, which opens the conversation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from simulators.conversation import Conversation

SNOWBALL_NEW = "And one more thing:"
"""Stands between what a SNOWBALL message restates and what it adds; only what follows can be new."""

_MIN_COVERAGE = 0.5
_MIN_COVERAGE_WITHOUT_HARD_TOKENS = 0.6
_LONGEST_REPHRASED = 2_000
"""Characters; longer shards are tables and documents, which are told word for word or not at all."""

_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?")
_QUOTED = re.compile(r"(?<!\w)'([^'\n]{1,80})'(?!\w)|\"([^\"\n]{1,80})\"|`([^`\n]{1,80})`")
_IDENTIFIER = re.compile(r"\b[A-Za-z]\w*(?:[._]\w+)+\b")
_COUNTING = (
    "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
    "nineteen twenty"
)
_NUMBER_WORDS = {word: str(value) for value, word in enumerate(_COUNTING.split(), start=2)}  # "one" is mostly no number
_FUNCTION_WORDS = (
    "a about all also am an and any are as at be been being but by can could did do does doing done each for from get gets got "
    "had has have having he her hers him his how i if in into is it its it's just like many me more much must my need no not of "
    "oh on one or other our out over please she should so some such than that that's the their them then there there's these "
    "they this those to too up us use want was we were what what's when where which while who whom whose why will with would "
    "you your"
)
_STOP_WORDS = frozenset(_FUNCTION_WORDS.split())


def numbers(text: str) -> frozenset[str]:
    """Return the numbers of a text in one spelling: "$1,000.50" and "1000.5" are the same, "twelve" is "12"."""
    found = {_plain_number(match) for match in _NUMBER.findall(text)}
    found |= {_NUMBER_WORDS[word] for word in _WORD.findall(text.casefold()) if word in _NUMBER_WORDS}
    return frozenset(found)


@lru_cache(maxsize=2048)
def content_words(text: str) -> frozenset[str]:
    """Return the stems of the words that carry meaning; numbers are not among them."""
    words = set(_WORD.findall(text.casefold())) - _STOP_WORDS - _NUMBER_WORDS.keys()
    return frozenset(_stem(word.removesuffix("'s")) for word in words)


def told_by_turn(conversation: Conversation, shards: Sequence[str], preamble: str = "") -> list[frozenset[int]]:
    """Return the positions of the shards that each user message told for the first time, one set a user message.

    The opening tells the intent whatever its words. `preamble` is text that a user puts before it; it tells nothing.
    """
    hidden = set(range(len(shards)))
    told: list[frozenset[int]] = []
    for message in conversation:
        if message.role != "user":
            continue
        text = message.content
        if told:
            new = told_by_message(text.rsplit(SNOWBALL_NEW, 1)[-1], shards, hidden)
        else:
            new = frozenset({0} & hidden) | _verbatim(text.removeprefix(preamble), shards, hidden)
        hidden -= new
        told.append(new)
    return told


def hidden_shards(conversation: Conversation, shards: Sequence[str], preamble: str = "") -> list[int]:
    """Return the positions of the shards that were not told yet, in order."""
    told = frozenset[int]().union(*told_by_turn(conversation, shards, preamble))
    return [position for position in range(len(shards)) if position not in told]


def told_by_message(text: str, shards: Sequence[str], hidden: Iterable[int]) -> frozenset[int]:
    """Return which of the hidden shards a message tells: all that stand in it word for word, else the one it rephrases."""
    hidden = set(hidden)
    verbatim = _verbatim(text, shards, hidden)
    if verbatim:
        return verbatim
    rephrased = _rephrased(text, shards, hidden)
    return frozenset() if rephrased is None else frozenset({rephrased})


def best_answer(reply: str, shards: Sequence[str], hidden: Sequence[int]) -> int | None:
    """Return the hidden shard that answers the questions of a reply best by shared words; None where none shares any.

    A word counts the less, the more of the hidden shards have it (1 / number of them); equals go to the earlier shard.
    """
    asked = content_words(" ".join(_questions(reply)))
    words = {position: content_words(shards[position]) for position in hidden}
    spread = Counter(word for each in words.values() for word in each)
    scores = {position: sum(1 / spread[word] for word in each & asked) for position, each in words.items()}
    best = max(scores, key=lambda position: (scores[position], -position), default=None)
    return best if best is not None and scores[best] > 0 else None


def _verbatim(text: str, shards: Sequence[str], hidden: Iterable[int]) -> frozenset[int]:
    """Find shards word for word, the longest first; what one shard has matched is not matched again by a shorter one."""
    haystack = _normalised(text)
    found = set()
    needles = {position: _normalised(shards[position]).rstrip(".!?;, ") for position in hidden}
    for position in sorted(needles, key=lambda each: (-len(needles[each]), each)):
        start = _find_whole(haystack, needles[position])
        if start is not None:
            found.add(position)
            haystack = f"{haystack[:start]}\n{haystack[start + len(needles[position]) :]}"
    return frozenset(found)


def _find_whole(haystack: str, needle: str) -> int | None:
    """Find `needle` where it neither starts nor ends inside a word or a number."""
    if not needle:
        return None
    start = haystack.find(needle)
    while start >= 0:
        end = start + len(needle)
        if not (_joins(haystack[start - 1 : start], needle[0]) or _joins(needle[-1], haystack[end : end + 1])):
            return start
        start = haystack.find(needle, start + 1)
    return None


def _joins(left: str, right: str) -> bool:
    return bool(left and right) and left.isalnum() and right.isalnum()


def _rephrased(text: str, shards: Sequence[str], hidden: Iterable[int]) -> int | None:
    """Return the one hidden shard that the text covers best; None where none is covered, or two equally well."""
    if len(text) > _LONGEST_REPHRASED:
        return None
    said_words, said_numbers, said_plain = content_words(text), numbers(text), _normalised(text)
    covered: list[tuple[float, int]] = []
    for position in hidden:
        shard = shards[position]
        if len(shard) > _LONGEST_REPHRASED:
            continue
        needed_numbers, needed_texts = numbers(shard), _hard_texts(shard)
        if not needed_numbers <= said_numbers or not all(each in said_plain for each in needed_texts):
            continue
        words = content_words(shard)
        has_hard_tokens = bool(needed_numbers or needed_texts)
        coverage = len(words & said_words) / len(words) if words else float(has_hard_tokens)
        if coverage >= (_MIN_COVERAGE if has_hard_tokens else _MIN_COVERAGE_WITHOUT_HARD_TOKENS):
            covered.append((coverage + 0.01 * len(needed_numbers), position))
    covered.sort(reverse=True)
    if not covered or (len(covered) > 1 and covered[0][0] == covered[1][0]):
        return None
    return covered[0][1]


def _hard_texts(shard: str) -> list[str]:
    """Return what a rephrasing must keep letter for letter: quoted texts and identifiers."""
    quoted = ["".join(groups) for groups in _QUOTED.findall(shard)]
    return [_normalised(text) for text in (*quoted, *_IDENTIFIER.findall(shard)) if text.strip()]


def _questions(reply: str) -> list[str]:
    """Return the sentences of a reply that end in a question mark; the whole reply where it asks without one."""
    asked = [sentence for sentence in re.split(r"(?<=[.!?:\n])\s+", reply) if sentence.rstrip("*_\"' )").endswith("?")]
    return asked or (
        [reply] if re.search(r"\b(?:please (?:tell|provide|share|give|specify)|need to know)\b", reply, re.I) else []
    )


@lru_cache(maxsize=2048)  # a conversation of documents is read once a turn
def _normalised(text: str) -> str:
    return " ".join(text.casefold().split())


def _plain_number(text: str) -> str:
    text = text.replace(",", "")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _stem(word: str) -> str:
    """Cut the commonest endings off, so that "shared" meets "shares"; crude on purpose, and the same on both sides."""
    for ending in ("ing", "ies", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending)
            break
    return word.removesuffix("e") if len(word) > 3 else word
