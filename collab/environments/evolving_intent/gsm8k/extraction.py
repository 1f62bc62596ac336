"""Extraction: from a problem's text to a question without values and the statements it rests on.

The last sentence must be the only question. A condition inside it ("If each costs $2, how much ...") is hoisted into a statement
of its own, and so is a span of time ("in 4 weeks"). What keeps a number inside its question is rejected, with the reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from collab.environments.evolving_intent.gsm8k.english import BE, MODALS, VERBS, stem
from collab.language.numbers import Kind, Number, find_numbers
from collab.language.sentences import as_sentence, capitalise, split_sentences, tidy

_ASKS = (
    r"(?:how|what|what's|which|who|when|where|(?:in|by|at|for|to|on|of|from|with|after|under|over) (?:how|what|which)|"
    r"calculate|find|determine|compute|work out)"
)
_CONNECTOR = re.compile(r"^(?:and|so|now|but|then|finally|thus|therefore|well)\b,?\s+(?=\w)", re.IGNORECASE)
_CONDITION = r"(?:if|assuming|assume|given that|given|knowing that|knowing|considering that|considering|supposing|suppose)"
_LEADING = [
    re.compile(
        rf"^{_CONDITION}\b(?:\s+that\b)?\s*(?P<condition>.+?){end}\s+(?:then\s+|please\s+)?(?P<asks>{_ASKS}\b.*)$", re.IGNORECASE
    )
    for end in (",", "")  # a comma before the question word is surer: "... 2/5 of what's left, how many ..."
]
_TRAILING = re.compile(rf"^(?P<asks>{_ASKS}\b.+?),?\s+{_CONDITION}\s+(?:that\s+)?(?P<condition>[^,].+?)[?.]$", re.IGNORECASE)
_STATEMENT_FIRST = re.compile(
    r"^(?!.*[.] [A-Z])(?P<condition>[A-Z].+?),\s+(?:and\s+|so\s+)?(?P<asks>how (?:much|many|long|far|old)\b.*)$"
)
_COMMAND = re.compile(r"^(?:calculate|find|determine|compute|work out)\s+(?:for\s+)?(?P<object>.+?)[.?]$", re.IGNORECASE)
_SPAN = re.compile(
    r"\s(?P<when>in|for|over|after|during|within|every|per|each)\s(?P<span>(?:[\d,.]+|[a-z-]+)\s"
    r"(?:full\s|whole\s|school\s|work(?:ing)?\s)?"
    r"(?:seconds?|minutes?|hours?|days?|weeks?|months?|years?))(?P<rest>[\s,?].*)$",
    re.IGNORECASE,
)
_LEADIN = r"(?:(?:in|on|at|after|before|during|of|by|all|to|for|with|if)\b(?: [a-z'-]+){1,7}, )"
_AGES = re.compile(r"\b(?:old|older|age|ages|aged|birthday|will be|now|ago|years from)\b", re.IGNORECASE)
_CLAUSE_START = re.compile(
    r"^(?:after|before|when|while|with|since|because|as|once|by|in|on|at|during|for|from|until)\b", re.IGNORECASE
)
_SUBJECT = r"(?:he|she|it|they|we|i|you|there|(?![A-Z][a-z]+day\b)[A-Z][a-z]+(?:'s)?)"
_JOINT = re.compile(rf"(?:,\s+(?:and|but|while)|;)\s+(?=(?P<second>(?:if\s+)?{_SUBJECT}\s+[a-z]+.*)$)")
_DEFINITE = re.compile(
    r"\b(?:all|the|these|those|both|of|other|his|her|their|its)\s(?:of\s)?(?:the\s|these\s|those\s|her\s|his\s|their\s)?$",
    re.IGNORECASE,
)

_BROKEN = re.compile(
    r"\b(?:do|does|did) \w+ (?:has|had|is|was|were)\b|^what (?:the|his|her|their|(?!is\b|was\b)\w+'s)\b", re.IGNORECASE
)
"""Slips of the source that a rendering would carry on: "how many apples does Ella has"."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """A question without values and its statements, in source order."""

    function: str
    statements: tuple[str, ...]


class NotExtractable(ValueError):
    """The problem has no form these rules know; the text is the reason, one of a small set."""


def extract(problem: str) -> Extraction:
    """Take a problem apart.

    Raises:
        NotExtractable: with the reason.
    """
    sentences = split_sentences(tidy(problem))
    notes: list[str] = []
    while len(sentences) > 1 and (note := re.fullmatch(r"\((.+)\)\.?", sentences[-1])):
        notes.insert(0, as_sentence(re.sub(r"^(?:remember|note)(?: that)?,?\s+", "", note.group(1), flags=re.IGNORECASE)))
        sentences.pop()
    questions = [index for index, sentence in enumerate(sentences) if sentence.rstrip("\"')").endswith("?")]
    if len(questions) > 1:
        raise NotExtractable("several questions")
    if questions and questions[0] != len(sentences) - 1:
        raise NotExtractable("the question is not the last sentence")
    last = _CONNECTOR.sub("", sentences[-1])
    if not questions and not re.search(rf"\b{_ASKS}\b", last, re.IGNORECASE):
        raise NotExtractable("no question")
    told = {count for sentence in sentences[:-1] for count in _counts(sentence)}
    function, hoisted = _hoist(last, told)
    function = _as_question(_CONNECTOR.sub("", function)).rstrip(".?! ") + "?"
    if not re.match(rf"(?:{_LEADIN})?{_ASKS}|can you work out", function, re.IGNORECASE):
        raise NotExtractable("the question does not start with a question word")
    function = _without_told_counts(function, told)
    if _BROKEN.search(function):
        raise NotExtractable("the question is not English")
    if any(not _is_definite(function, number) for number in find_numbers(function)):
        raise NotExtractable("a number inside the question")
    told_apart = [re.sub(r"^If (?=[A-Z][^,]*, while )", "", sentence) for sentence in sentences[:-1]]  # no main clause follows
    statements = [part for sentence in told_apart + hoisted for part in split_joint(_bare(sentence))] + notes
    if not statements:
        raise NotExtractable("no statement besides the question")
    if any(re.match(r"(?:Is|Are|Was|Were|Does|Do|Did) ", statement) for statement in statements):
        raise NotExtractable("a statement is worded as a question")
    return Extraction(function, tuple(statements))


def _bare(sentence: str) -> str:
    """Return a sentence that stands in brackets without them."""
    inside = re.fullmatch(r"\(([^()]+)\)\.?", sentence)
    return as_sentence(inside.group(1)) if inside else sentence


def _counts(text: str) -> set[tuple[Fraction, str]]:
    """Return what a text counts: each value with the two words after it, of which one is what there are so many of."""
    following = re.compile(r"\W+(?!(?:an?|per|each|every)\b)([a-z]+)(?:\s(?!(?:an?|per|each|every)\b)([a-z]+))?", re.IGNORECASE)
    return {
        (number.value, stem(word))
        for number in find_numbers(text)
        if (near := following.match(text, number.end))
        for word in near.groups()
        if word
    }


def _hoist(question: str, told: set[tuple[Fraction, str]]) -> tuple[str, list[str]]:
    """Move the conditions of a question into statements of their own; `told` is what statements count already."""
    hoisted: list[str] = []
    for _ in range(2):  # at most a leading and a trailing condition
        match = _LEADING[0].match(question) or _LEADING[1].match(question)
        if not find_numbers(question) and not match:
            break
        if match:
            if re.match(r"\S+ would\b", match.group("condition")):
                break  # "If he would have run five hours" is no statement of its own
            hoisted.append(as_sentence(match.group("condition")))
        elif match := _TRAILING.match(question):
            condition = _with_noun(match.group("condition"), match.group("asks"))
            if condition is None:
                break
            hoisted.append(as_sentence(condition))
        elif (match := _STATEMENT_FIRST.match(question)) and not _CLAUSE_START.match(question):
            hoisted.append(as_sentence(match.group("condition")))
        else:
            break
        question = capitalise(re.sub(r"^[,\s]+(?:then\s+|please\s+)?", "", match.group("asks")).strip())
        question = question if question.endswith(("?", ".")) else question + "?"
    if (match := _SPAN.search(question)) and (span := _counts(match.group("span"))) and not _AGES.search(question):
        when = "after" if match.group("when").lower() == "after" else "in"
        if span <= told:
            question = f"{question[: match.start()]} {when} that time{match.group('rest')}"
        else:
            hoisted.append(f"The period I am asking about is {match.group('span')}.")
            question = f"{question[: match.start()]} {when} that period{match.group('rest')}"
    return question, hoisted


def _without_told_counts(function: str, told: set[tuple[Fraction, str]]) -> str:
    """Return "the 3 friends" as "the friends" where a statement gives that number already."""

    def drop(match: re.Match[str]) -> str:
        return match.group("the") if (Fraction(match.group("count")), stem(match.group("noun"))) in told else match.group()

    return re.sub(
        r"\b(?P<the>(?:the|all|his|her|their) )(?P<count>\d+) (?=(?:[a-z-]+ ){0,2}?(?P<noun>[a-z]+s)\b)", drop, function
    )


def _with_noun(condition: str, asks: str) -> str | None:
    """Say what "they" and "each" of a trailing condition are, as it will stand before the question; None for an open "it"."""
    opening = re.match(r"(?:they|these|those|each(?: one)?|one|it)\b(?! of| [a-z]+s\b(?! at))", condition, re.IGNORECASE)
    if not opening:
        return condition
    following = condition[opening.end() :].split()
    if opening.group().lower() == "each" and following and following[0].lower() not in BE | MODALS and following[0] not in VERBS:
        return condition  # "each female ate ..."
    counted = re.match(r"how many (?:more |other )?([a-z]+(?: [a-z]+)?s)\b", asks, re.IGNORECASE)
    word = opening.group().lower()
    if not counted or word == "it":
        return None if word in ("it", "one") else condition
    nouns = counted.group(1)
    put = {"one": f"one of the {nouns}", "each": f"each of the {nouns}", "each one": f"each of the {nouns}"}.get(
        word, f"the {nouns}"
    )
    return put + condition[opening.end() :]


def _as_question(text: str) -> str:
    """Return "Calculate the total cost." as "What is the total cost?"; questions stay as they are."""
    command = _COMMAND.match(text)
    if not command:
        return capitalise(text)
    wanted = command.group("object")
    if re.match(r"how\b|what\b|which\b", wanted):
        return f"Can you work out {wanted}?"
    return f"What {'are' if re.match(r'the (?:ages|numbers)', wanted) else 'is'} {wanted}?"


def _is_definite(text: str, number: Number) -> bool:
    """True for "all three boxes" and "the two of them": a count of things known already, not a new value."""
    return number.kind is Kind.WORD and number.value <= 12 and _DEFINITE.search(text[: number.start]) is not None


def split_joint(sentence: str) -> list[str]:
    """Cut "A has 3 apples, and B has 5." into two statements; only where both halves hold numbers and the cut is safe.

    Safe means: the sentence does not open with a subordinate clause that would lose its main clause, and the second half is a
    clause with a subject of its own.
    """
    if re.match(r"^(?:if|when|while|after|since|because|as|once|for every|although|unless|suppose)\b", sentence, re.IGNORECASE):
        return [sentence]
    for joint in _JOINT.finditer(sentence):
        first, second = sentence[: joint.start()], joint.group("second")
        if (
            find_numbers(first)
            and find_numbers(second)
            and '"' not in sentence
            and not re.search(r"\bif\b|\bbetween\b|\beither\b", first)
        ):
            second = re.sub(r"^if\s+", "", second)
            first = re.sub(r", (?=(?:each|every) [^,]+$)", " and ", first)  # of "A, each B, and C" the last cut took the "and"
            return [as_sentence(first), *split_joint(as_sentence(second))]
    return [sentence]
