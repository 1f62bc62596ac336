"""Where a solution's line states its result: the expression before the last calculator annotation, replaced by a gap."""

from __future__ import annotations

import re

from collab.language.numbers import find_numbers

GAP = "\u25a1"
"""Stands for the number that is asked for."""

_ANNOTATED = re.compile(r"(?P<dollar>\$?)\s?<<[^<>]{1,240}>>\s?\$?(?P<value>[\d.,]*\d)")
_PIECE = re.compile(
    r"(?P<number>\$?\d[\d,]*\.?\d*|\$?\.\d+)|(?P<operator>[-+*/×÷=]|(?<![A-Za-z])x(?![A-Za-z]))"
    r"|(?P<bracket>[()])|(?P<word>[A-Za-z%'-]+)|\S"
)
_MAX_UNIT_WORDS = 4


def mark_number(line: str) -> tuple[str, bool] | None:
    """Put the gap where the value of the line's last annotation stands; say whether it is money."""
    annotations = list(_ANNOTATED.finditer(line))
    if not annotations:
        return None
    last = annotations[-1]
    before = line[: last.start()].rstrip()
    if not before.endswith("="):
        return None
    start = _expression_start(before[:-1])
    if start is None:
        return None
    money = bool(last.group("dollar")) or before[start:].lstrip("( ").startswith("$")
    before = re.sub(r"<<[^<>]{1,240}>>", "", before[:start]).rstrip()
    if before.endswith("because"):  # "He spent $7 on cereal because 2 x 3.5 = 7": the number stands in the claim
        claim = before.removesuffix("because").rstrip(" ,")
        numbers = find_numbers(claim)
        if len(numbers) != 1 or not _same_value(numbers[0].written, last.group("value")):
            return None
        head = claim[: numbers[0].start]
        return head.rstrip("$") + GAP + claim[numbers[0].end :], head.endswith("$")
    return before + " " + GAP + line[last.end() :], money


def _expression_start(text: str) -> int | None:
    """Return where the expression that ends `text` starts, walking back over "16 eggs - 3 eggs - 4"; None where none does."""
    start: int | None = None
    words, wants_number = 0, True
    for piece in reversed(list(_PIECE.finditer(text))):
        kind = piece.lastgroup
        if kind == "number" and wants_number:
            start, words, wants_number = piece.start(), 0, False
        elif kind == "operator" and not wants_number and piece.group() != "=":
            wants_number = True
        elif kind == "operator" and piece.group() == "/" and words:  # miles/hour
            continue
        elif kind == "bracket" and (wants_number or piece.group() == "("):
            start = piece.start() if piece.group() == "(" and start is not None else start
        elif kind == "word" and wants_number and words < _MAX_UNIT_WORDS:
            words += 1
        else:
            break
    return start


def _same_value(first: str, second: str) -> bool:
    try:
        return abs(float(first.replace(",", "")) - float(second)) < 1e-9
    except ValueError:
        return False
