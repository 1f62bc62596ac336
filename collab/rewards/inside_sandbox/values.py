"""Plain Python values as text and back: what may cross between the tests and the code under test.

Only values cross, never objects: a result whose class says it equals everything arrives as an `Opaque` that equals nothing.
Decoding builds built-in types only, whatever the text says. Written out here because pickle is unsafe and JSON knows neither
tuples nor sets (and takes as long to import as Python takes to start).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes as long as everything else here
    from typing import Any

MAX_DEPTH = 60
MAX_CHARACTERS = 8_000_000
MAX_ITEMS_OF_ITERATOR = 100_000


class Opaque:
    """A value that could not cross. Equal to nothing, not even to itself."""

    def __init__(self, shown: str) -> None:
        self.shown = shown

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return self.shown


class NotPlain(Exception):
    """The text is not an encoded value, or the value is too large or nested too deep."""


def encode(value: object) -> str:
    """Return a value as text.

    Raises:
        NotPlain: for a value that is too large.
    """
    parts: list[str] = []
    _encode(value, parts, [MAX_CHARACTERS], 0)
    return "".join(parts)


def _encode(value: Any, parts: list[str], left: list[int], depth: int) -> None:
    part, items = _shape(value, depth)
    left[0] -= len(part)
    if left[0] < 0:
        raise NotPlain("too large")
    parts.append(part)
    for item in items:
        _encode(item, parts, left, depth + 1)


def _shape(value: Any, depth: int) -> tuple[str, tuple[Any, ...]]:
    """Return a value's own text and the values that follow it."""
    if value is None or value is True or value is False:
        return {None: "N", True: "T", False: "F"}[value], ()
    if isinstance(value, int):
        return f"i{int(value):x};", ()
    if isinstance(value, float):
        return f"f{float(value)!r};", ()
    if isinstance(value, complex):
        return f"c{value.real!r},{value.imag!r};", ()
    if isinstance(value, str):
        return f"s{len(value)}:{str.__str__(value)}", ()
    if isinstance(value, bytes | bytearray):
        return f"b{bytes(value).hex()};", ()
    if depth < MAX_DEPTH:
        kind: Any
        for kind, letter in ((list, "l"), (tuple, "t"), (frozenset, "z"), (set, "e")):
            if isinstance(value, kind):
                items = tuple(kind.__iter__(value))  # the built-in's own iteration, whatever a subclass says
                return f"{letter}{len(items)};", items
        if isinstance(value, dict):
            pairs = tuple(dict.items(value))
            return f"d{len(pairs)};", tuple(item for pair in pairs for item in pair)
        if isinstance(value, range):
            return "r", (value.start, value.stop, value.step)
        if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
            return _shape(value.tolist(), depth)
        if hasattr(value, "__next__"):
            items = tuple(item for _, item in zip(range(MAX_ITEMS_OF_ITERATOR), value, strict=False))
            return f"g{len(items)};", items
    shown = f"<{type(value).__name__}>"
    return f"o{len(shown)}:{shown}", ()


def decode(text: str) -> object:
    """Return the value that a text stands for.

    Raises:
        NotPlain: the text is not one encoded value.
    """
    reader = _Reader(text)
    try:
        value = reader.value(0)
    except (ValueError, IndexError, TypeError, OverflowError):
        raise NotPlain("damaged") from None
    if reader.position != len(text):
        raise NotPlain("something follows the value")
    return value


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0

    def value(self, depth: int) -> Any:
        letter = self.text[self.position]
        self.position += 1
        if letter in "NTF":
            return {"N": None, "T": True, "F": False}[letter]
        if letter in "so":
            length = int(self._until(":"))
            start = self.position
            if not 0 <= length <= len(self.text) - start:
                raise NotPlain("a text is cut short")
            self.position += length
            piece = self.text[start : self.position]
            return piece if letter == "s" else Opaque(piece)
        if letter == "i":
            return int(self._until(";"), 16)
        if letter == "f":
            return float(self._until(";"))
        if letter == "c":
            real, imaginary = self._until(";").split(",")
            return complex(float(real), float(imaginary))
        if letter == "b":
            return bytes.fromhex(self._until(";"))
        if depth > MAX_DEPTH:
            raise NotPlain("nested too deep")
        return self._collection(letter, depth)

    def _collection(self, letter: str, depth: int) -> Any:
        if letter == "r":
            return range(*(self.value(depth + 1) for _ in range(3)))
        count = int(self._until(";"))
        if count < 0 or count > len(self.text) - self.position:
            raise NotPlain("a collection is cut short")
        if letter == "d":
            return {self.value(depth + 1): self.value(depth + 1) for _ in range(count)}
        make: Any = {"l": list, "t": tuple, "z": frozenset, "e": set, "g": iter}[letter]
        return make([self.value(depth + 1) for _ in range(count)])

    def _until(self, mark: str) -> str:
        end = self.text.index(mark, self.position)
        piece = self.text[self.position : end]
        self.position = end + 1
        return piece
