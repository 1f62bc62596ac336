"""A solution's line read as a clause: who or what, does what, how many of what.

"So Natalia sold 48/2 = <<48/2=24>>24 clips in May." becomes subject "Natalia", verb "sold", unit "clips", rest "in May". No
parser is needed for that: the number is where the calculator annotation says it is, the verb stands before it, the unit after
it. A line that does not fit is left alone; a clause that is read wrongly would be an odd question, so the patterns are narrow.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace

from collab.environments.evolving_intent.gsm8k.counts import SPAN, drop_counts, holds_values, without_count
from collab.environments.evolving_intent.gsm8k.english import (
    ADVERBS,
    BE,
    DETERMINERS,
    KEPT_ADVERBS,
    MODALS,
    PARTICLES,
    PRONOUNS,
    UNIT_ENDS,
    VERBS,
    is_plural,
)
from collab.environments.evolving_intent.gsm8k.number_gap import GAP, mark_number
from collab.language.numbers import find_numbers

_CUTS = re.compile(
    r"(?:,\s(?:therefore|thus|hence|then)|,?\s(?:so(?! far)|(?:which|this|that) means(?: that)?|meaning(?: that)?)|;|:|"
    r"^(?:this|that|which) means(?: that)?|"
    r"^(?:so(?! far)|therefore|thus|hence|then|next|now|finally|first|also|again|meanwhile|and|but|overall|"
    r"afterwards?|secondly|second|lastly|as a result|in conclusion|in other words|currently|all total|all in all))\b,?\s*",
    re.IGNORECASE,
)
_LEFTOVER = re.compile(r"^(?:(?:this|that) means(?: that)?|so(?! far)|then|that|also|now),?\s+", re.IGNORECASE)
_REASON = re.compile(
    r"^(?:since|because|as|given|with \d|if|considering|knowing|assuming|seeing|when .*\d|while)\b", re.IGNORECASE
)
_SETTING = re.compile(
    r"^(?:in|on|at|after|before|during|over|for|by|from|every|each|per|out of|of|throughout|within|between|until|when|once|with|"
    r"together|combined|altogether|all together|so far)\b",
    re.IGNORECASE,
)
_DAY = re.compile(
    r"^(?P<day>the (?:first|second|third|fourth|fifth|last|next|final) (?P<unit>day|week|month|year|hour|night)) "
    r"(?=(?:he|she|they|it|[A-Z][a-z]+) )",
    re.IGNORECASE,
)
_WHEN = re.compile(
    r"^(?P<when>(?:today|yesterday|tomorrow|tonight"
    r"|(?:last|next|this) (?:night|morning|afternoon|evening|day|week|month|season|year)"
    r"|(?P<weekday>(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day))),? "
    r"(?=(?:he|she|they|it|there|the|his|her|their|(?-i:[A-Z][a-z]+)) )",
    re.IGNORECASE,
)
_NAMES = re.compile(r"^(?:[A-Z][a-z]+, )+(?:and )?[A-Z][a-z]+ (?=[a-z])|^(?:[A-Z][a-z]+, )+and [a-z ]+$")
_NEW_SUBJECT = re.compile(r"\s(?=(?:he|she|they|it|there|the (?:total|number)|[A-Z][a-z]+)\s)")
_QUANTITY = re.compile(
    r"^(?:the|his|her|their|its) (?:\w+ )?(?:number|amount|cost|price|time|distance|weight|money|value|sum)\b", re.IGNORECASE
)
_TOTAL = re.compile(r"\b(?:a|in|the) (?:grand |combined )?total(?: of)?$|\ba combined$", re.IGNORECASE)
_QUANTIFIERS = frozenset("about only another an a approximately around roughly exactly almost nearly up to".split())
_FIND = re.compile(
    r"\b(?:find|calculate|determine|figure out|compute) (?:out )?(?=(?:the|his|her|their|its|how|[A-Z][a-z]+'s)\b)", re.IGNORECASE
)
_FOUND = re.compile(
    r"(?P<object>[^:,=$]{6,90}?)(?:,? (?:by \w+ing|from (?:add|subtract|multiply|divid)ing)\b[^:]*)?\s?(?::\s|, which is \d)"
)


@dataclass(frozen=True, slots=True)
class Clause:
    """One statement about a number.

    `auxiliary` is the verb that moves before the subject in a question (is, will, has, ""), `verb` the words after it without the
    number, `unit` the noun phrase counted ("" for bare money), `rest` what follows it, `setting` a phrase that stood before the
    subject. `verb_form` is the finite form of the main verb where no auxiliary stands.
    """

    subject: str
    auxiliary: str
    verb: str
    verb_form: str
    unit: str
    rest: str
    setting: str = ""
    money: bool = False
    adverb: str = ""
    total: bool = False


def wanted_phrase(line: str) -> str | None:
    """Return the phrase of a line that says itself what it finds: "First find the total cost of the pens: ..."."""
    phrase = None
    for found in _FIND.finditer(line[:240]):
        if match := _FOUND.match(line, found.end()):
            phrase = drop_counts(match.group("object").strip())
    return phrase


def read_clause(line: str) -> Clause | None:
    """Read a solution's line whose last annotation gives its number; None where it does not fit."""
    marked = mark_number(line)
    if marked is None:
        return None
    text, money = marked
    before, after = (drop_counts(part) for part in text.split(GAP, 1))
    summed = _summed(before.strip(), after, money)
    if summed is not None:
        return summed
    clause_text, setting = _last_clause(before.strip())
    if clause_text is None:
        return None
    before = without_count(clause_text)
    if holds_values(before):
        return None
    unit_and_rest = _unit_and_rest(after, money)
    if unit_and_rest is None:
        return None
    unit, rest = unit_and_rest
    if not before:
        return _subject_question(unit, rest, setting, money)
    clause = _subject_and_verb(before)
    return clause and replace(clause, unit=unit, rest=rest, setting=setting, money=money)


