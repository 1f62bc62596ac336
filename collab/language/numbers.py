"""The numbers of a word problem: where they stand, what they are worth, and how another value is written in their place."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
    "nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
WORD_VALUES: dict[str, int] = {word: value for value, word in enumerate(_SMALL)}
WORD_VALUES |= {word: 20 + 10 * index for index, word in enumerate(_TENS)}
WORD_VALUES |= {
    f"{ten}-{one}": 20 + 10 * index + value for index, ten in enumerate(_TENS) for value, one in enumerate(_SMALL[1:10], 1)
}
_VALUE_WORDS = {value: word for word, value in WORD_VALUES.items()}

_DIGITS = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.\d+|\.\d+|\d+"
_NUMBER = re.compile(
    rf"(?<![\w.,/:-])(?P<fraction>\d+/\d+)(?![\w/.]\d)"
    rf"|(?<![\w.])(?P<clock>\d{{1,2}}:\d\d|\d{{1,2}}(?=\s?(?:[ap]\.?m\b|o'clock)))"
    rf"|(?<![\w.])(?P<digits>{_DIGITS})(?![\d]|,\d{{3}})(?!(?:st|nd|rd|th)\b)"
    rf"|(?<![\w-])(?P<word>{'|'.join(sorted(WORD_VALUES, key=len, reverse=True))})(?!\w)"
    r"(?P<ratio>[- ](?:halves|thirds?|fourths?|quarters?|fifths?|"
    r"sixths?|sevenths?|eighths?|ninths?|tenths?)\b)?",
    re.IGNORECASE,
)

_PARTS = {"hal": 2, "thi": 3, "fou": 4, "qua": 4, "fif": 5, "six": 6, "sev": 7, "eig": 8, "nin": 9, "ten": 10}


class Kind(StrEnum):
    """What a number stands for, which decides how it may change."""

    PLAIN = "plain"
    MONEY = "money"
    PERCENT = "percent"
    FRACTION = "fraction"
    CLOCK = "clock"
    YEAR = "year"
    WORD = "word"
    COMPOUND = "compound"
    """Part of a compound such as 16-inch, or of a written pair such as 3-4."""


@dataclass(frozen=True, slots=True)
class Number:
    """One number of a text: `text[start:end]` is how it is written, `value` what it is worth (a percentage counts in percent)."""

    start: int
    end: int
    written: str
    value: Fraction
    kind: Kind


@functools.lru_cache(maxsize=8192)
def find_numbers(text: str) -> tuple[Number, ...]:
    """Return the numbers of a text in order. `zero` and `one` as words are articles more often than numbers and do not count."""
    found: list[Number] = []
    for match in _NUMBER.finditer(text):
        written = match.group()
        if match.group("word"):
            value = Fraction(WORD_VALUES[match.group("word").lower()])
            if match.group("ratio"):
                found.append(
                    Number(match.start(), match.end(), written, value / _PARTS[match.group("ratio")[1:4].lower()], Kind.FRACTION)
                )
            elif value >= 2:
                kind = Kind.COMPOUND if text[match.end() : match.end() + 1] == "-" else Kind.WORD
                found.append(Number(match.start(), match.end(), written, value, kind))
        elif match.group("fraction"):
            above, below = written.split("/")
            if int(below):
                found.append(Number(match.start(), match.end(), written, Fraction(int(above), int(below)), Kind.FRACTION))
        elif match.group("clock"):
            found.append(Number(match.start(), match.end(), written, Fraction(written.split(":")[0]), Kind.CLOCK))
        else:
            value = Fraction(written.replace(",", ""))
            found.append(Number(match.start(), match.end(), written, value, _kind(text, match, value)))
    return tuple(found)


def _kind(text: str, match: re.Match[str], value: Fraction) -> Kind:
    before, after = text[: match.start()], text[match.end() :]
    if re.match(r"\s?(?:%|percent\b)", after):
        return Kind.PERCENT
    if before.endswith("$"):
        return Kind.MONEY
    if re.match(r"-\w", after) or before.endswith("-"):
        return Kind.COMPOUND
    if (
        1900 <= value <= 2100
        and "," not in match.group()
        and re.search(r"\b(?:in|year|since|by|of|until|and|from|to)\s$", before)
    ):
        return Kind.YEAR
    return Kind.PLAIN


def values_in(text: str) -> list[Fraction]:
    """Return the values of the numbers of a text, in order."""
    return [number.value for number in find_numbers(text)]


def write_like(value: Fraction, number: Number) -> str | None:
    """Return `value` written as `number` is (words, thousands separators, cents), None where that cannot be done well."""
    written = number.written
    if number.kind is Kind.WORD:
        word = _VALUE_WORDS.get(int(value)) if value.denominator == 1 else None
        return word.capitalize() if word and written[0].isupper() else word
    if number.kind is Kind.FRACTION:
        return f"{value.numerator}/{value.denominator}" if "/" in written and value.denominator > 1 else None
    if not written[0].isdigit() and written[0] != ".":
        return None
    if value.denominator == 1:
        whole = f"{int(value):,}" if "," in written or int(value) >= 10_000 else str(int(value))
        places = len(written.split(".")[1]) if "." in written else 0
        return f"{whole}.{'0' * places}" if places > 1 else whole
    if 1000 % value.denominator:
        return None
    places = len(written.split(".")[1]) if "." in written else 0
    exact = f"{float(value):.3f}".rstrip("0")
    short = max(places, len(exact.split(".")[1]), 2 if number.kind is Kind.MONEY else 0)
    return f"{float(value):,.{short}f}"
