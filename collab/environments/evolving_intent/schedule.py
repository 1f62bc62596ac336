"""The scheduler: which transition happens on which turn, so that the conversation ends in the source problem.

The rules (paper, appendix C.1, and two of our own marked [O]):

1. One transition a turn after the opening: a switch (with the new function's own arguments), one revision, or a reveal.
2. The opening asks the first function and tells at least one argument; no turn is empty; reveals fill what is left over.
3. Source arguments are told in source order, so that "he" and "the rest" keep pointing back at what was said [O].
4. An argument is told, at a counterfactual value, before it is corrected.
5. A predecessor's arguments are all told before the next function replaces it: it is answerable while it is active [O].
6. A revised argument is corrected before the first later function that rests on it; the source function rests on all of them.
7. The final switch is the last turn, unless `late` transitions are asked to follow it; their corrections are exempt from rule 6
   for the source function.
8. After the last turn the function and every value are the source's and everything has been told.

With `late` 0 a schedule exists exactly when the counts allow it (`infeasibility`): tell everything, correct everything, switch.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from collab.environments.evolving_intent.intent import (
    SOURCE,
    Argument,
    Function,
    Ingredients,
    Reveal,
    Revision,
    Script,
    Switch,
    Transition,
    Turn,
)

Slot = Literal["switch", "revision", "reveal"]
_NEVER = 10**9
_CANDIDATES = 8
_ATTEMPTS = 60


class Infeasible(ValueError):
    """No schedule of the wanted shape exists for these ingredients; the text says why."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a conversation is to be built: T turns, g switches and p revisions; `late` transitions follow the final switch.

    Raises:
        ValueError: when a count is negative, there is no turn, or `late` asks for more than there is.
    """

    turns: int
    switches: int = 0
    revisions: int = 0
    late: int = 0

    def __post_init__(self) -> None:
        if self.turns < 1 or min(self.switches, self.revisions, self.late) < 0:
            raise ValueError(f"schedule: there must be a turn and no count below 0, got {self}")
        if self.late and (not self.switches or self.late > self.revisions + max(self.reveals, 0)):
            raise ValueError(f"schedule: {self.late} late transitions need a switch and as many revisions and reveals")

    @property
    def reveals(self) -> int:
        """Turns after the opening that tell further arguments; negative when the turns do not suffice."""
        return self.turns - 1 - self.switches - self.revisions


def infeasibility(ingredients: Ingredients, shape: Shape) -> str | None:
    """Return why the counts rule a schedule out, None where they do not."""
    revisable = sum(len(argument.alternatives) for argument in ingredients.arguments)
    if shape.reveals < 0:
        least = 1 + shape.switches + shape.revisions
        return (
            f"{shape.turns} turns are too few for {shape.switches} switches and {shape.revisions} revisions; {least} are needed"
        )
    if shape.switches > len(ingredients.predecessors):
        return f"{shape.switches} switches need as many predecessors; there are {len(ingredients.predecessors)}"
    if shape.revisions > revisable:
        return f"{shape.revisions} revisions need as many counterfactual values; there are {revisable}"
    if shape.reveals > len(ingredients.arguments) - 1:
        return f"{shape.reveals} turns that reveal need {shape.reveals + 1} arguments; there are {len(ingredients.arguments)}"
    return None


def schedule(ingredients: Ingredients, shape: Shape, seed: int) -> Script:
    """Draw a schedule. The same seed gives the same script.

    Of several drawn ones the best is kept: revisions that come after a predecessor used the stale value (so that its answer is no
    help), and reveals that tell a value.

    Raises:
        Infeasible: when there is none (with `late` above 0: when none was found).
    """
    if reason := infeasibility(ingredients, shape):
        raise Infeasible(reason)
    rng = random.Random(seed)
    drawn: list[_Plan] = []
    for _ in range(_ATTEMPTS):
        plan = _draw(ingredients, shape, rng)
        if plan is not None:
            drawn.append(plan)
        if len(drawn) == _CANDIDATES:
            break
    if not drawn:
        if shape.late:
            raise Infeasible(f"no order was found that keeps every rule with {shape.late} transitions after the final switch")
        drawn = [_canonical(ingredients, shape, rng)]
    return max(drawn, key=lambda plan: plan.merit()).script()


def repeated(ingredients: Ingredients, turns: int) -> Script:
    """Return the repeat control: everything in the first turn, then the same said again (paper, appendix F.4)."""
    opening: tuple[Transition, ...] = (Switch(SOURCE), *(Reveal(argument.key) for argument in ingredients.arguments))
    return (Turn(opening), *(Turn(()) for _ in range(turns - 1)))


@dataclass(frozen=True, slots=True)
class _Plan:
    """A schedule in the making: what each turn after the opening is, when each argument is told, what each revision corrects."""

    ingredients: Ingredients
    functions: tuple[Function, ...]
    slots: tuple[Slot, ...]
    told: dict[str, int]
    corrected: dict[int, str]

    def script(self) -> Script:
        left = Counter(self.corrected.values())
        by_key = {argument.key: argument for argument in self.ingredients.arguments}
        functions = iter(self.functions)
        turns = []
        for number, slot in enumerate(("opening", *self.slots), start=1):
            changes: list[Transition] = []
            if slot in ("opening", "switch"):
                function = next(functions)
                changes.append(Switch(function.key))
                changes += [Reveal(argument.key) for argument in function.own]
            if slot == "revision":
                key = self.corrected[number]
                left[key] -= 1
                changes.append(Revision(key, left[key]))
            changes += [Reveal(key, left[key]) for key in by_key if self.told[key] == number]
            turns.append(Turn(tuple(changes)))
        return tuple(turns)

    def merit(self) -> tuple[int, int]:
        """Return (revisions of values that an answerable predecessor has used, reveal turns that tell a value)."""
        asked = _asked_at(self.slots)
        used = 0
        for turn, key in self.corrected.items():
            active = max(index for index, asked_at in enumerate(asked) if asked_at <= turn)
            function = self.functions[active]
            ready = max([self.told[need] for need in function.needs] + [asked[active]])
            used += key in function.needs and ready < turn
        informative = {self.told[argument.key] for argument in self.ingredients.arguments if argument.informative}
        reveals = [number for number, slot in enumerate(self.slots, start=2) if slot == "reveal"]
        return used, sum(number in informative for number in reveals)


def _asked_at(slots: Sequence[Slot]) -> list[int]:
    """Return the turn on which each function is asked, the opening's first."""
    return [1, *(number for number, slot in enumerate(slots, start=2) if slot == "switch")]