_SUM_AT_END = re.compile(r",? (?:for|giving|making|which is|that is|so|or) a total of$|,? which totals$|,? totall?ing$")


def _summed(before: str, after: str, money: bool) -> Clause | None:
    """ "He sells 37, then 52 baguettes for a total of 89": the verb stands at the clause's start, the sum at its end."""
    match = _SUM_AT_END.search(before)
    if not match:
        return None
    start = _CUTS.split(before[: match.start()])[-1].split()
    while start and start[0].lower() in ADVERBS:
        start = start[1:]
    unit_and_rest = _unit_and_rest(after, money)
    for position in range(1, min(5, len(start))):
        readings = {form for _, form in VERBS.get(start[position].lower(), ())}
        if (
            readings & {"s", "past", "base"}
            and unit_and_rest
            and (unit_and_rest[0] or money)
            and not holds_values(" ".join(start[:position]))
        ):
            clause = _with_verb(start[:position], start[position], [])
            return clause and replace(clause, unit=unit_and_rest[0], rest=unit_and_rest[1], money=money, total=True)
    return None


def _last_clause(before: str) -> tuple[str | None, str]:
    """Cut the words before the number down to their own clause; return it with the phrase of time or place that opened it."""
    cuts = list(_CUTS.finditer(before))
    if cuts:
        before = before[cuts[-1].end() :]
    before = _LEFTOVER.sub("", before.strip())
    setting = ""
    if _REASON.match(before) and "," in before and not find_numbers(before.rsplit(",", 1)[1]):
        before = before.rsplit(",", 1)[1].strip()
    elif day := _DAY.match(before):
        setting, before = (
            f"{'on' if day.group('unit') in ('day', 'night') else 'in'} {day.group('day').lower()}",
            before[day.end() :],
        )
    elif when := _WHEN.match(before):
        setting = f"on {when.group('when')}" if when.group("weekday") else when.group("when").lower()
        before = before[when.end() :]
    elif _SETTING.match(before):
        parts = before.split(",", 1) if "," in before else _NEW_SUBJECT.split(before, maxsplit=1)
        if len(parts) == 2 and (len(parts[0].split()) > 1 or parts[0].lower() in {"together", "altogether", "combined"}):
            setting, before = parts[0].strip(), parts[1].strip()
    if SPAN.match(setting):
        setting = "in that time"
    if holds_values(setting) or len(setting.split()) > 9:
        return None, ""
    if "," in before and not _NAMES.match(before) and not _QUANTITY.match(before):
        return None, ""
    return before, setting


