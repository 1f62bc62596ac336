"""The acceptance tests for what a model proposes, by rules (paper, appendix D): extraction, counterfactuals, predecessors.

Each returns the reason for a rejection, None for what passes. What takes a solver or a judge is asked by the builder.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from collab.environments.evolving_intent.critical_tokens import critical_tokens
from collab.environments.evolving_intent.intent import Argument
from collab.language.sentences import same_words

MAX_ARGUMENTS = 5
MAX_PREDECESSOR_WORDS = 25
_NEAR_LENGTH = 0.8


def extraction_fault(source: str, function: str, arguments: Sequence[str]) -> str | None:
    """Check a function and its arguments against the text they were taken from.

    Raises:
        Nothing: a fault is a returned sentence.
    """
    if not function.strip():
        return "there is no function"
    if not 1 <= len(arguments) <= MAX_ARGUMENTS:
        return f"there are {len(arguments)} arguments; 1 to {MAX_ARGUMENTS} are wanted"
    if critical_tokens(function).values:
        return "the function carries a value"
    told = critical_tokens(" ".join(arguments))
    wanted = critical_tokens(source)
    if missing := wanted.values.keys() - told.values.keys():
        return f"the value {min(missing)} of the source is in no argument"
    if added := told.values.keys() - wanted.values.keys():
        return f"the value {min(added)} is not in the source"
    lost = [text for text in sorted(wanted.quoted | wanted.names) if text not in " ".join([*arguments, function]).lower()]
    if lost:
        return f"{lost[0]!r} of the source is nowhere"
    if any(same_words(one, other) for number, one in enumerate(arguments) for other in arguments[:number]):
        return "two arguments say the same"
    return None


def counterfactual_fault(argument: str, old: str, new: str, sentence: str, others: Sequence[str]) -> str | None:
    """Check a counterfactual: one value of the argument exchanged, nothing added, nothing taken away.

    `others` are the texts that must not hold the new value already: the other arguments and accepted counterfactuals.
    """
    if not old or not new or old.lower() == new.lower():
        return "no value is exchanged"
    if argument.count(old) != 1:
        return f"the old value stands {argument.count(old)} times in the argument"
    if _normal(argument.replace(old, new)) != _normal(sentence):
        return "putting the new value in does not give the sentence"
    shorter, longer = sorted((old.lower(), new.lower()), key=len)
    if shorter in longer and len(shorter) / len(longer) < _NEAR_LENGTH:
        return "a value is added to or taken away, not exchanged"
    if len(new) > max(2 * len(old), len(old) + 10):
        return "the new value is far longer than the old one"
    if any(_normal(sentence) == _normal(other) for other in others):
        return "the same was proposed before"
    if critical_tokens(new).values.keys() & critical_tokens(" ".join(others)).values.keys():
        return "the task has the new value already"
    return None


def predecessor_fault(
    function: str, own: Sequence[str], shared: int, bounds: tuple[int, int], arguments: Sequence[Argument], later: Sequence[str]
) -> str | None:
    """Check a predecessor: short, without values, its own arguments new, not one of the `later` questions again.

    `bounds` are the least and most shared arguments that its archetype allows.
    """
    if not function.strip() or len(function.split()) > MAX_PREDECESSOR_WORDS:
        return f"the question must have 1 to {MAX_PREDECESSOR_WORDS} words"
    if critical_tokens(function).values:
        return "the question carries a value"
    if any(same_words(function, other) for other in later):
        return "it is a later question again"
    low, high = bounds
    if not low <= shared <= high:
        return f"{shared} arguments are shared; {low} to {high} are wanted"
    if not shared and not own:
        return "it rests on nothing"
    texts = [argument.text for argument in arguments]
    if any(_normal(text) == _normal(other) for text in own for other in texts):
        return "a new argument is one of the source's"
    return None


def _normal(text: str) -> str:
    """Return a text without what does not matter: case, blanks, the full stop at the end."""
    return re.sub(r"\s+", " ", text).strip().rstrip(".").lower()
