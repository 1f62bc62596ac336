"""Answers with slots: a reference (a query, a list of calls) in which each argument's value has its place.

Exchange the value and the reference is right for the counterfactual too, so every state of such a task has an exact answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collab.environments.evolving_intent.conversion import BOOKS
from collab.environments.evolving_intent.intent import Function

Piece = tuple[str, str]
"""("text", words) or ("slot", key of an argument)."""


@dataclass(frozen=True, slots=True)
class SlotAnswers:
    """`templates` maps a function to the pieces of its reference, `literals` an argument to its literal at every version."""

    templates: Mapping[str, tuple[Piece, ...]]
    literals: Mapping[str, tuple[str, ...]]

    def answer(self, function: Function, versions: Mapping[str, int]) -> str | None:
        """Return the reference with the active literals.

        None where an argument has not been told, or has another value than the source's and no slot to put it in.
        """
        pieces = self.templates.get(function.key, ())
        slots = {text for kind, text in pieces if kind == "slot"}
        wanted = slots | function.needs | {argument.key for argument in function.own}
        if not pieces or not wanted <= versions.keys() or any(versions[key] for key in wanted - slots):
            return None
        return "".join(text if kind == "text" else self.literals[text][versions[text]] for kind, text in pieces)

    def to_record(self) -> dict[str, Any]:
        """Return the book as plain JSON data."""
        templates = {key: [list(piece) for piece in pieces] for key, pieces in self.templates.items()}
        return {"kind": "slots", "templates": templates, "literals": {key: list(texts) for key, texts in self.literals.items()}}


def read_slots(data: Mapping[str, Any]) -> SlotAnswers:
    """Rebuild `SlotAnswers` from its record.

    Raises:
        KeyError, TypeError, ValueError: when the record is not one.
    """
    templates = {key: tuple((str(kind), str(text)) for kind, text in pieces) for key, pieces in data["templates"].items()}
    return SlotAnswers(templates, {key: tuple(texts) for key, texts in data["literals"].items()})


BOOKS["slots"] = read_slots


def cut_at(text: str, spans: Mapping[str, tuple[int, int]]) -> tuple[Piece, ...]:
    """Cut a reference into pieces: each argument's span (start, end) becomes its slot. Spans must not overlap."""
    pieces: list[Piece] = []
    position = 0
    for key, (start, end) in sorted(spans.items(), key=lambda entry: entry[1]):
        if text[position:start]:
            pieces.append(("text", text[position:start]))
        pieces.append(("slot", key))
        position = end
    if text[position:]:
        pieces.append(("text", text[position:]))
    return tuple(pieces)