def _unit_and_rest(after: str, money: bool) -> tuple[str, str] | None:
    """Split the words after the number into what is counted and what follows."""
    after = re.split(
        r"\.(?:\s|$)|[;(]|,? because\b|,? since\b|, (?:so|which|leaving|and|as|while|but|or)\b|\bso\b", after.strip()
    )[0]
    after = re.sub(r"^/\s?(\w+)", r"per \1", after.strip())
    after = re.sub(r"(\w)\s?/\s?([a-z]+)\b", r"\1 per \2", after).strip(" ,.!")
    if holds_values(after) or re.search(r"[%:\"]", after) or len(after.split()) > 14:
        return None
    words = after.split()
    if words and words[0] == "dollars":
        words, money = words[1:], True
    size = 1 if len(words) > 1 and words[0].lower() in _ADJECTIVES and words[1].lower() not in UNIT_ENDS else 0
    while size < len(words) and not (
        words[size].lower().strip(",") in UNIT_ENDS or (size and words[size].endswith("ing") and words[size - 1] != "of")
    ):
        size += 1
    if 0 < size < len(words) - 1 and words[size] in ("and", "or") and not _countable(words[:size]):  # "white and blue marbles"
        size += 1
        while size < len(words) and words[size].lower() not in UNIT_ENDS:
            size += 1
    unit, rest = words[:size], words[size:]
    if unit and unit[0] == "of" and len(unit) == 1 and rest:  # "of the apples": the unit goes on to the next boundary
        size = 1
        while size < len(rest) and rest[size].lower() not in UNIT_ENDS:
            size += 1
        unit, rest = unit + rest[:size], rest[size:]
    elif unit and unit[-1] == "of":
        return None
    if re.search(r"\b(?:percent|more|less|fewer|worth|mph|kmh)$", " ".join(unit)) and not money:
        return None
    if "times" in unit and (unit != ["times"] or " ".join(rest[:1]) in {"as", "the", "that", "what"}):
        return None
    if money and " ".join(unit).startswith("of ") and unit[-1] == "money":
        unit = []
    if _joins_clauses(rest) or (unit and not money and not _countable(unit)) or (unit and unit[-1] in _NO_UNIT):
        return None
    return " ".join(unit), " ".join(rest)


_NO_UNIT = frozenset({"put", "increase", "decrease"})  # "60 pieces of ham put on the pizza", "4 sacks of rice increase"
_ADJECTIVES = frozenset("remaining total old long high left only extra last next".split())


def _joins_clauses(words: list[str]) -> bool:
    """True where a conjunction is followed by what may be a second statement."""
    for word, following in itertools.pairwise(words):
        if word.lower() in {"and", "but", "or"} and (
            following.lower() in VERBS or following.lower() in BE | MODALS | PRONOUNS | {"then", "has"}
        ):
            return True
    return bool(words) and (
        words[0].lower() in {"and", "or"} or words[-1].lower() in {"and", "but", "or", "of", "the", "a", "to", "for"}
    )


def _countable(unit: list[str]) -> bool:
    head = unit[unit.index("of") - 1] if "of" in unit[1:] else unit[-1]
    return is_plural(head) and all(re.fullmatch(r"[A-Za-z][A-Za-z'-]*", word) for word in unit)


def _subject_question(unit: str, rest: str, setting: str, money: bool) -> Clause | None:
    """The number opens its clause: "30 children are boys", "15 students went home"."""
    words = f"{unit} {rest}".split()
    if money:
        return None
    for position in range(1, min(len(words) - 1, 5)):
        forms = {form for _, form in VERBS.get(words[position].lower(), ())}
        if words[position].lower() in BE | MODALS or "past" in forms:
            return (
                Clause("", "", "", "", " ".join(words[:position]), " ".join(words[position:]), setting)
                if _countable(words[:position])
                else None
            )
    return None


def _subject_and_verb(before: str) -> Clause | None:
    words = before.split()
    total = False
    if match := _TOTAL.search(before):
        total = True
        words = before[: match.start()].split()
    adverb = ""
    while words and words[-1].lower() in ADVERBS - {"together"}:
        adverb = words[-1].lower() if words[-1].lower() in KEPT_ADVERBS else adverb
        words = words[:-1]
    if words and words[-1].lower() in {"additional", "extra"}:
        return None  # "will pay an additional $6": what is asked is not all that is paid
    while words and (words[-1].lower() in _QUANTIFIERS or [word.lower() for word in words[-2:]] == ["up", "to"]):
        words = words[:-2] if words[-1].lower() == "to" else words[:-1]
    for position in range(len(words) - 1, max(-1, len(words) - 6), -1):
        tail = words[position + 1 :]
        word = words[position].lower()
        if word in BE or word == "be" or word in VERBS:
            if tail and not _is_verb_tail(tail):
                continue
            clause = _with_verb(words[:position], words[position], tail)
            return clause and replace(clause, total=total, adverb=clause.adverb or adverb)
    return None


