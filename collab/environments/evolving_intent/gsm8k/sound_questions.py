"""What a question must not look like: the faults of questions made from a solution's lines, and of written sub-questions.

Lines of solutions are written in a hurry, and reading them goes wrong now and then. A question is cheaper to drop than to mend:
most problems have others. Each pattern below was found by reading questions of GSM8K.
"""

from __future__ import annotations

import re

from collab.environments.evolving_intent.gsm8k.counts import holds_values
from collab.environments.evolving_intent.gsm8k.english import VERBS, VerbForm, is_plural

_MAX_WORDS = 25

_PERIODS = r"(?:day|week|month|year|hour|minute|second)"

_POINTS = re.compile(
    r"\b(?:for|of|on|with|from|to|by|at) it\?$|\bfor them\b|\bby adding\b"
    r"|\b(?:has|have|had|do|does|did|will|would|can) (?:across|during|over) "
    r"|\beach\b.* each\?$|^How many [a-z]+ing (?:do|does|did)\b"
    r"|\b(?:that|this|these|those) (?!is|are|was|were|she|he|they|it|the|can|will|have|has|had|do|does|did|need|each)[a-z]+\b"
    r"|\b(?:for|from|with|of) that\?$|\bthe first number\b",
    re.IGNORECASE,
)
"""Points at a line that the user never saw."""

_BARE = re.compile(
    r"^What (?:is|was|were|are|will) (?:the|his|her|their) (?:\w+ ){0,2}\w+(?: be)?\?$"
    r"|^How much (?:do|does|did|will|would) (?:they|it) cost\?$"
    r"|^How (?:many|much) (?:[a-z]+ )?(?:does|did|will|would) it take\?$"
    r"|^How much (?:money )?(?:do|does|did|will|would|can) (?:he|she|they|it|[A-Z]\w+) pay\?$"
    r"|^What (?:is|was) the total(?: amount)? for the (?:\w+ )?(?:day|week|month|year)\?$"
    r"|^What (?:is|was) [A-Z]\w+'s (?:new |old )?total\?$|^What (?:is|was|are|were) .* each\?$"
)
"""Leaves open of what."""

_SAID_TWICE = re.compile(
    r"\b([A-Z][a-z]+)\b[^']* \1\b|\b([a-z]{2,}) (?:to )?\2\b"  # "did they cook to cook", "in in"
    r"|\b(?:per|each|every|one|an?) (\w+)\b.*\b(?:per|each|every|in an?|in one) \3\b"  # "per feeding at each feeding"
    r"|\bin (\w+) in \4\b|^How many ([a-z]+) .* in \5\?$"  # "How many minutes does Kim sleep in minutes?"
    r"|\b(?:is|are|was|were) there (?:is|are|was|were)\b"
    r"|^How many (?:[\w'-]+ )*?([a-z]{3,}s) (?:.* )?(?:from|out of|in|with|do|does|did|worth)"
    r" (?:(?:the|his|her|their|half|[A-Z]\w+(?:'s)?) )*\6\b"  # "How many characters do half the characters have?"
    r"|\bcost\b.* costs?\b|\bprice\b.* raise the price\b|\bmoney\b.* money, "
    r"|\bleft (?:with )?(?:left|remaining)\b"
)

_GARBLED = re.compile(
    r"^What is (?:twice|half|\w+ times) as\b"  # "What is twice as many flutes as Charlie?"
    r"|^How old\b.* age\b|^How many \w+ (?:is|are) the number\b"
    r"|^How (?:much|many) (?:is|was|are|were) .*\b(?:more|less|fewer|[a-z]+er) (?:\w+ )?than\b"  # "is the car cheaper than"
    r"|\b(?:do|does|did|can|will) (?:combined|add|while)\b"  # "do combined the children have"
    rf"|\b(?:does|did|can|will) (?:every|each) {_PERIODS}\b(?! of\b| \w+\?$)"  # "does every day Claire buy"
    r"|\b(?:is|are|was|were) the .* \w+ed by\?$"  # "How many guests was the water consumed by?"
    r"|\b(?:was|were) (?:while|[A-Z]\w+ \w+ed (?:his|her|their))\b|\bof when\b|[:;]"
    r"|\bdifference between (?!.*\band\b)"
)

_COPULA = re.compile(r"^How (?:many|much) (?:[a-z]+ )?(?:is|was) the ([a-z]+)\?$")
"""Its noun must not be a plural: "How many cents is the nickels?"."""

_RELATIVE = re.compile(r"^What (?:is|was) the (?:[a-z]+ )*(?:number|amount) of [a-z ]+ [A-Z][a-z]+ ([a-z]+)\b")
"""Its verb must be finite, not "the number of holes Nate fill"."""

_ASKED = re.compile(r"\b(?:can|will|would|should|do|does|did) (?:[A-Z]\w+|he|she|they|it) (?:[a-z]+ly )?([a-z]+)\b")
"""Its verb must be the base form, not "can Jane sold"."""


def is_sound(text: str) -> bool:
    """True for a question of its own: no values, not too long, nothing said twice, nothing that only its line would explain."""
    if not text.endswith("?") or not 3 < len(text.split()) <= _MAX_WORDS or holds_values(text):
        return False
    if any(pattern.search(text) for pattern in (_POINTS, _BARE, _SAID_TWICE, _GARBLED)):
        return False
    if (noun := _COPULA.match(text)) and is_plural(noun.group(1)):
        return False
    if (verb := _RELATIVE.match(text)) and _forms(verb.group(1)) == {"base"}:
        return False
    return all("base" in (_forms(word) or {"base"}) or "ing" in _forms(word) or is_plural(word) for word in _ASKED.findall(text))


def _forms(word: str) -> set[VerbForm]:
    return {form for _, form in VERBS.get(word, ())}
