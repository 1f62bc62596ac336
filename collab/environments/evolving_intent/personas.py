"""Personas: people who type the same thing differently, by rules (spelling, case, slips of the finger) or as an LLM's brief.

The paper names persona, style and typos as what its users lack. A persona here never touches what a message means: numbers,
quoted strings, names and question words stay as they are, and `lost_meaning` is checked on every message.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from collab.environments.evolving_intent.critical_tokens import lost_meaning
from collab.language.numbers import WORD_VALUES
from simulators.errors import ConfigurationError

_WORD = re.compile(r"[A-Za-z']+")
_KEYBOARD = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_QUOTED = re.compile(r"(\"[^\"]*\"|`[^`]*`)")
_SAFE_LENGTH = 5
_PROTECTED = (
    frozenset(
        "how many much what which who when where half twice thrice double triple third quarter percent each every more less "
        "fewer than not dozen hundred thousand million first second".split()
    )
    | WORD_VALUES.keys()
)
_SHORT_FORMS = {
    "you": "u", "your": "ur", "please": "pls", "because": "bc", "about": "abt", "okay": "ok", "with": "w/", "are": "r",
    "thanks": "thx", "tomorrow": "tmrw", "people": "ppl", "something": "smth", "message": "msg", "probably": "prob",
}  # fmt: skip
_POLITE = re.compile(r"^(?:Sorry|Wait|Thanks|OK|Good|Alright|Let me add (?:one thing|to that)|Correction)[,.:!]? ", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Persona:
    """How somebody types. `typo_rate` is the share of words of five letters and more with a slip; `brief` describes the person to
    a model that plays them."""

    name: str
    brief: str
    lower_case: bool = False
    drops_punctuation: bool = False
    short_forms: bool = False
    curt: bool = False
    typo_rate: float = 0.0
    opening: tuple[str, ...] = ()


PERSONAS: dict[str, Persona] = {
    persona.name: persona
    for persona in (
        Persona("hasty", "types fast on a phone, in lower case, with slips and short forms", True, True, True, True, 0.12),
        Persona("careless", "means well, proofreads nothing: a slip in every other sentence", typo_rate=0.1),
        Persona(
            "curt", "busy and short: no greetings, no thanks, fragments rather than sentences", curt=True, drops_punctuation=True
        ),
        Persona(
            "chatty",
            "friendly and wordy, thinks aloud",
            opening=("Hey there!", "So, let me think.", "Right, here we go.", "Ah yes."),
        ),
        Persona("casual", "writes as one talks, all lower case, hardly any punctuation", lower_case=True, drops_punctuation=True),
    )
}


def persona_named(name: str) -> Persona:
    """Return a persona by name.

    Raises:
        ConfigurationError: for an unknown name.
    """
    if name not in PERSONAS:
        raise ConfigurationError(f"option persona is {name!r}; it must be one of {', '.join(sorted(PERSONAS))}")
    return PERSONAS[name]


def in_style(message: str, persona: Persona, seed: int) -> str:
    """Return a message as a persona types it; the same seed gives the same slips.

    Where the style would lose meaning (it should not: see the module) the message stays as it was.
    """
    rng = random.Random(seed)
    text = message
    if persona.curt:
        text = _POLITE.sub("", text)
        text = text[:1].upper() + text[1:]
    protected = _protected_words(message)
    text = _WORD.sub(lambda match: _typed(match.group(), persona, protected, rng), text)
    if persona.lower_case:
        text = "".join(part if part.startswith(('"', "`")) else part.lower() for part in _QUOTED.split(text))
    if persona.drops_punctuation:
        text = re.sub(r"(?<=[a-z])[.,!](?=\s|$)", "", text)
    if persona.opening and rng.random() < 0.5:
        text = f"{rng.choice(persona.opening)} {text}"
    return message if lost_meaning(message, text) else text


def _protected_words(message: str) -> frozenset[str]:
    """Return the words (lower case) that never get a slip: names, and what stands in quotes."""
    words = {match.group().lower() for match in re.finditer(r"\b[A-Z][\w']*", message)}
    for quoted in _QUOTED.findall(message):
        words |= {word.lower() for word in _WORD.findall(quoted)}
    return frozenset(words)


def _typed(word: str, persona: Persona, protected: frozenset[str], rng: random.Random) -> str:
    lowered = word.lower()
    if lowered in protected or lowered in _PROTECTED or not word.isalpha():
        return word
    if persona.short_forms and lowered in _SHORT_FORMS and rng.random() < 0.7:
        return _SHORT_FORMS[lowered]
    if len(word) < _SAFE_LENGTH or rng.random() >= persona.typo_rate:
        return word
    return _slip(word, rng)


def _slip(word: str, rng: random.Random) -> str:
    """Return a word with one slip inside it: two letters swapped, one doubled, one left out, or a neighbour key hit."""
    place = rng.randrange(1, len(word) - 2)
    kind = rng.choice(("swap", "double", "drop", "neighbour"))
    if kind == "swap":
        return word[:place] + word[place + 1] + word[place] + word[place + 2 :]
    if kind == "double":
        return word[:place] + word[place] + word[place:]
    if kind == "drop":
        return word[:place] + word[place + 1 :]
    row = next((row for row in _KEYBOARD if word[place].lower() in row), "")
    position = row.find(word[place].lower())
    near = [row[other] for other in (position - 1, position + 1) if row and 0 <= other < len(row)]
    return word[:place] + rng.choice(near) + word[place + 1 :] if near else word
