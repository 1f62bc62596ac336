"""When two questions are one to a hearer, and when a question leaves open which of several things it means."""

from __future__ import annotations

import re
from fractions import Fraction

from collab.environments.evolving_intent.gsm8k.english import CALENDAR, EXTENT, LIGHT, MEASURES, PRONOUNS, TIMES, VERBS, stem
from collab.language.numbers import Kind, find_numbers
from collab.language.sentences import same_words, split_sentences

NAME = re.compile(r"\b[A-Z][a-z]+\b")
_GROUP = re.compile(r"\b(?:they|all|each|both|altogether|together|total|combined|two|three|four)\b", re.IGNORECASE)


def alike(first: str, second: str) -> bool:
    """True where two questions ask for the same thing in nearly the same words, so that a hearer would take one for the other.

    Names tell questions apart, unless one has none and does not speak of a group. Extent alone does not ("sell" and "sell these
    days combined"), and of things that are there now nothing but the thing counted does.
    """
    if same_words(first, second):
        return True
    names = [set(names_in(text)) for text in (first, second)]
    if names[0] != names[1]:
        bare = first if not names[0] else second if not names[1] else None
        if bare is None or _GROUP.search(bare):
            return False
    units = [_unit_asked(text) for text in (first, second)]
    if units[0] != units[1] and not (units[0] - _MEASURES == units[1] - _MEASURES != frozenset()):  # "liters of water", "water"
        return False
    content = [_content(text) for text in (first, second)]
    difference = content[0] ^ content[1]
    nested = content[0] <= content[1] or content[1] <= content[0]
    now = _NOW in content[0] & content[1] and all(_STATIVE.search(text) for text in (first, second))
    return nested and (not difference or now or (difference <= _EXTENT | _TIMES and bool(difference & _EXTENT)))


_NOW = "now"
_EXTENT, _TIMES, _MEASURES = (frozenset(map(stem, words)) for words in (EXTENT, TIMES, MEASURES))
_STATIVE = re.compile(
    r"\b(?:are|is|were|was|have)\b(?: there)?(?: now| still)?(?: left| remaining)?(?:\?| in\b| at\b| on\b)", re.IGNORECASE
)
_UNIT = re.compile(
    r"how (?:many|much) (?P<unit>.*?)\b(?:is|are|was|were|do|does|did|has|have|had|will|would|can|could|must|should)\b",
    re.IGNORECASE,
)


def names_in(text: str) -> list[str]:
    """Return the capitalised words of a question that are no word of the calendar and not its first."""
    return [name for name in NAME.findall(text.split(" ", 1)[-1]) if name not in CALENDAR]


def _unit_asked(text: str) -> frozenset[str]:
    """Return the stems of what a "How many ..." question counts; empty for other questions."""
    match = _UNIT.search(text)
    words = re.findall(r"[a-z]+", match["unit"].lower()) if match else []
    return frozenset(stem(word) for word in words if word not in LIGHT)


def _content(text: str) -> set[str]:
    """Return the stems of the words that say what is asked; ways to come by something are one, and so are "left" and "now"."""
    rest = text.split(" ", 1)[-1]
    for name in names_in(text):
        rest = re.sub(rf"\b{name}(?:'s)?", "", rest)
    stems = {stem(word) for word in re.findall(r"[a-z]+", rest.lower()) if word not in LIGHT | PRONOUNS | {"there"}}
    there = re.search(r"\b(?:are|is|were|was)\b", text) and _STATIVE.search(text)
    if (there and not re.search(r"\b(?:total|altogether|all)\b", text)) or re.search(
        r"\b(?:left|remain\w*|still|now|currently)\b", text
    ):
        stems.add(_NOW)
    return {"gain" if word in ("get", "make", "earn", "receive") else word for word in stems}


