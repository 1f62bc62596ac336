"""What is right after each turn: the target y_t of an intent state, wherever it is known.

The paper grades the last turn only and names verifiers for the turns between as future work. Where a domain can work out the
answer of a state (a calculation done again, a query with another literal) it is kept, as text that the domain's verifier compares
with; where it cannot, the answer is None, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from collab.environments.evolving_intent.intent import Function, Ingredients, IntentState


class AnswerBook(Protocol):
    """The answers of one task's intent states."""

    def answer(self, function: Function, versions: Mapping[str, int]) -> str | None:
        """Return the answer of a function with arguments at the given versions; None where it is not known.

        `versions` may miss arguments that have not been told: then None, unless the function does not rest on them.
        """
        ...

    def to_record(self) -> dict[str, Any]:
        """Return the book as plain JSON data with its `kind`."""
        ...


@dataclass(frozen=True, slots=True)
class KnownAnswers:
    """Answers known at source values only: the source's reference, and those of predecessors that a solver agreed on."""

    known: Mapping[str, str]

    def answer(self, function: Function, versions: Mapping[str, int]) -> str | None:
        """Return the known answer where everything the function rests on has its source value."""
        told = all(key in versions for key in [*function.needs, *(argument.key for argument in function.own)])
        return self.known.get(function.key) if told and not any(versions.values()) else None

    def to_record(self) -> dict[str, Any]:
        return {"kind": "known", "known": dict(self.known)}


@dataclass(frozen=True, slots=True)
class TurnTarget:
    """What the reply to one turn should be, and what it is when the agent lives in the past.

    `answer` is y_t, None where it is unknown; `told` says that everything the active function rests on has been told by now.
    `stale_values` are answers of the active function with earlier values of revised arguments, `stale_functions` answers of
    earlier functions at today's values.
    """

    answer: str | None
    told: bool
    stale_values: tuple[str, ...] = ()
    stale_functions: tuple[str, ...] = ()


def turn_targets(path: tuple[IntentState, ...], ingredients: Ingredients, book: AnswerBook) -> tuple[TurnTarget, ...]:
    """Return the target of every turn of a conversation whose states are `path`."""
    targets = []
    for number, state in enumerate(path):
        assert state.function is not None
        function = ingredients.function(state.function)
        answer = book.answer(function, state.versions)
        past = [dict(state.versions) | {key: value for key, value in earlier.versions.items()} for earlier in path[:number]]
        asked = dict.fromkeys(earlier.function for earlier in path[:number] if earlier.function not in (None, state.function))
        values = [book.answer(function, versions) for versions in past]
        functions = [book.answer(ingredients.function(str(key)), state.versions) for key in asked]
        stale_values = _others(values, answer)
        targets.append(TurnTarget(answer, state.knows(function), stale_values, _others(functions, answer, *stale_values)))
    return tuple(targets)


def _others(found: list[str | None], *taken: str | None) -> tuple[str, ...]:
    """Return what was found, once each, without what is taken already."""
    return tuple(dict.fromkeys(text for text in found if text is not None and text not in taken))
