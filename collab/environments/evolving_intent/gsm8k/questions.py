"""Predecessor questions: what a user may have asked before the question of the source problem.

A solution's intermediate steps are such questions already answered. Where the record carries GSM8K's socratic sub-questions they
are used as they are; elsewhere the question is made from the step's own sentence (`clauses`). Either way the question holds
no number, differs from the source's, and its answer is a step of the calculation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from collab.environments.evolving_intent.gsm8k.calculator import Calculation
from collab.environments.evolving_intent.gsm8k.clauses import Clause, read_clause, wanted_phrase
from collab.environments.evolving_intent.gsm8k.english import (
    BE,
    CALENDAR,
    DETERMINERS,
    FAMILIAR,
    MEASURES,
    PLURAL_QUANTITIES,
    PRONOUNS,
    QUANTITIES,
    VERBS,
    is_plural,
    stem,
)
from collab.environments.evolving_intent.gsm8k.people import points_at_one, with_names
from collab.environments.evolving_intent.gsm8k.resemblance import alike, is_told, is_vague
from collab.environments.evolving_intent.gsm8k.sound_questions import is_sound
from collab.language.sentences import capitalise, tidy

_SIZES = ("old", "tall", "long", "wide", "deep", "high", "far", "thick")
_PRICED = frozenset({"cost", "pay", "charge", "be"})
_EMPTY_VERBS = frozenset({"mean", "equal", "total", "amount", "go", "come", "become", "rise", "increase", "drop", "fall"})
"""Verbs that link a number to its subject, or are lost without the particle that a clause's reading drops."""
_NEEDS_OBJECT = frozenset({"pay", "charge", "give", "put", "add", "use", "receive", "get", "make", "take"})
"""Verbs of money that ask "for what?" when nothing follows."""
_MONEY_VERBS = frozenset({"spend", "earn", "pay", "cost", "charge", "owe"})


@dataclass(frozen=True, slots=True)
class StepQuestion:
    """A question whose answer is the value of step `step` of the calculation."""

    text: str
    step: int


def step_questions(problem: str, solution: str, calculation: Calculation) -> list[StepQuestion]:
    """Return the questions that the solution's steps answer, in the order of the steps, without the final one."""
    last_of_line = {step.line: index for index, step in enumerate(calculation.steps)}
    lines = [tidy(line) for line in solution.split("\n")]
    questions: list[StepQuestion] = []
    for line_number, step in sorted(last_of_line.items()):
        if step == len(calculation.steps) - 1 or len(calculation.steps[step].tokens) == 1:
            continue  # the final question, or a number that is stated without being worked out
        line = lines[line_number]
        asked, _, statement = line.rpartition(" ** ")
        if any(later.startswith(f"{asked} ** ") for later in lines[line_number + 1 :]) or not _compares(asked, statement):
            asked = ""  # the question of a later step, or of a whole of which the step gives the difference
        # the step's own sentence first: the socratic questions were written apart from it and miss it now and then
        found = (question_from_line(statement, problem, "\n".join(lines[:line_number])), asked.strip())
        text = next((text for text in found if text and is_sound(text) and points_at_one(text, problem)), None)
        if (
            text
            and not is_vague(text, lines)
            and not is_told(text, calculation.steps[step].value, problem)
            and not any(alike(text, other.text) for other in questions)
        ):
            questions.append(StepQuestion(capitalise(text), step))
    return questions


def _compares(asked: str, statement: str) -> bool:
    """False where a step says how many more, and its written question asks how many."""
    more = r"\b(?:more|less|fewer|longer|older|younger|taller|shorter|faster|further)\b"
    return not re.search(more, statement.rpartition(">>")[2]) or re.search(more, asked) is not None


def question_from_line(line: str, problem: str, earlier: str = "") -> str | None:
    """Turn one line of a solution into the question it answers; None where it cannot be done well.

    `earlier` are the solution's lines before it: a pronoun stands for the person they spoke of last.
    """
    text: str | None = None
    if phrase := wanted_phrase(line):
        text = _from_phrase(phrase)
    elif clause := read_clause(line):
        text = _from_clause(clause, problem, line)
    text = text and with_names(text, problem, f"{earlier}\n{line}")
    return text if text and _is_familiar(text, problem) else None


def _from_phrase(phrase: str) -> str | None:
    if phrase.lower().startswith("how "):
        return f"Can you work out {phrase}?"
    if (head := re.match(r"the ([a-z]+) of ", phrase)) and head.group(1) in MEASURES and is_plural(head.group(1)):
        return None  # "What is the pounds of carbon ...?"
    return f"What is {phrase}?"


def _asked_unit(problem: str) -> str | None:
    """Return the noun that the problem's own question counts, which a solution's line may leave out ("so he makes 144")."""
    match = re.search(r"\b[Hh]ow many ([a-z]+)\b[^.?]*\?$", problem)
    return match.group(1) if match and is_plural(match.group(1)) else None