def is_vague(text: str, lines: list[str]) -> bool:
    """True for "How many books did he sell?" where the solution works out several such sales: which one stays open."""
    unit = _unit_asked(text)
    if (several := _SEVERAL.search(text)) and _is_counted_apart(several.group("noun"), lines):
        return True
    if re.search(r"\b(?:left|remaining)\?$", text):
        kept = [line for line in lines if re.search(r"\b(?:left|remain\w*|still)\b", line) and ">>" in line]
        mine = [line for line in kept if not names_in(line) or set(names_in(text)) & set(NAME.findall(line))]
        if len(mine) > 1:
            return True
    verbs = {lemma for word in re.findall(r"[a-z]+", text) for lemma, form in VERBS.get(word, ()) if form == "base"} - {"do"}
    anchors = _content(text) - unit - verbs - {_NOW, "gain"}
    if not text.startswith("How ") or not unit or anchors or len(names_in(text)) > 1 or not verbs or "total" in text:
        return False
    forms = "|".join(form for form, readings in VERBS.items() if any(lemma in verbs for lemma, _ in readings))
    who = "|".join([*names_in(text), "he", "she", "they", "it"])
    between = r"(?:[a-z]+ly\s|also\s|then\s|now\s|only\s|still\s|will\s)*"
    tells = re.compile(rf"(?<!and )\b(?:{who})\s{between}(?:{forms})\b", re.IGNORECASE)
    return sum(tells.search(line) is not None and _works_out(line, unit) for line in lines) > 1


def is_told(text: str, answer: Fraction, problem: str) -> bool:
    """True for "How much does James earn an hour?" where the problem tells an hourly rate of James's that is not the answer.

    So a question that lost what sets it apart (his *second* job), or a solution that reads the problem in another way. Questions
    for totals, and statements that compare or give rates of each, do not count.
    """
    if _WHOLE.search(text):
        return False
    unit, wanted, names = _unit_asked(text), _content(text) | ({"money"} & _unit_asked(text)), set(names_in(text))
    money = text.startswith("How much") and unit <= {"money"}
    if not (unit or money or text.startswith("How old")):
        return False
    for statement in split_sentences(problem):
        if statement.endswith("?") or _COMPARES.search(statement):
            continue
        if names and not names & set(NAME.findall(statement)):
            continue
        words = {stem(word) for word in re.findall(r"[a-z]+", statement.lower())} | _content(f"x {statement}") | {"money"}
        found = find_numbers(statement)
        if money:
            values = [number.value for number in found if number.kind is Kind.MONEY]
        else:
            values = [number.value for number in found if _counts_what(statement[number.end :], unit or frozenset({"year"}))]
        if len(values) == 1 and values[0] != answer and wanted <= words:
            return True
    return False


def _counts_what(after: str, unit: frozenset[str]) -> bool:
    following = re.match(r"\s+([a-z]+)(?: (?!of\b)([a-z]+))?", after)  # "34 trays of rolls" are not 34 rolls
    return following is not None and bool({stem(word) for word in following.groups() if word} & unit)


_WHOLE = re.compile(r"\b(?:total|altogether|all|combined|together|both|left|remain\w*|so far|then)\b", re.IGNORECASE)
_COMPARES = re.compile(
    r"\b(?:more|less|fewer|times|twice|thrice|double|triple|half|third|quarter|as (?:many|much)|than|percent|each|per|every|"
    r"older|younger|additional|another|extra)\b|%|\d/\d",
    re.IGNORECASE,
)
_SEVERAL = re.compile(r"\b(?:do|did|are|were|will|can) the (?:[a-z-]+ )?(?P<noun>[a-z]+s)\b")


def _is_counted_apart(noun: str, lines: list[str]) -> bool:
    """True where two lines open with different counts of a thing ("4 bags have ...", "Six bags have ..."): which are meant?"""
    opening = re.compile(rf"^(?:[A-Za-z]+,? )?(?:the )?(?P<count>\d+|[a-z]+) (?:[a-z-]+ )?{noun}\b", re.IGNORECASE)
    counts = {number.value for line in lines if (found := opening.match(line)) for number in find_numbers(found.group("count"))}
    return len(counts) > 1


def _works_out(line: str, unit: frozenset[str]) -> bool:
    """True where a line's result is counted in a unit."""
    before, mark, after = line.rpartition(">>")
    if not mark or re.search(r"\b(?:than|altogether|in all|total)\b", line):
        return False
    if unit == {"money"}:
        return before.rpartition("<<")[0].endswith("$")
    return unit <= {stem(word) for word in re.findall(r"[a-z]+", after.lower())}
