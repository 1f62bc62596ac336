"""A reader that knows all the wordings of a task and finds out from the user's messages what is meant: a perfect listener.

It follows the intent through rendered, styled or reworded messages and answers from the task's answer book. Where it ends up
wrong although it listens to everything, the words lost the meaning: that is how renderings are measured (`meaning_kept`). Told to
ignore revisions or switches, it shows what an agent scores that lives in the past.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from collab.environments.evolving_intent.conversion import Conversion
from collab.environments.evolving_intent.rendering import corrected_part
from collab.language.numbers import find_numbers

_TOKEN = re.compile(r"[a-z0-9$%./]+")
_NEAR = 0.72
"""How alike two words must be to count as one word and its typing slip."""
_SHARE = 0.8
"""The share of a wording's words that a message must hold, in order, to say it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the reader believes after some messages: the question, and the version of each argument told."""

    function: str | None
    versions: dict[str, int]


@dataclass(slots=True)
class Reader:
    """Reads the messages of one task in order. `ignores_revisions` keeps the first value told, `ignores_switches` the first
    question asked."""

    conversion: Conversion
    ignores_revisions: bool = False
    ignores_switches: bool = False
    _by_length: list[tuple[str, str, int | None]] = field(init=False)
    _vocabulary: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self._by_length = sorted(self._wordings(), key=lambda wording: -len(wording[0]))
        self._vocabulary = sorted({word for text, _, _ in self._by_length for word in _words(text)})

    def read(self, messages: Sequence[str]) -> Reading:
        """Return what is believed after the messages."""
        function: str | None = None
        versions: dict[str, int] = {}
        for message in messages:
            said = self._said(message)
            asked = [key for key, version in said if version is None]
            if asked and not (self.ignores_switches and function is not None):
                function = asked[-1]
            for key, version in said:
                if version is not None and not (self.ignores_revisions and key in versions):
                    versions[key] = version
        return Reading(function, versions)

    def answer(self, messages: Sequence[str]) -> str | None:
        """Return the answer to what is believed, None where it is not known."""
        reading = self.read(messages)
        if reading.function is None:
            return None
        return self.conversion.answers.answer(self.conversion.ingredients.function(reading.function), reading.versions)

    def _wordings(self) -> list[tuple[str, str, int | None]]:
        """Return every (text, key, version) that may be said; the version of a function is None."""
        ingredients = self.conversion.ingredients
        found: list[tuple[str, str, int | None]] = [(function.text, function.key, None) for function in ingredients.functions]
        own = [argument for function in ingredients.predecessors for argument in function.own]
        for argument in (*ingredients.arguments, *own):
            texts = [argument.value(version) for version in range(len(argument.alternatives) + 1)]
            for version, text in enumerate(texts):
                parts = dict.fromkeys([text, *(corrected_part(other, text) for other in texts if other != text)])
                found += [(part, argument.key, version) for part in parts]
        return found

    def _said(self, message: str) -> list[tuple[str, int | None]]:
        """Return what a message says: word for word where it is, else the nearest wording, its numbers always exact."""
        best: dict[str, tuple[float, int, int | None]] = {}
        rest = message
        for text, key, version in self._by_length:
            if text in message or (version is None and text[1:] in message):
                rest = rest.replace(text, " ").replace(text[1:], " ")
                if key not in best:  # the longest wording comes first
                    best[key] = (1.0, len(text), version)
        words = [self._spelled(word) for word in _words(rest)]
        numbers = {number.value for number in find_numbers(rest)}
        for text, key, version in self._by_length:
            wording = _words(text)
            if (key in best and best[key][0] == 1.0) or _SHARE * len(wording) > len(words):
                continue
            if not {number.value for number in find_numbers(text)} <= numbers:
                continue
            share = _share_in_order(wording, words)
            if share >= _SHARE and (key not in best or (share, len(wording)) > best[key][:2]):
                best[key] = (share, len(wording), version)
        functions = [key for key, (_, _, version) in best.items() if version is None]
        asked = max(functions, key=lambda key: best[key][:2], default=None)
        return [(key, version) for key, (_, _, version) in best.items() if version is not None or key == asked]

    def _spelled(self, word: str) -> str:
        """Return the word of the task that a word is, slips of typing allowed."""
        if word in self._vocabulary or any(character.isdigit() for character in word) or len(word) < 4:
            return word
        near = difflib.get_close_matches(word, self._vocabulary, n=1, cutoff=_NEAR)
        return near[0] if near else word


def _words(text: str) -> list[str]:
    return [word.strip("./") for word in _TOKEN.findall(text.lower().replace("'", "")) if word.strip("./")]


def _share_in_order(wording: Sequence[str], words: Sequence[str]) -> float:
    """Return the share of a wording's words that stand in a message in the same order."""
    matcher = difflib.SequenceMatcher(None, wording, words, autojunk=False)
    return sum(block.size for block in matcher.get_matching_blocks()) / max(1, len(wording))


def meaning_kept(conversion: Conversion, messages: Sequence[str]) -> bool:
    """True where the perfect listener ends in the source problem: its question, every argument at its source value."""
    reading = Reader(conversion).read(messages)
    source = {argument.key: 0 for argument in conversion.ingredients.arguments}
    told = {key: version for key, version in reading.versions.items() if key in source}
    return reading.function == conversion.ingredients.source.key and told == source