def _is_verb_tail(tail: list[str]) -> bool:
    """Words between a verb and its number: a particle ("used up"), an indirect object ("gave his sister"), "left with"."""
    first = tail[0].lower()
    if tail[-1].lower() in {"and", "or", "of", "the", "a", "an", "than", "equal", "to", "be", "is", "that"}:
        return False
    return (
        first in PARTICLES
        or (first in DETERMINERS and len(tail) <= 3)
        or (len(tail) == 1 and tail[0][0].isupper())
        or tail == ["left", "with"]
    )


def _with_verb(left: list[str], verb: str, tail: list[str]) -> Clause | None:
    """Find the auxiliary and the subject to the left of a verb."""
    adverb = ""
    while left and left[-1].lower() in ADVERBS:
        adverb = left[-1].lower() if left[-1].lower() in KEPT_ADVERBS else adverb
        left = left[:-1]
    forms = {form for _, form in VERBS.get(verb.lower(), ())}
    after = " ".join([verb, *tail])
    blank = Clause("", "", "", "", "", "", adverb=adverb)
    previous = left[-1].lower() if left else ""
    if verb.lower() in BE:
        return _subject(left, replace(blank, auxiliary=verb.lower(), verb=" ".join(tail)))
    if verb.lower() == "be":
        return _subject(left[:-1], replace(blank, auxiliary=previous, verb="be")) if previous in MODALS and not tail else None
    if previous in MODALS and "base" in forms:
        return _subject(left[:-1], replace(blank, auxiliary=previous, verb=after))
    if previous in BE and forms & {"ing", "participle"}:
        return _subject(left[:-1], replace(blank, auxiliary=previous, verb=after))
    if previous in {"has", "have", "had"} and "participle" in forms:
        return _subject(left[:-1], replace(blank, auxiliary=previous, verb=after))
    if previous == "to" and "base" in forms and len(left) >= 2:
        matrix = left[-2].lower()
        if matrix in {
            "needs",
            "need",
            "needed",
            "has",
            "have",
            "had",
            "wants",
            "want",
            "wanted",
            "plans",
            "decided",
            "decides",
            "managed",
        }:
            return _subject(left[:-2], replace(blank, verb=f"to {after}", verb_form=matrix))
        if matrix in {"able", "going"} and len(left) >= 3 and left[-3].lower() in BE:
            return _subject(left[:-3], replace(blank, auxiliary=left[-3].lower(), verb=f"{matrix} to {after}"))
        if matrix in {"able", "have", "need"} and len(left) >= 3 and left[-3].lower() in MODALS | {"be"}:
            return None
        return None
    if previous in {"to", "not", "by", "and", "of", "for", "from"} or not forms & {"base", "s", "past"}:
        return None
    return _subject(left, replace(blank, verb=" ".join(tail), verb_form=verb.lower()))


def _subject(words: list[str], clause: Clause) -> Clause | None:
    """Accept a short noun phrase or pronoun as the subject; one that names a quantity may hold a relative clause."""
    while words and words[-1].lower() in ADVERBS - {"together", "altogether"}:
        words = words[:-1]
    if words and words[0].lower() in {"that", "so", "then"}:
        words = words[1:]
    lowered = [word.lower() for word in words]
    if not words or len(words) > 15 or any(word.endswith(("'d", "'ll", "'ve")) or word in _NEVER_IN_SUBJECT for word in lowered):
        return None
    quantity = _QUANTITY.match(" ".join(lowered)) is not None
    if not (quantity and clause.auxiliary) and (set(lowered) & (MODALS | BE | {"that", "who", "which"}) or len(words) > 12):
        return None
    if lowered[0] in _NEVER_FIRST | _PREPOSITIONS or lowered[-1] in {
        "the",
        "a",
        "an",
        "his",
        "her",
        "their",
        "its",
        "every",
        "of",
    }:
        return None
    if len(words) > 1 and lowered[0] in PRONOUNS and lowered[1] not in {"each", "both", "all"}:
        return None
    if "there" in lowered and lowered != ["there"]:
        return None
    return replace(clause, subject=" ".join(words))


_NEVER_IN_SUBJECT = frozenset(
    "if because since so but than there's this answer not costs down means he's she's it's they're".split()
)
_NEVER_FIRST = frozenset("adding subtracting multiplying dividing doing taking using we you i total let what to".split())
_PREPOSITIONS = frozenset(
    "in on at after before during over for by from per of throughout within between until with together without".split()
)