def _from_clause(clause: Clause, problem: str, line: str) -> str | None:
    priced = _lemma(clause.verb_form)[0] if clause.verb_form else _first_lemma(clause.verb)[0]
    if not clause.unit and not clause.money and priced in _MONEY_VERBS and "$" in problem:
        clause = replace(clause, money=True)
    if (
        not clause.unit
        and not clause.money
        and clause.verb_form
        and (unit := _asked_unit(problem))
        and re.search(rf"\b{unit}\b", line)
    ):
        clause = replace(clause, unit=unit)
    wh, rest = _question_words(clause)
    if wh is None:
        return None
    setting = clause.setting[:1].lower() + clause.setting[1:]
    if not clause.subject:
        return _join(wh, rest, setting)
    subject = _lower_first(clause.subject, problem)
    pronoun = subject.split()[0]
    if pronoun in ("they", "it") and not re.search(rf"\b{pronoun}\b", problem, re.IGNORECASE):
        return None
    ending = [
        rest,
        "in total" if clause.total and "total" not in f"{rest} {subject}" else "",
        _lower_first(clause.setting, problem),
    ]
    if clause.auxiliary and clause.verb in ("", "be"):
        return _copula(clause, subject, wh, ending, problem)
    if clause.auxiliary:
        return _join(wh, clause.auxiliary, subject, clause.adverb, clause.verb, *ending)
    lemma, helper = _lemma(clause.verb_form)
    if helper == "does" and (" and " in subject or (is_plural(subject.split()[-1]) and subject.startswith("the "))):
        helper = "do"
    if lemma == "make" and clause.unit.startswith("of "):  # "make up 18 of the marbles"
        return None
    if re.match(r"(?:the|a) (?:\w+ )?(?:number|amount|sum)\b", subject):  # "the total number of pens he has increased to 34"
        return None
    if lemma in _NEEDS_OBJECT and clause.money and not (rest or clause.verb or clause.total):
        return None
    if helper is None or (helper == "do" and not _is_plural_subject(subject)) or lemma in _EMPTY_VERBS:
        return None
    if subject == "it" and (lemma not in {"take", "cost"} or not re.search(r"\bto\b", f"{clause.verb} {rest}")):
        return None
    verb = [
        word for word in clause.verb.split() if word not in [*rest.split()[:1], "only"]
    ]  # "took 6 out of the jar" must not say "out" twice
    if verb == ["for"] and clause.unit.split()[:1] and clause.unit.split()[0] in MEASURES:
        verb = []
    return _join(wh, helper, subject, clause.adverb, lemma, *verb, *ending)


def _is_plural_subject(subject: str) -> bool:
    words = re.split(r" (?:of|in|on|at|from|with|who|that)\b", subject)[0].split()
    return bool(words) and (
        subject in ("they", "we")
        or " and " in f" {subject} "
        or is_plural(words[-1])
        or words[-1].lower() in {"both", "all", "each"}
    )


def _question_words(clause: Clause) -> tuple[str | None, str]:
    """Return "How many clips" and what is left of the words after the unit."""
    rest, unit = clause.rest, clause.unit
    if clause.money:
        if unit in (
            "more",
            "less",
            "extra",
            "total",
            "each",
            "profit",
            "tip",
            "interest",
            "change",
            "tips",
            "additional",
            "discount",
        ):
            noun = {"total": "money", "each": "money", "extra": "extra money", "additional": "additional money"}.get(unit, unit)
            return ("How much more money" if unit == "more" else f"How much {noun}"), (
                "each " + rest if unit == "each" else rest
            ).strip()
        if unit:
            return None, rest
        lemma, _ = _lemma(clause.verb_form) if clause.verb_form else _first_lemma(clause.verb)
        return ("How much" if lemma in _PRICED or (clause.auxiliary and clause.verb in ("", "be")) else "How much money"), rest
    if not unit:
        return ("What" if clause.auxiliary and clause.verb in ("", "be") else None), rest
    words = rest.split()
    if words and words[0] in _SIZES and clause.auxiliary in BE:
        return f"How {words[0]}", " ".join(words[1:])
    return (f"How many {unit}", rest) if unit != "dozen" and not unit.startswith("dozen ") else (None, rest)


def _first_lemma(verb: str) -> tuple[str, str | None]:
    words = [word for word in verb.split() if word not in ("to", "able", "going")]
    return _lemma(words[0]) if words else ("", None)


