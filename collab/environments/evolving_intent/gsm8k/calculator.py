"""GSM8K's calculator annotations, `<<16-3-4=9>>`, read as a graph that can be computed again with other values.

Each annotation is a step. An operand is bound to the latest earlier step with the same value, otherwise it is a literal: a number
of the text or a constant such as days in a week. Whether a text value may be exchanged and the answer recomputed with *certainty*
is decided by `binding_fault` (for the whole solution) and `exchangeable` (for one value); the rules are strict on purpose,
since a wrong answer would become a wrong reward.
"""

from __future__ import annotations

import functools
import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from collab.language.numbers import Kind, Number

_ANNOTATION = re.compile(r"<<([^=<>]{1,200})=([^<>=]{1,40})>>")
_TOKEN = re.compile(r"\d[\d,]*\.?\d*|\.\d+|[()+\-*/%]")
_LARGEST = Fraction(10) ** 15

IMPLIED: tuple[tuple[re.Pattern[str], frozenset[int]], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), frozenset(values))
    for pattern, values in (
        (r"\bhalf|\bhalv|twice|double|\bpair|couple|\bboth\b|average|every other|\bsecond\b|\btwin", (2,)),
        (r"third|triple|thrice|triplet|\byards?\b", (3,)),
        (r"quarter|quadruple|fourth|\bgallons?\b", (4, 25)),
        (r"fifth", (5,)),
        (r"sixth", (6,)),
        (r"eighth", (8,)),
        (r"tenth|decade|\bmm\b", (10,)),
        (r"week|daily|\bdays?\b|month|\bfeb", (7, 5, 4, 14, 24, 28, 30, 31, 52)),
        (r"dozen|year|annual|\bfoot\b|\bfeet\b|inch", (12, 36, 144, 365, 366, 30)),
        (r"hour|minute|second|o'clock|[ap]\.?m\.?\b|noon|midnight", (12, 15, 24, 30, 45, 60, 3600)),
        (r"%|percent|cents?\b|dollar|\$|discount", (100,)),
        (r"dime|nickel|penn(?:y|ies)|quarters?\b", (1, 5, 10, 25)),
        (r"pounds?\b|\blbs?\b|ounces?\b|\boz\b|pints?\b|cups?\b", (16, 2, 8)),
        (r"kilo|\bkm\b|\bkg\b|milli|\bml\b|grams?\b|meters?\b|metres?\b|lit(?:er|re)s?\b", (1000, 100)),
        (r"centur", (100,)),
    )
)
"""Constants that a solution may use because of a word in the text."""


class NotComputable(ArithmeticError):
    """An annotation divides by zero or leaves the range of sensible numbers."""


@dataclass(frozen=True, slots=True)
class Literal:
    """An operand that comes from the text or is a constant."""

    value: Fraction


@dataclass(frozen=True, slots=True)
class Result:
    """An operand that is the value of an earlier step."""

    step: int


Token = Literal | Result | str


@dataclass(frozen=True, slots=True)
class Step:
    """One annotation: its bound tokens as written and in postfix order, its value as annotated, its line in the solution."""

    tokens: tuple[Token, ...]
    postfix: tuple[Token, ...]
    value: Fraction
    line: int


@dataclass(frozen=True, slots=True)
class Calculation:
    """A solution's annotations as a graph that reproduces `gold`. `values` are the steps' values as computed, not as rounded."""

    steps: tuple[Step, ...]
    gold: Fraction
    values: tuple[Fraction, ...] = ()

    def compute(self, exchanged: Mapping[Fraction, Fraction]) -> tuple[Fraction, ...]:
        """Return every step's value with literals exchanged (old value -> new value).

        Raises:
            NotComputable: where a step divides by zero.
        """
        results: list[Fraction] = []
        for step in self.steps:
            results.append(_evaluate(step.postfix, exchanged, results))
        return tuple(results)

    def literals_of(self, step: int) -> frozenset[Fraction]:
        """Return the literal values that a step depends on, through earlier steps too."""
        found: set[Fraction] = set()
        waiting, seen = [step], set()
        while waiting:
            index = waiting.pop()
            if index in seen:
                continue
            seen.add(index)
            for token in self.steps[index].tokens:
                if isinstance(token, Literal):
                    found.add(token.value)
                elif isinstance(token, Result):
                    waiting.append(token.step)
        return frozenset(found)


def read_calculation(solution: str, gold: Fraction) -> Calculation | None:
    """Read the annotations of a solution; None where there are none or they do not reproduce the gold answer."""
    steps: list[Step] = []
    for line_number, line in enumerate(solution.split("\n")):
        for expression, written in _ANNOTATION.findall(line):
            value = _plain_number(written)
            words = re.sub(r"[$\s]", "", expression)
            pieces = _TOKEN.findall(words)
            if value is None or "".join(pieces) != words or words.count("(") > 20:  # nesting bounds the recursion below
                return None
            tokens = tuple(_bind(piece, steps) for piece in pieces)
            try:
                steps.append(Step(tokens, _postfix(tokens), value, line_number))
            except NotComputable:
                return None
    calculation = Calculation(tuple(steps), gold)
    try:
        calculation = replace(calculation, values=calculation.compute({}))
    except NotComputable:
        return None
    return calculation if steps and _reproduces(calculation) else None


def _plain_number(written: str) -> Fraction | None:
    try:
        return Fraction(written.replace(",", "").replace("$", "").rstrip("%").strip())
    except (ValueError, ZeroDivisionError):
        return None


