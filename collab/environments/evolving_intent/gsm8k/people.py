"""Whom a pronoun of a solution means, so that a question made from one line can name the person."""

from __future__ import annotations

import re

from collab.environments.evolving_intent.gsm8k.english import (
    BE,
    CALENDAR,
    DETERMINERS,
    FAMILIAR,
    MODALS,
    PEOPLE_PRONOUNS,
    PRONOUNS,
    VERBS,
)
from collab.environments.evolving_intent.gsm8k.resemblance import NAME

_RELATIVE = re.compile(
    r"\b(?:mother|father|mom|dad|sister|brother|son|daughter|wife|husband|cousin|uncle|aunt|grandmother|grandfather|girlfriend|"
    r"boyfriend)\b"
)


def people_of(text: str) -> list[str]:
    """Return the names of those who do or own something in a text, in the order of their first use.

    A name is a capitalised word that is never written small, stands before a verb or "'s", and agrees with a singular verb; "the
    price of Poutine is" names a thing.
    """
    names: list[str] = []
    for match in NAME.finditer(text):
        word, after = match.group(), text[match.end() :]
        known = word.lower() in FAMILIAR | DETERMINERS | PRONOUNS or word.lower() in VERBS or word in CALENDAR
        if known or word in names or re.search(rf"\b{word.lower()}s?\b", text):
            continue
        following = re.match(r"(?:'s?\b|(?:,? (?:and|who) [A-Z]?[a-z]+| [a-z]+ly)? ([a-z]+)\b)", after)
        forms = {form for _, form in VERBS.get(following.group(1) or "", ())} if following else set()
        acts = following is not None and (
            following.group(1) is None
            or (
                (forms & {"s", "past"} or following.group(1) in BE | MODALS | {"has", "had"})
                and not text[: match.start()].endswith(" of ")
            )
        )
        if acts and not re.search(rf"\b(?:the|a|an|each|every|many|\d+|two|three|four|five|ten) {word}\b", text, re.IGNORECASE):
            names.append(word)
    return names


def with_names(text: str, problem: str, earlier: str) -> str | None:
    """Put the person's name for "he", "she", "his" or "her" where exactly one can be meant; None where it stays open."""
    words = re.findall(r"[A-Za-z']+", text)
    pronouns = [word for word in words if word.lower() in PEOPLE_PRONOUNS]
    if not pronouns:
        return text
    people = people_of(problem)
    if any(re.search(rf"\b{name}\b", text) for name in people):
        return text
    if _RELATIVE.search(earlier) and _has_both_sexes(problem):
        return None  # "Harry's mother is 2 years younger. So she is 72": not Harry
    if len(people) > 1:
        people = next(([name] for name in _subjects(earlier, people)), [])
    if len(people) != 1:
        known = people_of(problem.split(".")[0])  # one person in the opening sentence: the pronoun goes on meaning that one
        clear = len(known) <= 1 and re.search(rf"\b{pronouns[0].lower()}\b", problem.lower())
        return text if clear or not people_of(problem) else None
    first = pronouns[0]
    title = re.search(rf"\b(?:Mr|Mrs|Ms|Dr|Aunt|Uncle|Miss|Officer|Coach)\.? {people[0]}\b", problem)
    name = (title.group() if title else people[0]) + (
        "'s" if first.lower() == "his" or (first.lower() == "her" and _owns(words, first)) else ""
    )
    return re.sub(rf"\b{first}\b", name, text, count=1)


def points_at_one(text: str, problem: str) -> bool:
    """False where a question's "he" or "she" fits nobody of the problem, or stands before the name that it means."""
    said, known = (set(re.findall(r"[a-z]+", each.lower())) for each in (text, problem))
    for mine, other in (_MALE, _FEMALE), (_FEMALE, _MALE):
        if said & mine and known & other and not known & mine:
            return False
    return re.search(r"\b(?:he|she)\b.*\bwhen [A-Z]", text) is None


def _subjects(lines: str, people: list[str]) -> list[str]:
    """Return the first person named in each line, the latest line first: the one a pronoun that follows means."""
    found = []
    for line in reversed(lines.split("\n")):
        found += [name for name in NAME.findall(line) if name in people][:1]
    return found


def _has_both_sexes(text: str) -> bool:
    words = set(re.findall(r"[a-z]+", text.lower()))
    return bool(words & _MALE) and bool(words & _FEMALE)


_MALE, _FEMALE = frozenset({"he", "his", "him"}), frozenset({"she", "her", "hers"})


def _owns(words: list[str], pronoun: str) -> bool:
    position = words.index(pronoun)
    following = words[position + 1].lower() if position + 1 < len(words) else ""
    return bool(following) and following not in {"to", "in", "on", "for", "at", "with", "each", "per"}
