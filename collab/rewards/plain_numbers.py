r"""Reads the numbers people write as answers: "$1,234.50", "−5", "50 %", "3 1/2", "\frac{1}{2}", "18 dollars", "1.5 million".

Exact (fractions, no floats) and strict: what may mean anything else than one number is not read, and goes to the verifier.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARACTERS = 300
DECIMALS = 6
"""Numbers are equal when they round to the same value here, as math-verify has it (0.333333 is 1/3, 0.33 is not)."""


@dataclass(frozen=True, slots=True)
class PlainNumber:
    """A number and whether it was written as a percentage (`value` is then what stands before the sign)."""

    value: Fraction
    percent: bool = False

    def equals(self, other: PlainNumber) -> bool:
        """Compare. A percent sign on one side only may have been left out or worked out: 50% is 50, and is 0.5."""
        if self.percent == other.percent:
            return _close(self.value, other.value)
        percent, plain = (self, other) if self.percent else (other, self)
        return _close(percent.value, plain.value) or _close(percent.value / 100, plain.value)


_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+"
_TOKEN = re.compile(rf"(?<![\w.,^/\\])(?:[-+]\s?)?[$€£¥]?[-+]?(?:{_DIGITS})(?:\s?/\s?\d+)?(?:\s?%)?")
_READING = re.compile(
    rf"""(?P<sign>[-+])?\s*[$€£¥]?\s*(?P<sign2>[-+])?\s*
    (?: (?P<whole>\d{{1,9}})\s+(?P<over>\d{{1,9}})\s*/\s*(?P<under>\d{{1,9}})
      | (?P<number>{_DIGITS})(?:[eE](?P<exponent>[-+]?\d{{1,2}}))?(?:\s*/\s*(?P<divisor>\d{{1,40}}))? )
    (?P<rest>.*)""",
    re.VERBOSE | re.DOTALL,
)
_REST = re.compile(
    r"\s*(?P<percent>%|per\s?cent\b)?\s*(?P<scale>thousand|million|billion|trillion)?(?P<unit>.*)", re.DOTALL | re.IGNORECASE
)
_UNIT_WORD = re.compile(r"[A-Za-z°€£¥$][A-Za-z'.\-]*[²³]?(?:\^\{?[23]\}?)?,?")
_NEVER_UNITS = (
    "and or plus minus times half point over divided by to between than not dozen hundred pi sqrt sin cos tan log ln mod "
    "i e x y z n t k"
)
_NOT_UNITS = frozenset(_NEVER_UNITS.split())
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{\s*(-?\d{1,40})\s*\}|(\d))\s*(?:\{\s*(\d{1,40})\s*\}|(\d))")
_SPACING = re.compile(r"(?<!\\)\\[,;:! ]|~|\\(?:quad|qquad|left|right|displaystyle)\b|\u00a0|\u202f")
_RELATION = re.compile(r"[<>≤≥≠≈]|\\(?:le|ge|leq|geq|lt|gt|ne|neq|approx|in|pm)\b")
_SEVERAL = re.compile(r"[,;](?!\d{3}\b)|\bor\b|\band\b")
_WRAPPING = ("$$", "$", "**", "*", "`", "\\(", "\\)", "\\[", "\\]")


def tidy(text: str) -> str:
    r"""Return `text` without what changes its looks only: math delimiters, bold, spacing commands, `\text{}`, odd minus signs."""
    text = text.strip()
    while True:
        before = text
        for mark in _WRAPPING:
            if text.startswith(mark) and not (mark == "$" and text.count("$") == 1):  # a lone dollar is money
                text = text[len(mark) :].strip()
            if text.endswith(mark):
                text = text[: -len(mark)].strip()
        if text == before:
            break
    text = _TEXT.sub(r" \1 ", text)
    text = text.replace("{,}", ",").replace("\\%", "%").replace("\\$", "$")
    text = _SPACING.sub(" ", text)
    for minus in "−–‒﹣－":  # the minus sign, dashes and their wide forms
        text = text.replace(minus, "-")
    text = re.sub(r"\^\s*\{?\s*\\circ\s*\}?|\\degree\b|\\circ\b", "°", text)
    return text.strip()


@functools.lru_cache(maxsize=4096)  # the same reference is read for every future of a task
def read_number(text: str) -> PlainNumber | None:
    """Return the one number `text` is, with currency and unit set aside; None when it is not just that."""
    if len(text) > MAX_CHARACTERS:
        return None
    text = tidy(text)
    if _RELATION.search(text):
        return None
    before, _, text = text.rpartition("=")
    if _SEVERAL.search(before):
        return None
    text = text.strip()
    text = _FRACTION.sub(lambda match: f" {match[1] or match[2]}/{match[3] or match[4]} ", text).strip()
    text = text.replace("- ", "-", 1) if text.startswith("- ") else text
    reading = _READING.fullmatch(text)
    if reading is None:
        return None
    rest = _REST.fullmatch(reading["rest"])
    assert rest is not None  # every part of the pattern may be empty
    unit = rest["unit"].rstrip(" .!")
    if unit and not _is_unit(unit):
        return None
    value = _value(reading)
    if value is None:
        return None
    if rest["scale"]:
        value *= _SCALES[rest["scale"].lower()]
    return PlainNumber(value, percent=bool(rest["percent"]))


def stated_number(text: str) -> PlainNumber | None:
    """Return the only number in a short statement ("She makes $18 every day"), None when there are several or none."""
    if (number := read_number(text)) is not None:
        return number
    if len(text) > MAX_CHARACTERS:
        return None
    before, _, text = tidy(text).rpartition("=")
    if "\\" in text or _SEVERAL.search(before) or "^" in text or _RELATION.search(text):
        return None
    values: dict[tuple[Fraction, bool], PlainNumber] = {}
    for token in _TOKEN.finditer(text):
        following = text[token.end() : token.end() + 1]
        number = read_number(token.group())
        if number is None or following.isalnum() or following in ("(", ":"):
            return None
        values[number.value, number.percent] = number
    return next(iter(values.values())) if len(values) == 1 else None


def _value(reading: re.Match[str]) -> Fraction | None:
    """Return the value of a matched number, None where it divides by zero."""
    try:
        if reading["whole"]:
            value = int(reading["whole"]) + Fraction(int(reading["over"]), int(reading["under"]))
        else:
            value = Fraction(reading["number"].replace(",", "").rstrip("."))
            if reading["exponent"]:
                value *= Fraction(10) ** int(reading["exponent"])
            if reading["divisor"]:
                value /= int(reading["divisor"])
    except ZeroDivisionError:
        return None
    return -value if (reading["sign"] == "-") != (reading["sign2"] == "-") else value


def _is_unit(text: str) -> bool:
    """True for "dollars per day", "km/h", " cm^2"; a single letter right behind the number is a variable ("3x")."""
    if text[:1].isalpha() and len(re.match(r"[^\W\d_]+", text)[0]) < 2:  # type: ignore[index]
        return False
    words = re.split(r"[\s/]+", re.sub(r"\([^()\d]*\)", " ", text).strip())
    return all(word == "" or _UNIT_WORD.fullmatch(word) for word in words) and not _NOT_UNITS.intersection(
        word.lower().strip(".,") for word in words
    )


def _close(first: Fraction, second: Fraction) -> bool:
    return first == second or round(first, DECIMALS) == round(second, DECIMALS)