def _bind(piece: str, earlier: list[Step]) -> Token:
    if not re.match(r"[\d.]", piece):
        return piece
    value = Fraction(piece.replace(",", ""))
    for index in range(len(earlier) - 1, -1, -1):
        if earlier[index].value == value:
            return Result(index)
    return Literal(value)


def _reproduces(calculation: Calculation) -> bool:
    """Every step within 1% of what is annotated (solutions round), and the last one the gold answer."""
    near = all(
        abs(value - step.value) * 100 <= max(Fraction(1), abs(step.value))
        for value, step in zip(calculation.values, calculation.steps, strict=True)
    )
    return near and abs(calculation.values[-1] - calculation.gold) * 1000 <= 1


def _postfix(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
    """Bring + - * / ( ) and postfix % into postfix order by recursive descent; "neg" is the sign.

    Raises:
        NotComputable: when the tokens are no sum.
    """
    position = 0
    ordered: list[Token] = []

    def peek() -> Token | None:
        return tokens[position] if position < len(tokens) else None

    def factor() -> None:
        nonlocal position
        token = peek()
        position += 1
        if token in ("-", "+"):
            factor()
            if token == "-":
                ordered.append("neg")
            return
        if token == "(":
            total()
            if peek() != ")":
                raise NotComputable("unbalanced brackets")
            position += 1
        elif isinstance(token, Literal | Result):
            ordered.append(token)
        else:
            raise NotComputable(f"unexpected {token!r}")
        while peek() == "%":
            position += 1
            ordered.append("%")

    def chain(operators: tuple[str, str], operand: Callable[[], None]) -> None:
        nonlocal position
        operand()
        while (symbol := peek()) in operators:
            assert symbol is not None
            position += 1
            operand()
            ordered.append(symbol)

    def total() -> None:
        chain(("+", "-"), lambda: chain(("*", "/"), factor))

    total()
    if position != len(tokens):
        raise NotComputable("not a sum that can be computed")
    return tuple(ordered)


def _evaluate(postfix: tuple[Token, ...], exchanged: Mapping[Fraction, Fraction], results: list[Fraction]) -> Fraction:
    """Evaluate a step with a stack; nothing is handed to Python's own evaluator."""
    stack: list[Fraction] = []
    for token in postfix:
        if isinstance(token, Literal):
            stack.append(exchanged.get(token.value, token.value))
        elif isinstance(token, Result):
            stack.append(results[token.step])
        elif token == "neg":
            stack.append(-stack.pop())
        elif token == "%":
            stack.append(stack.pop() / 100)
        else:
            right, left = stack.pop(), stack.pop()
            if token == "/" and not right:
                raise NotComputable("division by zero")
            stack.append(_OPERATORS[token](left, right))
    (value,) = stack
    if abs(value) > _LARGEST:
        raise NotComputable("too large")
    return value


_OPERATORS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


@functools.lru_cache(maxsize=4096)
def implied_constants(text: str) -> frozenset[Fraction]:
    """Return the constants that words of the text may stand for."""
    found: set[int] = set()
    for pattern, values in IMPLIED:
        if pattern.search(text):
            found |= values
    return frozenset(Fraction(value) for value in found)


def accounted_values(numbers: Iterable[Number]) -> Counter[Fraction]:
    """Return the literal values that numbers of a text explain, with how often: 20% explains 20 and 0.2, 3/4 explains 3 and 4."""
    values: Counter[Fraction] = Counter()
    for number in numbers:
        values[number.value] += 1
        if number.kind is Kind.PERCENT:
            values[number.value / 100] += 1
        elif number.kind is Kind.FRACTION:
            values[Fraction(number.value.numerator)] += 1
            values[Fraction(number.value.denominator)] += 1
    return values


def binding_fault(calculation: Calculation, numbers: Collection[Number], text: str) -> str | None:
    """Say why the operands cannot be bound with certainty, None where they can.

    Faults: a step that states a number without computing it (the work is hidden), an operand that equals an earlier result and
    also a number of the text, a constant or a second result, and a literal that nothing in the text explains.
    """
    explained = accounted_values(numbers)
    constants = implied_constants(text)
    certain = constants | {Fraction(1), Fraction(100)}
    results = Counter(step.value for step in calculation.steps)
    for step in calculation.steps:
        if len(step.tokens) == 1:
            return "a step states a number without computing it"
        for token in step.tokens:
            if isinstance(token, Result):
                value = calculation.steps[token.step].value
                if value in explained or value in constants or results[value] > 1:
                    return f"the operand {value} may be a result or a number of the text"
            elif isinstance(token, Literal) and token.value not in explained and token.value not in certain:
                return f"nothing in the text explains the operand {token.value}"
    return None


def exchangeable(calculation: Calculation, number: Number, numbers: Collection[Number], text: str) -> Fraction | None:
    """Return the literal that stands for a text number and may be exchanged with certainty, None where there is none.

    The value must be above 2, occur once in the text, be no constant that a word implies and no intermediate result. A
    percentage may stand as itself or as its hundredth.
    """
    literals = {token.value for step in calculation.steps for token in step.tokens if isinstance(token, Literal)}
    written = accounted_values(numbers)
    constants = implied_constants(text)
    forms = [number.value, number.value / 100] if number.kind is Kind.PERCENT else [number.value]
    used = [form for form in forms if form in literals]
    if number.kind in (Kind.FRACTION, Kind.CLOCK, Kind.YEAR) or number.value <= 2 or len(used) != 1:
        return None
    value = used[0]
    ambiguous = written[value] != 1 or value in constants or any(step.value == value for step in calculation.steps)
    return None if ambiguous else value
