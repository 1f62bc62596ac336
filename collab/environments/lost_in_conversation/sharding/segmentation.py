"""Cuts an instruction into verbatim segments by rules: the intent (what is asked) and the facts, each said once.

Segments are pieces of the tidied text, do not overlap, and together hold every word of it but the joints they are cut at ("If",
", and"). A sentence is cut only where both halves can stand alone. Fewer than three segments is no use for a conversation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from collab.language.numbers import find_numbers
from collab.language.sentences import split_sentences, tidy

FEWEST_SEGMENTS = 3

_ASKS = (
    r"(?:how|what|what's|which|who|whose|when|where|why|in how|by how|at what|for how|to how|on what|of what|in what|"
    r"calculate|find|determine|compute)"
)
_COMMAND = re.compile(
    r"^(?:please\s+)?(?:calculate|find|determine|compute|work out|figure out|write|list|show|give|return)\b", re.I
)
_CONDITION = r"(?:if(?! possible)|assuming(?: that)?|given that|knowing that|considering that|supposing|suppose(?: that)?)"
_LEADING = re.compile(rf"^(?P<condition>{_CONDITION}\s.+?),\s+(?:then\s+|and\s+)?(?P<asks>{_ASKS}\b.*)$", re.I | re.S)
_TRAILING = re.compile(rf"^(?P<asks>.*?\b{_ASKS}\b.+?),?\s+(?P<condition>{_CONDITION}\s.+?)[?.]$", re.I | re.S)
_STATEMENT_FIRST = re.compile(rf"^(?P<condition>[A-Z].+?),\s+(?:and\s+|so\s+|then\s+)?(?P<asks>{_ASKS}\b.*)$", re.S)
_SUBORDINATE = re.compile(
    r"^(?:if|when|while|after|before|since|because|as|once|for every|although|unless|suppose|with|by|in|on|at|during|for|from)\b",
    re.I,
)
_SUBJECT = r"(?:he|she|it|they|we|i|you|there|(?:his|her|their|the|each|every|another|one)\s+[a-z]+|[A-Z][a-z]+(?:'s)?)"
_JOINT = re.compile(rf"(?:,\s+(?:and|but|while|then|and then)|;)\s+(?=(?:if\s+)?{_SUBJECT}\s+[a-z']+)")
_COMMA_JOINT = re.compile(rf",\s+(?={_SUBJECT}\s+[a-z']+)")
"""Cuts an enumeration of clauses, whose last has an "and"; elsewhere a comma is not safe."""
_CONDITION_JOINT = re.compile(rf"(?:,\s+|\s+)and\s+(?=(?:if\s+)?{_SUBJECT}\s+[a-z']+)")


class NotShardable(ValueError):
    """The instruction cannot be cut into enough pieces; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Segments:
    """The verbatim pieces of an instruction: `intent` is what is asked, `facts` the rest in source order."""

    intent: str
    facts: tuple[str, ...]

    @property
    def count(self) -> int:
        return 1 + len(self.facts)


def segment(text: str) -> Segments:
    """Cut an instruction into segments.

    Raises:
        NotShardable: nothing is asked, several things are, or there are fewer than three pieces.
    """
    sentences = split_sentences(tidy(text))
    asking = [index for index, sentence in enumerate(sentences) if sentence.rstrip("\"')").endswith("?")]
    if len(asking) > 1:
        raise NotShardable("several questions")
    if not asking:
        asking = [index for index, sentence in enumerate(sentences) if _COMMAND.match(sentence) or _LEADING.match(sentence)][-1:]
    if not asking:
        raise NotShardable("nothing is asked")
    facts: list[str] = []
    intent = ""
    for index, sentence in enumerate(sentences):
        if index == asking[0]:
            intent, hoisted = _split_question(sentence)
            facts.extend(piece for condition in hoisted for piece in _split_statement(condition))
        else:
            facts.extend(_split_statement(sentence))
    segments = Segments(intent, tuple(facts))
    if segments.count < FEWEST_SEGMENTS:
        raise NotShardable(f"only {segments.count} segments")
    return segments


def _split_question(sentence: str) -> tuple[str, list[str]]:
    """Take the conditions out of a question: they are facts."""
    hoisted: list[str] = []
    for _ in range(2):  # at most a leading and a trailing condition
        match = _LEADING.match(sentence) or _TRAILING.match(sentence)
        if match is None:
            match = _STATEMENT_FIRST.match(sentence)
            if match is None or _SUBORDINATE.match(sentence) or not find_numbers(match.group("condition")):
                break
        hoisted.append(match.group("condition"))
        sentence = match.group("asks").strip()
    return sentence, hoisted


def _split_statement(sentence: str) -> list[str]:
    """Cut a statement at its joints where both sides hold a number and the right side is a clause of its own."""
    conditional = re.match(rf"^{_CONDITION}\s", sentence, re.I) is not None
    if (not conditional and _SUBORDINATE.match(sentence)) or '"' in sentence:
        return [sentence]
    halves = _cut(sentence, _CONDITION_JOINT if conditional else _JOINT)
    if halves is None:
        return [sentence]
    first, rest = halves
    clauses: list[str] = []
    while (pair := _cut(first, _COMMA_JOINT)) is not None:
        clauses.append(pair[0])
        first = pair[1]
    return [*clauses, first, *_split_statement(rest)]


def _cut(sentence: str, joints: re.Pattern[str]) -> tuple[str, str] | None:
    """Cut at the first joint that leaves a number on both sides."""
    for joint in joints.finditer(sentence):
        left, right = sentence[: joint.start()], sentence[joint.end() :]
        if find_numbers(left) and find_numbers(right) and not re.search(r"\bbetween\b|\beither\b", left):
            return left, right
    return None