def _draw(ingredients: Ingredients, shape: Shape, rng: random.Random) -> _Plan | None:
    """Draw one schedule; None where the draw breaks a rule."""
    functions = (*_choose(ingredients.predecessors, shape.switches, rng), ingredients.source)
    slots = _draw_slots(shape, rng)
    reveal_turns = [1, *(number for number, slot in enumerate(slots, start=2) if slot == "reveal")]
    cuts = sorted(rng.sample(range(1, len(ingredients.arguments)), shape.reveals))
    told = {argument.key: reveal_turns[sum(cut <= index for cut in cuts)] for index, argument in enumerate(ingredients.arguments)}
    asked = _asked_at(slots)
    for function, replaced in zip(functions, asked[1:], strict=False):
        if any(told[need] >= replaced for need in function.needs):
            return None
    revised = _round_robin(ingredients.arguments, functions[:-1], shape.revisions, rng)
    deadlines = {key: _deadline(key, told[key], functions, asked, shape.late) for key in revised}
    turns = [number for number, slot in enumerate(slots, start=2) if slot == "revision"]
    corrected = _assign(turns, Counter(revised), told, deadlines, rng)
    return None if corrected is None else _Plan(ingredients, functions, slots, told, corrected)


def _canonical(ingredients: Ingredients, shape: Shape, rng: random.Random) -> _Plan:
    """Return the schedule that the counts guarantee: tell everything, correct everything, then switch."""
    functions = (*_choose(ingredients.predecessors, shape.switches, rng), ingredients.source)
    slots = _slots("reveal", shape.reveals) + _slots("revision", shape.revisions) + _slots("switch", shape.switches)
    first = len(ingredients.arguments) - shape.reveals
    told = {argument.key: 1 if index < first else index - first + 2 for index, argument in enumerate(ingredients.arguments)}
    revised = _round_robin(ingredients.arguments, functions[:-1], shape.revisions, rng)
    corrected = {2 + shape.reveals + index: key for index, key in enumerate(revised)}
    return _Plan(ingredients, functions, tuple(slots), told, corrected)


def _choose(predecessors: Sequence[Function], count: int, rng: random.Random) -> tuple[Function, ...]:
    chosen = sorted(rng.sample(range(len(predecessors)), count))
    return tuple(predecessors[index] for index in chosen)


def _draw_slots(shape: Shape, rng: random.Random) -> tuple[Slot, ...]:
    others = _slots("revision", shape.revisions) + _slots("reveal", shape.reveals)
    rng.shuffle(others)
    after, before = others[: shape.late], others[shape.late :]
    if not shape.switches:
        return tuple(others)
    before += _slots("switch", shape.switches - 1)
    rng.shuffle(before)
    return (*before, "switch", *after)


def _slots(kind: Slot, count: int) -> list[Slot]:
    return [kind] * count


def _round_robin(arguments: Sequence[Argument], predecessors: Sequence[Function], count: int, rng: random.Random) -> list[str]:
    """Return the arguments to revise, one entry a revision: all revisable ones in turn, those that predecessors share first."""
    shared = frozenset(itertools.chain.from_iterable(function.needs for function in predecessors))
    order = [argument for argument in arguments if argument.alternatives]
    rng.shuffle(order)
    order.sort(key=lambda argument: argument.key not in shared)
    rounds: Iterator[str] = (
        argument.key
        for depth in range(max((len(argument.alternatives) for argument in order), default=0))
        for argument in order
        if depth < len(argument.alternatives)
    )
    return list(itertools.islice(rounds, count))


def _deadline(key: str, told: int, functions: Sequence[Function], asked: Sequence[int], late: int) -> int:
    """Return the turn before which an argument must have its source value: the first later function that rests on it."""
    for index, (function, turn) in enumerate(zip(functions, asked, strict=True)):
        final = index == len(functions) - 1
        if turn > told and (final or key in function.needs):
            return _NEVER if final and late else turn
    return _NEVER


def _assign(
    turns: Sequence[int], left: Counter[str], told: dict[str, int], deadlines: dict[str, int], rng: random.Random
) -> dict[int, str] | None:
    """Give every revision turn an argument, in time for its deadline; depth first in seeded order."""
    if not turns:
        return {}
    turn, rest = turns[0], turns[1:]
    keys = [key for key in sorted(left) if left[key] and told[key] < turn < deadlines[key]]
    rng.shuffle(keys)
    for key in keys:
        found = _assign(rest, left - Counter([key]), told, deadlines, rng)
        if found is not None:
            return {turn: key, **found}
    return None
