"""From a conversion to one conversation: a schedule, its words, and what is right after each turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from collab.environments.evolving_intent.answers import TurnTarget, turn_targets
from collab.environments.evolving_intent.conversion import Conversion, Rejected
from collab.environments.evolving_intent.intent import Revision, Script, Switch, states
from collab.environments.evolving_intent.recaps import Recap, recaps_of
from collab.environments.evolving_intent.rendering import Phrases, render
from collab.environments.evolving_intent.schedule import Infeasible, Shape, repeated, schedule
from collab.environments.evolving_intent.verification import terminal_violations, violations
from simulators.seeds import derive_seed

_DRAWS = 6

Style = Callable[[str, int], str]
"""Puts the words of a turn (from 0) into somebody's style."""


def plainly(words: str, turn: int) -> str:
    """Leave words as they are."""
    return words


def framed(words: str, before: str, after: str) -> str:
    """Return a message: the words of its turn, between what stands before and after them."""
    return "\n\n".join(part for part in (before, words, after) if part)


@dataclass(frozen=True, slots=True)
class EvolvingConversation:
    """What a scheduled user says, turn by turn, with the transitions behind it and the targets of the agent's replies.

    `words` are the user's own. `preamble` stands before the first (a database's schema, the tools), `recaps` after each ("" for
    none); neither is put into anybody's style or words, since grading rests on them.
    """

    words: tuple[str, ...]
    script: Script
    targets: tuple[TurnTarget, ...]
    preamble: str = ""
    recaps: tuple[str, ...] = ()

    @property
    def messages(self) -> tuple[str, ...]:
        """The messages as they are sent."""
        recaps = self.recaps or ("",) * len(self.words)
        before = (self.preamble, *[""] * (len(self.words) - 1))
        return tuple(framed(*parts) for parts in zip(self.words, before, recaps, strict=True))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of every turn: opening, reveal, revision, switch or repeat."""
        kinds = ["opening"]
        for turn in self.script[1:]:
            kinds.append("switch" if turn.switch else "revision" if turn.revisions else "reveal" if turn.reveals else "repeat")
        return tuple(kinds)

    def to_record(self) -> dict[str, Any]:
        """Return the conversation as plain JSON data, for a task's metadata."""
        return {
            "messages": list(self.messages),
            "words": list(self.words),
            "preamble": self.preamble,
            "recaps": list(self.recaps),
            "kinds": list(self.kinds),
            "targets": [asdict(target) for target in self.targets],
        }


def single(conversion: Conversion, style: Style = plainly) -> EvolvingConversation:
    """Return the single-turn setting: the source problem, word for word where no style is given."""
    script = repeated(conversion.ingredients, 1)
    words = (style(conversion.task.text, 0),)
    return EvolvingConversation(words, script, _targets(script, conversion), _preamble(conversion))


def repeat(conversion: Conversion, turns: int, phrases: Phrases, seed: int, style: Style = plainly) -> EvolvingConversation:
    """Return the repeat control: the source problem, asked `turns` times (paper, appendix F.4)."""
    script = repeated(conversion.ingredients, turns)
    said = render(script, conversion.ingredients, phrases, derive_seed(seed, conversion.task.id, "words"))
    words = tuple(style(message.replace(said[0], conversion.task.text), turn) for turn, message in enumerate(said))
    return EvolvingConversation(words, script, _targets(script, conversion), _preamble(conversion))


def evolve(
    conversion: Conversion,
    shape: Shape,
    phrases: Phrases,
    seed: int = 0,
    recap: Recap = Recap.NONE,
    style: Style = plainly,
) -> EvolvingConversation:
    """Return one conversation of a shape. The same seed gives the same conversation.

    Where every state's answer is known, a schedule whose stale values give the right answer after all (two that cancel out, for
    one) is drawn again.

    Raises:
        Rejected: stage "schedule", when the shape is not feasible or every draw left a stale value without effect.
    """
    if shape.turns == 1:
        return single(conversion, style)
    for draw in range(_DRAWS):
        try:
            script = schedule(conversion.ingredients, shape, derive_seed(seed, conversion.task.id, "schedule", draw))
        except Infeasible as error:
            raise Rejected("schedule", str(error)) from None
        if not conversion.exact or not harmless_ways(script, conversion):
            break
    else:
        raise Rejected("schedule", "stale values or functions give the source's answer in every schedule drawn")
    if broken := violations(script, conversion.ingredients, shape) + terminal_violations(script, conversion.ingredients):
        raise AssertionError(f"task {conversion.task.id}: the schedule breaks its rules: {broken}")
    said = render(script, conversion.ingredients, phrases, derive_seed(seed, conversion.task.id, "words"))
    words = tuple(style(message, turn) for turn, message in enumerate(said))
    recaps = recaps_of(words, script, conversion.ingredients, recap)
    return EvolvingConversation(words, script, _targets(script, conversion), _preamble(conversion), recaps)


def _preamble(conversion: Conversion) -> str:
    """Return what every conversation about the task starts with: a database's schema, the tools."""
    return str(conversion.task.details.get("preamble", ""))


def harmless_ways(script: Script, conversion: Conversion) -> list[str]:
    """Return the ways to live in the past that still give the source's answer; a sound conversation has none.

    Two are looked at: to ignore every revision (the values told first stay), and every switch (the first function stays).
    """
    ingredients, book = conversion.ingredients, conversion.answers
    last = states(script, ingredients)[-1]
    right = book.answer(ingredients.source, last.versions)
    ways = []
    if any(isinstance(change, Revision) for turn in script for change in turn.transitions):
        told = {change.argument: change.version for turn in script for change in turn.reveals}
        if book.answer(ingredients.source, told) == right:
            ways.append("ignoring the revisions")
    first = script[0].transitions[0]
    assert isinstance(first, Switch)
    if first.function != ingredients.source.key and book.answer(ingredients.function(first.function), last.versions) == right:
        ways.append("ignoring the switches")
    return ways


def _targets(script: Script, conversion: Conversion) -> tuple[TurnTarget, ...]:
    return turn_targets(states(script, conversion.ingredients), conversion.ingredients, conversion.answers)


def targets_from_record(record: Mapping[str, Any]) -> tuple[TurnTarget, ...]:
    """Rebuild the targets from `EvolvingConversation.to_record`'s data."""
    return tuple(
        TurnTarget(data["answer"], data["told"], tuple(data["stale_values"]), tuple(data["stale_functions"]))
        for data in record["targets"]
    )
