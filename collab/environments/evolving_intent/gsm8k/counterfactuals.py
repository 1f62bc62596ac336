"""Counterfactual values: one number of a statement exchanged for a plausible other one.

*Structural*: a number that the solution uses gets a nearby value that the problem does not have yet. *Exact*: in addition the
calculation can be done again with that value for certain (`calculator`), and its results stay sensible (positive, whole where
they were whole) and different, so that the answer under the stale value is known and differs from the right one.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from collab.environments.evolving_intent.gsm8k.calculator import (
    Calculation,
    Literal,
    NotComputable,
    accounted_values,
    exchangeable,
)
from collab.environments.evolving_intent.gsm8k.english import is_plural
from collab.environments.evolving_intent.intent import Counterfactual
from collab.language.numbers import Kind, Number, find_numbers, write_like

_THRESHOLD = re.compile(
    r"\b(?:more than \$?\d|at least|at most|over \d|under \d|exceed|maximum|minimum|limit|up to \$?\d|first \d|every \d)",
    re.IGNORECASE,
)
_DEFINITE = re.compile(
    r"\b(?:the|these|those|all|both|of|other|his|her|their|its|or|to|and|first|last|next|remaining)\s$", re.IGNORECASE
)
_FRACTIONS = tuple(Fraction(a, b) for a, b in ((1, 2), (1, 3), (1, 4), (1, 5), (2, 3), (3, 4), (2, 5), (3, 5), (1, 6), (1, 8)))


@dataclass(frozen=True, slots=True)
class Exchange:
    """A counterfactual with what it exchanges: `literal` is the calculation's operand and `value` its new value, or both None
    where the calculation cannot be redone with certainty."""

    counterfactual: Counterfactual
    literal: Fraction | None = None
    value: Fraction | None = None


def exchanges(
    statement: str,
    problem_numbers: Sequence[Number],
    problem: str,
    calculation: Calculation | None,
    certain: bool,
    rng: random.Random,
    limit: int = 4,
) -> tuple[Exchange, ...]:
    """Return up to `limit` counterfactuals of one number of a statement: exact ones if there are any, else structural ones.

    `certain` says that the calculation's operands are bound with certainty (no `binding_fault`).
    """
    numbers = [number for number in find_numbers(statement) if _may_change(number, statement, problem, calculation)]
    rng.shuffle(numbers)
    if calculation is not None and certain and not _THRESHOLD.search(problem):
        for number in numbers:
            literal = exchangeable(calculation, number, problem_numbers, problem)
            if literal is not None and (found := _exact(statement, number, literal, problem_numbers, calculation, rng, limit)):
                return found
    for number in numbers:
        written = list(_written(statement, number, problem_numbers, rng))
        if calculation is not None:  # a value that gives half an apple is a last resort
            kept = (pair for pair in written if _sensible(calculation, number, pair[1]))
            written = list(itertools.islice(kept, limit)) or written
        if written:
            return tuple(Exchange(counterfactual) for counterfactual, _ in written[:limit])
    return ()


def _sensible(calculation: Calculation, number: Number, value: Fraction) -> bool:
    """True where the calculation, done with another value, stays positive and whole where it was; bound as well as can be."""
    forms = {number.value: value, number.value / 100: value / 100} if number.kind is Kind.PERCENT else {number.value: value}
    return _results(calculation, forms) is not None


def _results(calculation: Calculation, exchanged: dict[Fraction, Fraction]) -> tuple[Fraction, ...] | None:
    try:
        results = calculation.compute(exchanged)
    except NotComputable:
        return None
    pairs = zip(calculation.values, results, strict=True)
    return results if all(now > 0 and (before.denominator > 1 or now.denominator == 1) for before, now in pairs) else None


def _exact(
    statement: str,
    number: Number,
    literal: Fraction,
    problem_numbers: Sequence[Number],
    calculation: Calculation,
    rng: random.Random,
    limit: int,
) -> tuple[Exchange, ...]:
    taken = {step.value for step in calculation.steps}
    found = []
    for counterfactual, value in _written(statement, number, problem_numbers, rng):
        new = value / 100 if literal != number.value else value
        results = _results(calculation, {literal: new})
        if results is not None and results[-1] != calculation.gold and value not in taken:
            found.append(Exchange(counterfactual, literal, new))
        if len(found) == limit:
            break
    return tuple(found)


def _may_change(number: Number, statement: str, problem: str, calculation: Calculation | None) -> bool:
    """Only values that the solution computes with, in a form that another value can take without breaking the sentence."""
    before, after = statement[: number.start], statement[number.end :]
    if number.kind in (Kind.CLOCK, Kind.YEAR, Kind.COMPOUND) or (number.value < 2 and number.kind is Kind.PLAIN):
        return False
    if number.kind is Kind.WORD:
        plural = re.match(r"\s+(?:[a-z-]+\s+)?([a-z]+)", after)
        definite = _DEFINITE.search(before)
        if definite or not plural or not is_plural(plural.group(1)) or re.match(r"\s+(?:times|of (?:the|them|his|her))\b", after):
            return False
    if number.kind is Kind.FRACTION and "/" not in number.written:
        return False
    if re.match(r"[A-Z]\b|(?:st|nd|rd|th)s?\b", after):  # class 3B, 2/3rd
        return False
    if re.match(r"\s*(?:[+*/x=]|- ?\d|and a half|[- ]?(?:dollar )?bills?\b|[ap]\.?m\b|o'clock|or\b|to \d)", after) or re.search(
        r"(?:\bor|\d ?[-+*/]|#|\bnumber|\b[Gg]rades?|\b[Pp]age|\b[Cc]hapter)\s?$", before
    ):
        return False
    noun = re.match(r"\s+(?:[a-z-]+ ){0,2}?([a-z]+)s\b", after)
    ordinals = noun is not None and re.search(
        rf"\b(?:first|second|third|fourth|last|other|remaining) {noun.group(1)}\b", problem, re.IGNORECASE
    )
    if ordinals or re.match(r"\s*(?:[a-z]+ ){0,3}[a-z]+[,:;] (?:named )?[A-Z]\w+,? (?:and|[A-Z])", after):
        return False  # "three sisters, Ann, Bea and Cleo", "the first sister": something else fixes the number
    if calculation is None:
        return True
    literals = {token.value for step in calculation.steps for token in step.tokens if isinstance(token, Literal)}
    return bool(literals & accounted_values([number]).keys())


def _written(
    statement: str, number: Number, problem_numbers: Sequence[Number], rng: random.Random
) -> Iterator[tuple[Counterfactual, Fraction]]:
    """Yield the statement with other values, near ones in seeded order; never a value that the problem already has."""
    present = accounted_values(problem_numbers)
    most = _most(statement[number.end :])
    candidates = [value for value in _near(number) if value <= most]
    rng.shuffle(candidates)
    for value in candidates:
        written = write_like(value, number)
        if (value <= 1 and number.kind is not Kind.FRACTION) or value in present or written is None or written == number.written:
            continue
        if number.kind is Kind.PERCENT and value >= 100 > number.value:
            continue
        yield Counterfactual(statement[: number.start] + written + statement[number.end :], number.written, written), value


def _most(after: str) -> float:
    """Return how many there can be of what follows a number: 52 weeks a year, 24 hours a day."""
    match = re.match(r"\s+(?P<part>[a-z]+?)s?\s+(?:an?|per|each|every|(?:in|of) (?:a|the|each|every))\s+(?P<whole>[a-z]+)", after)
    return _PARTS.get((match["part"], match["whole"]), math.inf) if match else math.inf


_PARTS = {
    ("week", "year"): 52,
    ("month", "year"): 12,
    ("day", "year"): 365,
    ("week", "month"): 4,
    ("day", "month"): 30,
    ("day", "week"): 7,
    ("hour", "day"): 24,
    ("minute", "hour"): 60,
}


def _near(number: Number) -> list[Fraction]:
    """Return plausible values near a number: steps that people would mix up, in the number's own grain."""
    value = number.value
    if number.kind is Kind.FRACTION:
        return [fraction for fraction in _FRACTIONS if fraction != value and fraction < 1]
    if value.denominator > 1:
        grain = (
            Fraction(1, 10)
            if (value * 10).denominator == 1
            else Fraction(1, 4)
            if (value * 4).denominator == 1
            else Fraction(1, 100)
        )
        steps = [grain * factor for factor in (-5, -3, -2, 2, 3, 5, 10)]
    elif value >= 1000:
        unit = Fraction(10 ** (len(str(int(value))) - 2))
        grain = unit if value % unit == 0 else Fraction(1) if value % 10 else Fraction(10)
        steps = [grain * factor for factor in (-5, -3, -2, -1, 1, 2, 3, 5)]
    elif value >= 20:
        grain = Fraction(10) if value % 10 == 0 and value >= 40 else Fraction(5) if value % 5 == 0 else Fraction(1)
        steps = [grain * factor for factor in (-3, -2, -1, 1, 2, 3, 4)]
    else:
        steps = [Fraction(step) for step in (-3, -2, -1, 1, 2, 3, 4)]
    return [value + step for step in steps if value + step > 0 and (value + step) * 3 >= value]
