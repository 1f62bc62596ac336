"""Values inside a clause: which a question may not repeat, and how a count told elsewhere is left out of it."""

from __future__ import annotations

import re

from collab.environments.evolving_intent.gsm8k.english import BE, MEASURES, is_plural
from collab.language.numbers import WORD_VALUES, Kind, find_numbers


def holds_values(text: str) -> bool:
    """True where a text holds numbers or arithmetic; "all three boxes" and "the two of them" count things known already."""
    if re.search(r"[\d=*/+<>$(]", text):
        return True
    return any(number.kind is not Kind.WORD or not _KNOWN_COUNT.search(text[: number.start]) for number in find_numbers(text))


_COUNTED = re.compile(
    r"^(?P<opening>(?:the )?(?:cost|price|weight|number|total|sum|total cost|total price|total weight|total number) (?:of|for) )?"
    r"(?:(?P<the>the|all|his|her|their|all the|its|[A-Z][a-z]+'s) )?(?P<kind>other |remaining )?"
    rf"(?:\d[\d,]*|{'|'.join(word for word, value in WORD_VALUES.items() if 2 <= value <= 20)}) (?=[a-z])"
    r"(?!times|percent|more|less|fewer|of\b|am\b|pm\b|and\b|or\b)",
    re.IGNORECASE,
)


def without_count(clause: str) -> str:
    """Return "the 20 families own" as "the families own" and "two cans cost" as "the cans cost": the count is told elsewhere."""
    match = _COUNTED.match(clause)
    if not match:
        return clause
    rest = clause[match.end() :]
    noun = re.match(r"(?:[a-z-]+ ){0,2}?(?P<noun>[a-z]+)\b(?P<of> of (?=[a-z]))?", rest)
    if not noun or not any(is_plural(word) for word in noun.group("noun").split()) or clause.split()[-1].lower() in BE:
        return clause
    if noun.group("noun") in MEASURES:
        if not noun.group("of"):
            return clause
        rest = rest[noun.end() :]  # "three pounds of beef cost" asks for the beef
    return f"{match.group('opening') or ''}{match.group('the') or 'the'} {match.group('kind') or ''}{rest}"


_KNOWN_COUNT = re.compile(
    r"\b(?:all|the|these|those|other|his|her|their)(?: first| last| other| next| remaining)? $", re.IGNORECASE
)
_DEFINITE_COUNT = re.compile(r"\b(the|all|his|her|their)( other| remaining)? \d[\d,]* (?=(?:[a-z-]+ ){0,2}?[a-z]+s\b)(?!percent)")
_TIME = (
    rf"(?:in|after|for|during|over|within) (?:\d+|{'|'.join(WORD_VALUES)}) "
    r"(?:full |whole )?(?:seconds|minutes|hours|days|weeks|months|years)"
)
SPAN = re.compile(rf"^{_TIME}$", re.IGNORECASE)
"""A phrase of time with a value: "in 3 hours"."""
_SPAN_WITHIN = re.compile(rf"([a-z]) {_TIME}(?= |$|\.)(?! ago| old)", re.IGNORECASE)


def drop_counts(text: str) -> str:
    """Return "on the 4 light bulbs" as "on the light bulbs" and "in 3 hours" as "in that time"."""
    return _SPAN_WITHIN.sub(r"\1 in that time", _DEFINITE_COUNT.sub(r"\1\2 ", text))
