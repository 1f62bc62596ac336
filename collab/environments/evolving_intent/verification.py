"""Verification, written apart from the scheduler: a script against every rule, and its last state against the source."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from collab.environments.evolving_intent.conversion import Conversion
from collab.environments.evolving_intent.intent import SOURCE, Argument, Ingredients, InvalidTransition, Script, states
from collab.environments.evolving_intent.rendering import corrected_part
from collab.environments.evolving_intent.schedule import Shape
from collab.language.numbers import find_numbers
from collab.language.sentences import tidy


def violations(script: Script, ingredients: Ingredients, shape: Shape) -> list[str]:
    """Return every rule that a script breaks, in words; [] for a sound one."""
    found = _shape_violations(script, shape)
    try:
        found += terminal_violations(script, ingredients)
    except InvalidTransition as error:
        return [*found, f"the transitions are not valid: {error}"]
    order = [argument.key for argument in ingredients.arguments]
    told_at = {change.argument: number for number, turn in enumerate(script, start=1) for change in turn.reveals}
    told = [change.argument for turn in script for change in turn.reveals if change.argument in order]
    if told != order:
        found.append("the source arguments are not told in source order")
    if not script[0].reveals or not any(change.argument in order for change in script[0].reveals):
        found.append("the opening tells no source argument")
    asked = [(number, turn.switch.function) for number, turn in enumerate(script, start=1) if turn.switch]
    if shape.switches and not shape.late and asked[-1][0] != len(script):
        found.append("the final switch is not on the last turn")
    for (_, key), (replaced, _) in itertools.pairwise(asked):
        late = [need for need in ingredients.function(key).needs if told_at.get(need, len(script)) >= replaced]
        if late:
            found.append(f"function {key} is replaced before {late} is told")
    return found + _stale_violations(script, ingredients, shape)


def _shape_violations(script: Script, shape: Shape) -> list[str]:
    found = []
    if len(script) != shape.turns:
        found.append(f"{len(script)} turns instead of {shape.turns}")
    if sum(turn.switch is not None for turn in script[1:]) != shape.switches:
        found.append("the number of switches is not as asked")
    if sum(len(turn.revisions) for turn in script) != shape.revisions:
        found.append("the number of revisions is not as asked")
    for number, turn in enumerate(script[1:], start=2):
        kinds = (turn.switch is not None) + bool(turn.revisions) + bool(turn.reveals and not turn.switch)
        if kinds != 1 or len(turn.revisions) > 1:
            found.append(f"turn {number} has {kinds} kinds of transition instead of one")
    return found


def _stale_violations(script: Script, ingredients: Ingredients, shape: Shape) -> list[str]:
    """A function that is switched to must not rest on a stale value told before."""
    found = []
    versions: dict[str, int] = {}
    for number, turn in enumerate(script, start=1):
        if turn.switch and number > 1:
            final = turn.switch.function == SOURCE
            needs = ingredients.function(turn.switch.function).needs if not final else set(versions)
            stale = sorted(key for key in needs if versions.get(key))
            if stale and not (final and shape.late):
                found.append(f"function {turn.switch.function} is asked while {stale} is not corrected yet")
        versions |= {change.argument: change.version for change in turn.revisions}
        versions |= {change.argument: change.version for change in turn.reveals}
    return found


def terminal_violations(script: Script, ingredients: Ingredients) -> list[str]:
    """Return how the state after the last turn differs from the source problem; [] where it does not.

    Raises:
        InvalidTransition: as `states` does.
    """
    last = states(script, ingredients)[-1]
    found = [] if last.function == SOURCE else [f"the last turn's function is {last.function}, not the source's"]
    for argument in ingredients.arguments:
        version = last.versions.get(argument.key)
        if version != 0:
            found.append(f"argument {argument.key} is {'not told' if version is None else 'not at its source value'} at the end")
    return found


def reading_violations(messages: Sequence[str], conversion: Conversion) -> list[str]:
    """Read the rendered conversation as its hearer does and say how what it ends with differs from the source problem.

    For every argument the value said last must be the source's, the question asked last must be the source's, and every number of
    the source problem must be among the numbers that hold at the end.
    """
    found = []
    ingredients = conversion.ingredients
    for argument in ingredients.arguments:
        said: dict[int, int] = {}
        for number, message in enumerate(messages):
            for version in range(len(argument.alternatives) + 1):
                if any(part in message for part in _parts_of(argument, version)):
                    said[version] = number
        if 0 not in said:
            found.append(f"argument {argument.key} is never said at its source value")
        elif any(number > said[0] for number in said.values()):
            found.append(f"argument {argument.key} is last said at another value than the source's")
    asked = [
        max((number for number, message in enumerate(messages) if function.text[1:] in message), default=-1)
        for function in ingredients.functions
    ]
    if asked[-1] < 0 or max(asked) > asked[-1]:
        found.append("the question asked last is not the source's")
    final = {
        number.value
        for text in (ingredients.source.text, *(a.text for a in ingredients.arguments))
        for number in find_numbers(text)
    }
    missing = {number.value for number in find_numbers(tidy(conversion.task.text))} - final
    if missing:
        found.append(f"numbers of the source problem are missing: {sorted(map(str, missing))}")
    return found


def _parts_of(argument: Argument, version: int) -> list[str]:
    """Return the ways an argument may be said at a version: whole, or the sentences in which it differs from another version."""
    text = argument.value(version)
    others = [argument.value(other) for other in range(len(argument.alternatives) + 1) if other != version]
    return [text, *(corrected_part(other, text) for other in others)]
