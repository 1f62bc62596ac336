"""Reads out of a SQL query what a database must hold for its result to tell anything: literals, joins, patterns.

Not a parser: a scan over tokens that recognises `column operator literal`, `function(column) operator literal`, IN, BETWEEN, LIKE
and `column = column`. What it misses costs a little telling power of a synthetic fill, nothing else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Literal = str | int | float

_TOKEN = re.compile(
    r"""(?P<text>'(?:[^']|'')*') | (?P<quoted>"(?:[^"]|"")*") | (?P<name>`[^`]*`|\[[^\]]*\]|[A-Za-z_]\w*)
    | (?P<number>\d+\.\d*|\.\d+|\d+) | (?P<sign><>|!=|>=|<=|==|\|\||[-=<>(),.*+/%;])""",
    re.VERBOSE,
)
_COMPARISONS = {"=": "=", "==": "=", "<>": "!=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "is": "="}
_MIRRORED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NOT_ALIASES = frozenset(
    {"on", "where", "join", "inner", "left", "right", "outer", "cross", "natural", "group", "order", "limit", "having", "union"}
    | {"except", "intersect", "using", "as", "set", "and", "or", "select"}
)


@dataclass(frozen=True, slots=True)
class Condition:
    """`function(column, arguments...) operator values`. `table` is in lower case, None where the query does not say.

    `operator` is one of = != < <= > >= like between in; a negated LIKE or IN becomes "!=" with its values.
    """

    column: str
    operator: str
    values: tuple[Literal, ...]
    table: str | None = None
    function: str = ""
    arguments: tuple[Literal, ...] = ()


@dataclass(frozen=True, slots=True)
class QueryFacts:
    """What a query asks of the data: conditions on columns, pairs of columns it joins, columns it groups by or calculates
    with, and the size of the groups it looks for (0 where it does not)."""

    conditions: tuple[Condition, ...]
    joins: tuple[tuple[tuple[str | None, str], tuple[str | None, str]], ...]
    grouped: frozenset[str] = frozenset()
    calculated: frozenset[str] = frozenset()
    group_size: int = 0


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # text, name, number, sign
    value: str


@dataclass(frozen=True, slots=True)
class _Operand:
    column: str
    table: str | None
    function: str = ""
    arguments: tuple[Literal, ...] = ()


def read_query(query: str, columns: frozenset[str]) -> QueryFacts:
    """Return the conditions and joins of a query; `columns` are the schema's column names in lower case.

    A double-quoted word that is no column is a text, as SQLite has it.
    """
    tokens = _tokens(query[:20_000], columns)
    scan = _Scan(tokens, columns, _aliases(tokens))
    for position, token in enumerate(tokens):
        word = token.value.lower()
        if token.kind == "sign" and word in _COMPARISONS:
            scan.comparison(position, _COMPARISONS[word])
        elif token.kind == "name" and word in ("like", "glob", "in", "between", "is"):
            scan.keyword(position, word)
    return QueryFacts(tuple(scan.conditions), tuple(scan.joins), scan.grouped(), scan.calculated(), scan.group_size())


def _tokens(query: str, columns: frozenset[str]) -> list[_Token]:
    tokens = []
    for match in _TOKEN.finditer(query):
        kind, value = str(match.lastgroup), match.group()
        if kind == "text":
            value = value[1:-1].replace("''", "'")
        elif kind == "quoted":
            value = value[1:-1].replace('""', '"')
            kind = "name" if value.lower() in columns else "text"
        elif kind == "name" and value[0] in "`[":
            value = value[1:-1]
        tokens.append(_Token(kind, value))
    return tokens


def _aliases(tokens: list[_Token]) -> dict[str, str]:
    """Return what every table alias stands for (and every table name for itself), in lower case."""
    aliases: dict[str, str] = {}
    for position, token in enumerate(tokens[:-1]):
        if token.kind == "name" and token.value.lower() in ("from", "join") and tokens[position + 1].kind == "name":
            table = tokens[position + 1].value.lower()
            aliases[table] = table
            following = [each for each in tokens[position + 2 : position + 4] if each.value.lower() != "as"]
            if following and following[0].kind == "name" and following[0].value.lower() not in _NOT_ALIASES:
                aliases[following[0].value.lower()] = table
    return aliases


class _Scan:
    def __init__(self, tokens: list[_Token], columns: frozenset[str], aliases: dict[str, str]) -> None:
        self._tokens, self._columns, self._aliases = tokens, columns, aliases
        self.conditions: list[Condition] = []
        self.joins: list[tuple[tuple[str | None, str], tuple[str | None, str]]] = []

    def comparison(self, position: int, operator: str) -> None:
        left, right = self._before(position), self._after(position + 1)
        literal = self._literal(position + 1)
        if left is not None and literal is not None:
            self._add(left, operator, (literal,))
        elif left is not None and operator == "=" and (other := self._subquery(position + 1)) is not None:
            self.joins.append(((left.table, left.column), (other.table, other.column)))
        elif left is not None and right is not None and operator == "=" and not left.function and not right.function:
            self.joins.append(((left.table, left.column), (right.table, right.column)))
        elif right is not None and position and (first := self._literal(position - 1)) is not None:
            self._add(right, _MIRRORED[operator], (first,))

    def keyword(self, position: int, word: str) -> None:
        negated = position > 0 and self._tokens[position - 1].value.lower() == "not"
        left = self._before(position - negated)
        if left is None:
            return
        if word == "between":
            low, high = self._literal(position + 1), self._literal(position + 3)
            if low is not None and high is not None:
                self._add(left, "between", (low, high))
        elif word == "in":
            if (other := self._subquery(position + 1)) is not None:
                self.joins.append(((left.table, left.column), (other.table, other.column)))
            elif values := self._listed(position + 1):
                self._add(left, "!=" if negated else "in", values)
        elif word in ("like", "glob"):
            pattern = self._literal(position + 1)
            if isinstance(pattern, str):
                self._add(left, "!=" if negated else "like", (pattern.replace("*", "%") if word == "glob" else pattern,))

    def grouped(self) -> frozenset[str]:
        """Return the columns of all GROUP BY clauses."""
        found: set[str] = set()
        for position, token in enumerate(self._tokens[:-1]):
            if token.value.lower() == "group" and self._tokens[position + 1].value.lower() == "by":
                for each in self._tokens[position + 2 : position + 14]:
                    if each.value.lower() in ("having", "order", "limit", ")", "union", "except", "intersect"):
                        break
                    if each.kind == "name" and each.value.lower() in self._columns:
                        found.add(each.value.lower())
        return frozenset(found)

    def calculated(self) -> frozenset[str]:
        """Return the columns inside AVG, SUM and CAST: numbers, whatever the schema calls them."""
        found: set[str] = set()
        for position, token in enumerate(self._tokens[:-2]):
            if token.kind == "name" and token.value.lower() in ("avg", "sum", "cast") and self._tokens[position + 1].value == "(":
                for place in (position + 2, position + 4):
                    if (operand := self._column_at(place)) is not None:
                        found.add(operand.column)
        return frozenset(found)

    def group_size(self) -> int:
        """Return the largest number that a HAVING clause compares with."""
        sizes = [0]
        for position, token in enumerate(self._tokens):
            if token.kind == "name" and token.value.lower() == "having":
                sizes += [int(each.value) for each in self._tokens[position + 1 : position + 12] if each.value.isdigit()]
        return max(sizes)

    def _add(self, operand: _Operand, operator: str, values: tuple[Literal, ...]) -> None:
        self.conditions.append(Condition(operand.column, operator, values, operand.table, operand.function, operand.arguments))

    def _literal(self, position: int) -> Literal | None:
        """Return the literal at a position; a minus sign before a number belongs to it."""
        if not 0 <= position < len(self._tokens):
            return None
        token = self._tokens[position]
        if token.kind == "text":
            return token.value
        sign = 1
        if token.value == "-" and position + 1 < len(self._tokens):
            sign, token = -1, self._tokens[position + 1]
        if token.kind != "number":
            return None
        return sign * (float(token.value) if "." in token.value else int(token.value))

    def _subquery(self, position: int) -> _Operand | None:
        """Return the column that a subquery in parentheses selects, None where there is no subquery or it selects no column."""
        if position + 4 >= len(self._tokens) or self._tokens[position].value != "(":
            return None
        if self._tokens[position + 1].value.lower() != "select":
            return None
        start = position + 2 + (self._tokens[position + 2].value.lower() == "distinct")
        operand = self._after(start)
        if operand is None or operand.table is not None:
            return operand
        for place in range(start, min(start + 8, len(self._tokens) - 1)):
            if self._tokens[place].value.lower() == "from" and self._tokens[place + 1].kind == "name":
                return _Operand(operand.column, self._tokens[place + 1].value.lower())
        return operand

    def _listed(self, position: int) -> tuple[Literal, ...]:
        values: list[Literal] = []
        if position < len(self._tokens) and self._tokens[position].value == "(":
            for place in range(position + 1, min(position + 200, len(self._tokens))):
                if self._tokens[place].value == ")" and self._tokens[place].kind == "sign":
                    break
                if (value := self._literal(place)) is not None:
                    values.append(value)
        return tuple(values)

    def _before(self, position: int) -> _Operand | None:
        """Return the column (or function of one) that ends right before a position."""
        last = position - 1
        if last < 0:
            return None
        if self._tokens[last].value != ")":
            return self._column_at(last)
        depth = 0
        for start in range(last, -1, -1):
            value = self._tokens[start].value
            depth += (value == ")") - (value == "(") if self._tokens[start].kind == "sign" else 0
            if depth == 0:
                return self._call(start, last)
        return None

    def _call(self, start: int, last: int) -> _Operand | None:
        inside = range(start + 1, last)
        named = start > 0 and self._tokens[start - 1].kind == "name"
        function = self._tokens[start - 1].value.lower() if named else "()"
        arguments = tuple(value for place in inside if (value := self._literal(place)) is not None)
        for place in inside:
            following = self._tokens[place + 1].value
            if following not in (".", "(") and (operand := self._column_at(place)) is not None:
                return _Operand(operand.column, operand.table, function, arguments)
        return None

    def _after(self, position: int) -> _Operand | None:
        """Return the column that starts at a position."""
        if position + 2 < len(self._tokens) and self._tokens[position + 1].value == ".":
            return self._column_at(position + 2)
        if position + 1 < len(self._tokens) and self._tokens[position + 1].value == "(":
            return None
        return self._column_at(position)

    def _column_at(self, position: int) -> _Operand | None:
        if position >= len(self._tokens):
            return None
        token = self._tokens[position]
        name = token.value.lower()
        if token.kind != "name" or name not in self._columns:
            return None
        table = None
        if position >= 2 and self._tokens[position - 1].value == ".":
            table = self._aliases.get(self._tokens[position - 2].value.lower())
        return _Operand(name, table)
