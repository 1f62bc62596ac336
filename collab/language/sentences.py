"""English text: tidying, and cutting it into sentences without a model."""

from __future__ import annotations

import re

ABBREVIATIONS = frozenset(
    "mr mrs ms dr st jr sr prof mt ave no vs oz lb lbs ft sq yd yds hr hrs min approx etc u.s a.m p.m i.e e.g inc co".split()
)
"""Words whose full stop does not end a sentence (lower case, without it)."""

_STOP = re.compile(r"([.!?]+[\"')\]]*)\s+(?=[A-Z0-9\"'$(\[])")
_WORD_BEFORE = re.compile(r"([\w.]+)$")
_REPLACEMENTS = {
    "\u2018": "'",
    "\u2019": "'",
    "\u201c": '"',
    "\u201d": '"',
    "\u00a0": " ",
    "\u2212": "-",
    "\u2013": "-",
    "\u2014": " - ",
}


def tidy(text: str) -> str:
    """Return the text with plain quotes and dashes and single blanks."""
    for old, new in _REPLACEMENTS.items():
        text = text.replace(old, new)
    text = re.sub(r"\.,(?=[A-Z])", ". ", text)  # a slip of the data: "buy the gift.,If her mother"
    text = re.sub(r"\b(was|were|is|are|the|an?|of|to|and|in|for) \1\b", r"\1", text)  # "it was was 24 inches wide"
    text = re.sub(r"\s+([,;?])", r"\1", re.sub(r"\s+", " ", text))
    return re.sub(r"([a-z]{2}[.?!])([A-Z][a-z])", r"\1 \2", text).strip()


def split_sentences(text: str) -> list[str]:
    """Cut a tidied text into sentences; an abbreviation's full stop and one inside a number do not cut."""
    sentences, start = [], 0
    for stop in _STOP.finditer(text):
        before = _WORD_BEFORE.search(text[start : stop.start()])
        if stop.group(1).startswith(".") and before and _is_abbreviation(before.group(1)):
            continue
        sentences.append(text[start : stop.end()].strip())
        start = stop.end()
    if rest := text[start:].strip():
        sentences.append(rest)
    return sentences


def _is_abbreviation(word: str) -> bool:
    return word.lower().rstrip(".") in ABBREVIATIONS or (re.fullmatch(r"(?:[A-Z]\.)*[A-Z]", word) is not None and word != "I")


def capitalise(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def as_sentence(clause: str) -> str:
    """Return a clause as a sentence: capital letter, full stop unless it has one."""
    clause = clause.strip().rstrip(",;:")
    return capitalise(clause if clause.endswith((".", "!", "?", '."', '!"')) else clause + ".")


def same_words(first: str, second: str) -> bool:
    """True where two texts have the same words in the same order, whatever their case and punctuation."""
    return words_only(first) == words_only(second)


def words_only(text: str) -> str:
    """Return the lower-case letters and digits of a text, words parted by single blanks."""
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))
