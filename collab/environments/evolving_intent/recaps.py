"""Memory interventions: what is appended to the user's turns after the first (paper, appendix C.3).

*Prompt* asks the agent to list what applies before it answers; *oracle* lists it for the agent: the active function and
everything told so far at its active value; *dump* repeats the earlier user turns word for word.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from collab.environments.evolving_intent.intent import Ingredients, IntentState, Script, states


class Recap(StrEnum):
    """Which memory intervention is used."""

    NONE = "none"
    PROMPT = "prompt"
    ORACLE = "oracle"
    DUMP = "dump"


PROMPT_RECAP = (
    "Before you answer, list briefly what I am asking for now and every detail that currently applies, at its latest value."
)


def recaps_of(messages: Sequence[str], script: Script, ingredients: Ingredients, recap: Recap) -> tuple[str, ...]:
    """Return what is appended to each message: the recap from the second turn on, nothing to the first."""
    if recap is Recap.NONE:
        return ("",) * len(messages)
    path = states(script, ingredients)
    result = [""]
    for number in range(1, len(messages)):
        if recap is Recap.PROMPT:
            addition = PROMPT_RECAP
        elif recap is Recap.ORACLE:
            addition = oracle(path[number], ingredients)
        else:
            addition = "For reference, what I said before:\n" + "\n".join(f"- {message}" for message in messages[:number])
        result.append(addition)
    return tuple(result)


def oracle(state: IntentState, ingredients: Ingredients) -> str:
    """Return the state in words: the active function and what has been told, each argument at its active value."""
    assert state.function is not None
    function = ingredients.function(state.function)
    own = {argument.key for argument in function.own}
    source = {argument.key for argument in ingredients.arguments}
    told = [ingredients.argument(key).value(version) for key, version in state.versions.items() if key in own | source]
    return "\n".join(["To sum up where we are:", *(f"- {text}" for text in told), f"The question now: {function.text}"])