def _copula(clause: Clause, subject: str, wh: str, ending: list[str], problem: str) -> str | None:
    """ "The total cost is $5" -> "What is the total cost?"; "he is 5 years old" -> "How old is he?"."""
    if subject == "there":
        if wh in ("What", "How much"):
            return None
        passive = (
            not clause.verb and len(ending[0].split()) == 1 and any(form == "participle" for _, form in VERBS.get(ending[0], ()))
        )
        return _join(wh, clause.auxiliary, "" if passive else "there", clause.verb, *ending)
    if wh.startswith("How ") and wh.split()[1] in _SIZES:
        return _join(wh, clause.auxiliary, subject, clause.adverb, clause.verb, *ending)
    measured = _measured(subject)
    if measured is None:
        sized = clause.unit and not clause.rest and not clause.verb and re.match(r"(?:the|his|her|their|[A-Z]\w+'s) ", subject)
        repeated = clause.unit.split()[-1:] and clause.unit.split()[-1] in subject.split()
        return _join(wh, clause.auxiliary, subject, clause.adverb, *ending) if sized and not repeated else None
    if clause.auxiliary in ("are", "were") and not any(word in PLURAL_QUANTITIES for word in measured.split()):
        return None
    unit = clause.unit.split()[-1] if clause.unit else ""
    measure = (
        f"in {clause.unit}" if unit in MEASURES and unit not in subject.split() and not clause.rest and not clause.verb else ""
    )
    if clause.money and "%" in problem and _SHARES & set(measured.split()) and not _AMOUNTS & set(measured.split()):
        measure = "in dollars"  # else "What is the discount?" asks as well for the percentage that was told
    return _join("What", clause.auxiliary, measured, clause.adverb, clause.verb, *ending, measure)


_DAYS = r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
_SHARES = frozenset("discount tax taxes tip interest commission increase decrease raise markup".split())
_AMOUNTS = frozenset("amount price cost value sum".split())


def _measured(subject: str) -> str | None:
    """Return a subject that names a quantity ("the total cost of the pens"), None for one that does not ("the bus")."""
    words = subject.split()
    if (
        subject in PRONOUNS
        or len(words) < 2
        or not words[0].lower().endswith(("the", "his", "her", "their", "its", "'s", "twice", "half"))
    ):
        return None
    head = re.split(r" (?:of|in|on|at|for|from|with|per|to|by|after|before|that|who|[a-z]+ing)\b", subject)[0].split()
    counted = head[head.index("total") + 1] if "total" in head[:-1] else ""
    if counted and is_plural(counted) and counted not in MEASURES | PLURAL_QUANTITIES:
        return subject.replace("total ", "total number of ", 1)
    return subject if any(word in QUANTITIES for word in head) else None


def _lemma(written: str) -> tuple[str, str | None]:
    """Return the base form of a finite verb and the form of "do" that asks with it."""
    for form, helper in (("past", "did"), ("s", "does"), ("base", "do")):
        for lemma, reading in VERBS.get(written.lower(), ()):
            if reading == form:
                return lemma, helper
    return written, None


def _join(*parts: str) -> str:
    text = " ".join(part.strip() for part in parts if part and part.strip())
    text = re.sub(r"\b(in total)\b(.*)\b(?:in total|altogether|together)\b", r"\1\2", text)
    text = re.sub(r"\b(?:altogether|together|combined|in all) (?=in total\b)", "", text)
    text = re.sub(rf"\bfrom ({_DAYS}) and ({_DAYS})\b", r"on \1 and \2", text)
    text = re.sub(
        r"(?<=[a-z]) (On|In|At|After|Before|During|For|From|With|By|When|While|If|Once|So|Their|His|Her|The|Its)\b",
        lambda match: match.group().lower(),
        text,
    )
    return re.sub(r"\s+", " ", text).strip(" ,.") + "?"


def _lower_first(text: str, problem: str) -> str:
    """Lower the first letter unless the word is a name, which the problem writes with a capital only."""
    if not text:
        return text
    word = re.match(r"[A-Za-z'-]+", text)
    if not word:
        return text
    bare = word.group().removesuffix("'s")
    if bare in CALENDAR:
        return text
    lowered = bare.lower()
    known = (
        lowered in DETERMINERS | PRONOUNS | FAMILIAR
        or lowered in ("each", "twice", "half")
        or re.search(rf"\b{re.escape(lowered)}\b", problem)
    )
    if known or not re.search(rf"\b{re.escape(bare)}\b", problem):
        return text[0].lower() + text[1:]
    return text


_ORDINAL = r"\b(first|second|third|fourth|fifth) (?!(?:second|minute|hour|day|week|month|year|half)s?\b)[a-z]+"


def _is_familiar(text: str, problem: str) -> bool:
    """True where every content word of the question is one of the problem's or of everyday arithmetic."""
    if any(ordinal not in problem.lower() for ordinal in re.findall(_ORDINAL, text)):
        return False
    known = {stem(word) for word in re.findall(r"[A-Za-z]+(?:'s)?", problem)}
    content = [word for word in re.findall(r"[A-Za-z]+(?:'s)?", text) if len(word) > 3]
    return all(stem(word) in known or word.lower() in FAMILIAR or word.lower() in VERBS for word in content)
