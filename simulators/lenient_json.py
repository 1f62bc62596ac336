"""Reads JSON objects out of text that a language model wrote: prose around them, code fences, small slips, LaTeX.

Strict JSON is not enough, for two reasons. Models slip: single quotes, trailing commas, Python's `True`, real line breaks in
strings. And they write LaTeX without doubling the backslash: `"\\frac"` is *valid* JSON for a form feed and "rac", so a strict
parser damages it in silence. Here a backslash before letters that spell a LaTeX command stays a backslash.

Only what has one reading is accepted; anything else is not an object. Where an object begins and cannot be read, what stands in
it may be quoted (a judge quotes the policy it judges, which may have written `{"rating": 5}` for that very purpose) and what
stands before it may be a draft, so nothing is accepted. The work is bounded by a small multiple of the text's length whatever the
text is, nesting is bounded, and nothing is evaluated.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

MAX_CHARACTERS = 100_000
_MAX_DEPTH = 16
_WORK_PER_CHARACTER = 4

_MARK = re.compile(r"[{}]|</?think>")
_FIELD = re.compile(r"[\"'”]\s*:")
_FRAME_BEFORE = re.compile(r"\s*(?:```\w*\s*)?")
_FRAME_AFTER = re.compile(r"\s*(?:```\s*)?\Z")
_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*"), "“": re.compile(r"[^”\\]*")}
_CLOSING = {'"': '"', "'": "'", "“": "”"}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|([A-Za-z]+)|(.))", re.DOTALL)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_LITERALS: dict[str, bool | None] = {
    "true": True, "True": True, "false": False, "False": False, "null": None, "None": None,
}  # fmt: skip

# LaTeX commands that begin like one of JSON's escapes. "\\b", "\\f" and "\\r" right before a letter are never anything else.
_LATEX_T = frozenset(
    {"tag", "tan", "tanh", "tau", "tbinom", "text", "textbf", "textcolor", "textit", "textrm", "textsf", "textstyle", "texttt"}
    | {"tfrac", "therefore", "theta", "tilde", "times", "tiny", "to", "top", "toprule"}
    | {"triangle", "triangleleft", "triangleright"}
)
_LATEX_N = frozenset(
    {"nabla", "natural", "nearrow", "neq", "newcommand", "newline", "nexists", "ngeq", "nleq", "nmid", "nolimits"}
    | {"nonumber", "not", "notin", "nparallel", "nsubseteq", "nwarrow"}
)
_LATEX_N_IN_FORMULAS = frozenset({"ne", "neg", "ni", "nu"})  # elsewhere "\\ni think" is a new line
_FORMULA_SIGNS = ("$", "\\(", "\\[")


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written; whether it is in range, or a whole number, is for the schema to say."""

    literal: str


Value = str | Number | bool | dict[str, "Value"] | list["Value"] | None


def find_objects(text: str) -> list[dict[str, Value]]:
    """Return every object in `text` that can be read, in the order in which they end (so an inner one before its outer one).

    Empty where something begins as an object does, a key and a colon, and cannot be read (another `{` is prose), or ends as one
    does that nothing begins: `{"reason": "wrote "} {"rating": 5} twice", "rating": 1}`. Thoughts do not count: what stands before
    a `</think>`, and behind a `<think>` that is not closed. Inside an object the tags are text.

    Of a text longer than `MAX_CHARACTERS` the end is read.
    """
    reader = _Reader(text[-MAX_CHARACTERS:])
    if text.rfind("<think>", 0, len(text) - len(reader.text)) > text.rfind("</think>"):
        return []  # the end of a thought that was cut off
    position = open_braces = 0
    broken = loose_field = False
    while reader.work_left > 0 and (mark := _MARK.search(reader.text, position)):
        loose_field = loose_field or _FIELD.search(reader.text, position, mark.start()) is not None
        position = mark.end()
        if mark[0] == "</think>":
            if broken and not reader.is_rest(position):
                continue  # the tag may be quoted, too
            reader.found.clear()
            broken = loose_field = False
            open_braces = 0
        elif broken:
            continue
        elif mark[0] == "<think>":
            position = reader.text.find("</think>", position)
            if position < 0:
                broken = _FIELD.search(reader.text, mark.end()) is not None  # the tag may be quoted, and an object end behind it
                break
        elif mark[0] == "}":
            broken = loose_field and (not open_braces or bool(reader.found))  # braces before an object may be prose
            open_braces = max(0, open_braces - 1)
        elif reader.try_object(mark.start()):
            position, loose_field = reader.position, False
        else:
            broken = reader.has_begun
            open_braces += 1
    return [] if broken else reader.found


