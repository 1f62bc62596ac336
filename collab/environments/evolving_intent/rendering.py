"""Rendering by rules: from a turn's transitions to what the user says.

Only the update is said, never the whole intent, with a cue for the kind of transition ("One more detail:", "Sorry, that was
wrong:"). Cues are drawn by the seed: one seed, one wording, which an evaluation keeps fixed and training may vary.
"""

from __future__ import annotations

import difflib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from collab.environments.evolving_intent.intent import Function, Ingredients, IntentState, Reveal, Script, Turn, states
from collab.language.sentences import split_sentences


@dataclass(frozen=True, slots=True)
class Phrases:
    """How a domain's users put things. Each template has one gap.

    `reveal_many` is for several arguments at once. In `revision` the gap is the corrected statement; `{new}` and `{old}` are the
    value now and before. `switch_request` is for functions that are requests ("Can you work out ...?"). `function_first` says
    whether the opening asks before it tells.
    """

    reveal: tuple[str, ...]
    reveal_many: tuple[str, ...]
    revision: tuple[str, ...]
    switch: tuple[str, ...]
    switch_request: tuple[str, ...]
    repeat: tuple[str, ...]
    function_first: bool = False


MATH = Phrases(
    reveal=(
        "One more detail: {}",
        "I forgot to mention this: {}",
        "Here is something else you need to know: {}",
        "Let me add one thing. {}",
    ),
    reveal_many=(
        "Some more details: {}",
        "I forgot to mention a few things: {}",
        "Here is some more that you need to know: {}",
        "Let me add to that. {}",
    ),
    revision=(
        "Sorry, I need to correct something. {}",
        "Correction: it is {new}, not {old}. {}",
        "Wait, I had a number wrong. {}",
        "Sorry, I mixed up a number: it should be {new}, not {old}. {}",
        "I just checked, and I was off with one number. {}",
    ),
    switch=(
        "Thanks. Now tell me: {}",
        "OK, next question: {}",
        "Good. What I want to know now is this: {}",
        "Alright, on to something else: {}",
    ),
    switch_request=("Thanks. {}", "OK, next question. {}", "Good. {}", "Alright, on to something else. {}"),
    repeat=("Could you go through this once more? {}", "Please check that again. {}", "One more time, please. {}"),
)


def render(script: Script, ingredients: Ingredients, phrases: Phrases, seed: int = 0) -> tuple[str, ...]:
    """Return the user's message for every turn. The same seed gives the same words."""
    cues = _Cues(random.Random(seed))
    messages: list[str] = []
    state = IntentState()
    for turn, after in zip(script, states(script, ingredients), strict=True):
        messages.append(_message(turn, state, ingredients, phrases, cues, messages))
        state = after
    return tuple(messages)


def _message(
    turn: Turn, before: IntentState, ingredients: Ingredients, phrases: Phrases, cues: _Cues, said: Sequence[str]
) -> str:
    if not turn.transitions:
        return cues.next(phrases.repeat).format(said[0])
    reveals = " ".join(told(ingredients, change) for change in turn.reveals)
    if before.function is None:
        assert turn.switch is not None
        function = ingredients.function(turn.switch.function).text
        return f"{function} {reveals}" if phrases.function_first else f"{reveals} {function}"
    parts = []
    if turn.switch:
        asked = ingredients.function(turn.switch.function)
        request = not _starts_with_question_word(asked)
        parts.append(cues.next(phrases.switch_request if request else phrases.switch).format(lower_question(asked)))
    for change in turn.revisions:
        argument = ingredients.argument(change.argument)
        stale, right = argument.value(before.versions[change.argument]), argument.value(change.version)
        parts.append(_correction(stale, right, phrases, cues))
    if reveals:
        many = len(turn.reveals) > 1
        parts.append(reveals if turn.switch else cues.next(phrases.reveal_many if many else phrases.reveal).format(reveals))
    return " ".join(parts)


def told(ingredients: Ingredients, change: Reveal) -> str:
    """Return an argument as it is told at the version of a reveal."""
    return ingredients.argument(change.argument).value(change.version)


def _correction(stale: str, right: str, phrases: Phrases, cues: _Cues) -> str:
    template = cues.next(phrases.revision)
    old, new = exchanged_words(stale, right)
    return template.format(corrected_part(stale, right), new=new, old=old)


def corrected_part(stale: str, right: str) -> str:
    """Return the sentences of a statement that a correction changes; the others need not be said again."""
    before, after = split_sentences(stale), split_sentences(right)
    if len(before) != len(after):
        return right
    return " ".join(now for then, now in zip(before, after, strict=True) if then != now) or right


def exchanged_words(stale: str, right: str) -> tuple[str, str]:
    """Return the words in which two versions of a statement differ, without the punctuation around them: ("$90", "$80")."""
    before, after = stale.split(), right.split()
    old, new = [], []
    for kind, i, j, k, m in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind != "equal":
            old += before[i:j]
            new += after[k:m]
    return " ".join(old).strip(' .,;:?!"()'), " ".join(new).strip(' .,;:?!"()')


_QUESTION_WORDS = frozenset("how what which who when where is are was were do does did in at on by for to of".split())


def _starts_with_question_word(function: Function) -> bool:
    return re.split(r"[\s']", function.text, maxsplit=1)[0].lower() in _QUESTION_WORDS


def lower_question(function: Function) -> str:
    """Return a function's text as it follows a colon: a question word loses its capital, anything else keeps it."""
    return function.text[:1].lower() + function.text[1:] if _starts_with_question_word(function) else function.text


class _Cues:
    """Hands out cue templates, never the same twice in a row."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._last: dict[tuple[str, ...], str] = {}

    def next(self, templates: tuple[str, ...]) -> str:
        choices = [template for template in templates if template != self._last.get(templates)] or list(templates)
        self._last[templates] = self._rng.choice(choices)
        return self._last[templates]