def read_plain_object(text: str) -> dict[str, Value] | None:
    """Return the object that `text` is as a whole, where it is strict JSON and holds no backslash; else None.

    Most replies are, and this is twenty times as fast as `find_objects`, which would come to the same object.
    """
    if "\\" in text or not text.startswith("{") or len(text) > MAX_CHARACTERS:
        return None
    try:
        value = json.loads(text, parse_float=Number, parse_int=Number, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _no_constant(name: str) -> None:
    raise ValueError(name)


class _Unreadable(Exception):
    """What stands at this place is not an object with one reading."""


class _Reader:
    """A recursive-descent reader over one text. `work_left` bounds it in characters looked at, over all attempts together."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.found: list[dict[str, Value]] = []
        self.has_begun = False
        self.work_left = _WORK_PER_CHARACTER * len(text) + 1000

    def try_object(self, position: int) -> bool:
        """Read the object at `position` if there is one; say in `has_begun` whether it began as one, readable or not."""
        self.position, self.has_begun = position, False
        try:
            self.read_object(depth=0)
        except _Unreadable:
            return False
        return True

    def is_rest(self, position: int) -> bool:
        """True where the text from `position` on is one object, in a code fence or not, and nothing else."""
        frame = _FRAME_BEFORE.match(self.text, position)
        assert frame is not None  # the pattern matches the empty string
        if self.text[frame.end() : frame.end() + 1] != "{" or not self.try_object(frame.end()):
            return False
        return _FRAME_AFTER.match(self.text, self.position) is not None

    def read_object(self, depth: int) -> dict[str, Value]:
        """Read the object that starts at `position`, note it in `found`, and stand right behind it."""
        result: dict[str, Value] = {}
        self._enter(depth)
        while not self._closes("}"):
            quoted = self._peek() in _PLAIN
            key = self._key()
            if self._peek() != ":":
                raise _Unreadable
            self._step()
            self.has_begun |= quoted or self._peek() in _PLAIN  # a bare word and a colon alone are prose: {note: ...}
            result[key] = self._value(depth)
            self._separator("}")
        self.found.append(result)
        return result

    def _array(self, depth: int) -> list[Value]:
        result: list[Value] = []
        self._enter(depth)
        while not self._closes("]"):
            result.append(self._value(depth))
            self._separator("]")
        return result

    def _value(self, depth: int) -> Value:
        start = self._peek()
        if start in _PLAIN:
            return self._string(start)
        if start == "{":
            return self.read_object(depth + 1)
        if start == "[":
            return self._array(depth + 1)
        if match := _NUMBER.match(self.text, self.position):
            self._step(match.end() - match.start())
            return Number(match[0])
        if (match := _WORD.match(self.text, self.position)) and match[0] in _LITERALS:
            self._step(len(match[0]))
            return _LITERALS[match[0]]
        raise _Unreadable

    def _key(self) -> str:
        start = self._peek()
        if start in _PLAIN:
            return self._string(start)
        if match := _WORD.match(self.text, self.position):
            self._step(len(match[0]))
            return match[0]
        raise _Unreadable

    def _string(self, opening: str) -> str:
        plain, closing = _PLAIN[opening], _CLOSING[opening]
        start = self.position + 1
        self._step()
        while True:
            match = plain.match(self.text, self.position)
            assert match is not None  # the pattern matches the empty string
            self._step(match.end() - self.position)
            if self.position >= len(self.text):
                raise _Unreadable
            if self.text[self.position] == closing:
                raw = self.text[start : self.position]
                self._step()
                return decode_string(raw)
            self._step(2)  # a backslash and what it escapes

    def _enter(self, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise _Unreadable
        self._step()

    def _closes(self, bracket: str) -> bool:
        if self._peek() != bracket:
            return False
        self._step()
        return True

    def _separator(self, bracket: str) -> None:
        following = self._peek()
        if following == ",":
            self._step()
        elif following != bracket:
            raise _Unreadable

    def _peek(self) -> str:
        """Skip white space and return the character that follows ("" at the end)."""
        match = _SPACE.match(self.text, self.position)
        assert match is not None
        self._step(match.end() - self.position)
        return self.text[self.position : self.position + 1]

    def _step(self, count: int = 1) -> None:
        self.position += count
        self.work_left -= count
        if self.work_left <= 0:
            raise _Unreadable


def decode_string(raw: str) -> str:
    """Return the text that a string literal's inside stands for, with LaTeX commands left whole."""
    if "\\" not in raw:
        return raw
    in_formula = any(sign in raw for sign in _FORMULA_SIGNS)
    text = _ESCAPE.sub(lambda match: _unescape(match, in_formula), raw)
    if any("\ud800" <= character <= "\udfff" for character in text):  # pairs written as two escapes; halves are replaced
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _unescape(match: re.Match[str], in_formula: bool) -> str:
    code, word, sign = match.groups()
    if code:
        return chr(int(code, 16))
    if sign:
        return sign if sign in "\"'\\/\n" else "\\" + sign
    control = _CONTROL.get(word[0])
    if control is None or _is_latex(word, in_formula):
        return "\\" + word
    return control + word[1:]


def _is_latex(word: str, in_formula: bool) -> bool:
    if len(word) == 1:
        return False
    if word[0] == "t":
        return word in _LATEX_T
    if word[0] == "n":
        return word in _LATEX_N or (in_formula and word in _LATEX_N_IN_FORMULAS)
    return True
