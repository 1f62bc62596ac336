"""SQLite databases made up from a schema, so that text-to-SQL can be scored where the real databases are not at hand.

A fill must *tell*: the gold query should return something, and a wrong query something else. So rows are drawn around what the
gold query asks for. Some rows meet all its conditions at once and are joined to each other; others meet some of them, or miss by
a little. Seeds are tried in order, and those whose fill makes the gold query return rows with content are kept.
"""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Iterator

from collab.rewards.database_schema import Column, ColumnKey, Schema, Table
from collab.rewards.query_conditions import Condition, Literal, QueryFacts, read_query

ROWS = 60
SHARE_MATCHING = 0.25
"""The share of rows, the same in every table, that meet all conditions and are joined to each other."""
SHARE_NULL = 0.04
SHARE_UNREFERENCED = 0.12
"""The share of keys that nothing refers to: what NOT IN and EXCEPT look for."""
MAX_ROWS = 400
GROUPS = 6

_AGGREGATES = frozenset({"avg", "sum", "min", "max"})
_NUMBERS = ("int", "num", "real", "float", "double", "decimal", "bit")
_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})")
_DATE_COLUMN = re.compile(r"date|birth|dob|_day$|^day$")
_LAP_TIME = re.compile(r"^q[123]$|laptime|fastestlap.*time|duration")


def fill(schema: Schema, query: str, seed: int, rows: int = ROWS) -> sqlite3.Connection:
    """Return a new in-memory database of the schema, with rows around what `query` asks for.

    Odd seeds vary the recipe (no NULLs; the keys that are used most are not those of the matching rows), for queries that the
    usual recipe gives nothing.
    """
    names = frozenset(column.name.lower() for table in schema.tables for column in table.columns)
    facts = read_query(query, names)
    return _Filler(schema, facts, random.Random(f"{seed}/{query}"), rows, varied=seed % 2 == 1).database()


def telling(rows: list[tuple[object, ...]]) -> bool:
    """True for a result that holds at least one value other than NULL and 0."""
    return any(value not in (None, 0, 0.0) for row in rows for value in row)


class _Filler:
    def __init__(self, schema: Schema, facts: QueryFacts, rng: random.Random, rows: int, varied: bool) -> None:
        rows = min(MAX_ROWS, max(rows, 10 * facts.group_size)) if facts.grouped else rows
        self._schema, self._facts, self._rng, self._rows = schema, facts, rng, rows
        self._share_null = 0.0 if varied else SHARE_NULL
        self._often = rows // 2 if varied else 0
        self._matching = max(2, round(rows * SHARE_MATCHING))
        self._columns = {(table.name.lower(), column.name.lower()): column for table in schema.tables for column in table.columns}
        self._referring = {referring for referring, _ in schema.foreign_keys}
        self._conditions: dict[ColumnKey, list[Condition]] = {}
        for condition in facts.conditions:
            for key in self._meant(condition.table, condition.column):
                self._conditions.setdefault(key, []).append(condition)
        self._pools = self._linked_pools(facts)

    def database(self) -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        for table in self._schema.tables:
            definitions = ", ".join(f"{_quoted(column.name)} {_affinity(column.kind)}" for column in table.columns)
            connection.execute(f"CREATE TABLE {_quoted(table.name)} ({definitions})")
            places = ", ".join("?" * len(table.columns))
            values = [self._column_values(table, column) for column in table.columns]
            connection.executemany(f"INSERT INTO {_quoted(table.name)} VALUES ({places})", zip(*values, strict=True))
        connection.commit()
        return connection

    def _meant(self, table: str | None, column: str) -> list[ColumnKey]:
        if table is not None and (table, column) in self._columns:
            return [(table, column)]
        return [key for key in self._columns if key[1] == column]

    # ------------------------------------------------------------ keys and joins

    def _linked_pools(self, facts: QueryFacts) -> dict[ColumnKey, list[Literal]]:
        """Return one pool of values for each set of columns that foreign keys or the query's joins tie together."""
        parent = {key: key for key in self._columns}

        def root(key: ColumnKey) -> ColumnKey:
            while parent[key] != key:
                key = parent[key]
            return key

        links = list(self._schema.foreign_keys)
        for (one_table, one), (other_table, other) in facts.joins:
            links += [(a, b) for a in self._meant(one_table, one)[:1] for b in self._meant(other_table, other)[:1]]
        for a, b in links:
            if a in parent and b in parent:
                parent[root(a)] = root(b)
        groups: dict[ColumnKey, list[ColumnKey]] = {}
        for key in self._columns:
            groups.setdefault(root(key), []).append(key)
        keys = {
            (table.name.lower(), name.lower())
            for table in self._schema.tables
            for name in table.primary_key
            if len(table.primary_key) == 1
        }
        pools: dict[ColumnKey, list[Literal]] = {}
        for members in groups.values():
            if len(members) > 1 or members[0] in keys:
                pool = self._pool(members)
                pools |= dict.fromkeys(members, pool)
        return pools

    def _pool(self, members: list[ColumnKey]) -> list[Literal]:
        """Return distinct values for linked columns, those the query names first."""
        wanted = [value for key in members for value in self._wanted(key)]
        numeric = all(_is_number(self._columns[key]) for key in members)
        name = members[0][1]
        values: list[Literal] = list(dict.fromkeys(wanted))[: self._matching]
        number = 0
        while len(values) < self._rows:
            number += self._rng.randint(1, 3)
            value: Literal = number if numeric else f"{name[:4]}{number:04d}"
            if value not in values:
                values.append(value)
        return values

    def _wanted(self, key: ColumnKey) -> Iterator[Literal]:
        for condition in self._conditions.get(key, ()):
            if not condition.function:
                for _ in range(2):
                    value = self._satisfying(condition, self._columns[key])
                    if value is not None:
                        yield value

    # ------------------------------------------------------------ values

    def _column_values(self, table: Table, column: Column) -> list[Literal | None]:
        key = (table.name.lower(), column.name.lower())
        pool = self._pools.get(key)
        if pool is not None:
            if table.primary_key == (key[1],) and key not in self._referring:
                return list(pool)
            return [pool[row] if row < self._matching else self._skewed(pool) for row in range(self._rows)]
        conditions = self._conditions.get(key, [])
        plain = self._plain_values(column)
        asked = 0.85 if any(condition.function in _AGGREGATES for condition in conditions) else 0.4
        values: list[Literal | None] = []
        for row in range(self._rows):
            if conditions and (row < self._matching or self._rng.random() < asked):
                value: Literal | None = self._for_conditions(conditions, column, row)
            elif self._rng.random() < self._share_null:
                value = None
            else:
                value = plain[row]
            values.append(value)
        return values

    def _skewed(self, pool: list[Literal]) -> Literal:
        """Draw a key; a few are drawn often, so that groups differ in size and some are large, and the last ones never."""
        if self._rng.random() < 0.4:
            return pool[self._often + int(3 * self._rng.random() ** 2)]
        return pool[self._rng.randrange(max(1, round(len(pool) * (1 - SHARE_UNREFERENCED))))]

    def _plain_values(self, column: Column) -> list[Literal]:
        """Return a value for every row: few different ones in a column that is grouped by, else as many as there are rows."""
        if column.name.lower() in self._facts.grouped:
            few = self._distinct_values(column)[:GROUPS]
            return [few[int(len(few) * self._rng.random() ** 2)] for _ in range(self._rows)]
        return self._distinct_values(column)

    def _distinct_values(self, column: Column) -> list[Literal]:
        """Return values with few ties among numbers and dates (ties make ORDER BY ambiguous) and some among texts."""
        rng, rows = self._rng, self._rows
        name, kind = column.name.lower(), column.kind
        if _is_number(column) or name in self._facts.calculated:
            if "real" in kind or "float" in kind or "double" in kind:
                return [round(value / 7, 2) for value in rng.sample(range(7, 70 * rows), rows)]
            if "year" in name:
                return [rng.randint(1990, 2020) for _ in range(rows)]
            return list(rng.sample(range(1, 20 * rows), rows))
        if "date" in kind or "time" in kind or _DATE_COLUMN.search(name):
            clock = [
                f" {rng.randrange(24):02d}:{rng.randrange(60):02d}:{rng.randrange(60):02d}" if kind == "datetime" else ""
                for _ in range(rows)
            ]
            return [f"{rng.randint(1990, 2020)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}{part}" for part in clock]
        if _LAP_TIME.search(name):
            return [f"{rng.randint(1, 2)}:{rng.randrange(60):02d}.{rng.randrange(1000):03d}" for _ in range(rows)]
        distinct = rows if "name" in name or "title" in name else 12
        return [f"{name[:8]} {rng.randrange(distinct) + 1}" for _ in range(rows)]

    def _for_conditions(self, conditions: list[Condition], column: Column, row: int) -> Literal | None:
        """Return a value that meets as many of a column's conditions as can be; the first ones rotate from row to row."""
        turn = row % len(conditions)
        candidates = [self._satisfying(condition, column) for condition in conditions[turn:] + conditions[:turn]]
        usable = [value for value in candidates if value is not None]
        if not usable:
            return None
        return max(usable, key=lambda value: sum(_holds(value, condition) for condition in conditions))

    def _satisfying(self, condition: Condition, column: Column) -> Literal | None:
        """Return a value that meets a condition, as far as its function is understood."""
        value = self._right_side(condition)
        match condition.function:
            case "" | "lower" | "upper" | "trim" | "()" | "cast" | "avg" | "max" | "min" | "date" | "datetime" | "abs" | "round":
                return value
            case "strftime":
                return self._date_with(str(condition.arguments[0]) if condition.arguments else "%Y", value)
            case "substr" | "substring":
                return self._text_with(condition.arguments, str(value), column)
            case "length":
                return "x" * min(200, max(0, int(value))) if isinstance(value, int | float) else None
            case _:
                return self._plain_values(column)[0]

    def _right_side(self, condition: Condition) -> Literal:
        rng, values = self._rng, condition.values
        match condition.operator:
            case "in" | "=":
                return rng.choice(values)
            case "like":
                return re.sub("%", lambda _: rng.choice(("", "ab", " x")), str(values[0])).replace("_", "a")
            case "between":
                return _between(values[0], values[1], rng)
            case ">" | ">=":
                return _shifted(values[0], rng.randint(0 if condition.operator == ">=" else 1, 9))
            case "<" | "<=":
                return _shifted(values[0], -rng.randint(0 if condition.operator == "<=" else 1, 9))
            case _:
                return _shifted(values[0], rng.choice((-2, -1, 1, 2)))

    def _date_with(self, form: str, value: Literal) -> str:
        """Return a date whose `strftime(form)` is `value`, for the forms that queries use."""
        rng = self._rng
        parts = {"%Y": f"{rng.randint(1990, 2020)}", "%m": f"{rng.randint(1, 12):02d}", "%d": f"{rng.randint(1, 28):02d}"}
        text = str(value)
        for code, piece in zip(re.findall(r"%[YmdHMSj]", form), re.findall(r"\d+", text), strict=False):
            if code in parts:
                parts[code] = piece.zfill(2)
        return f"{parts['%Y']}-{parts['%m']}-{parts['%d']}"

    def _text_with(self, arguments: tuple[Literal, ...], value: str, column: Column) -> str:
        """Return a text (a date in a date column) that has `value` where SUBSTR(column, start, length) looks."""
        start = arguments[0] if arguments and isinstance(arguments[0], int) else 1
        base = str(self._plain_values(column)[0]).ljust(10, "x")
        if start < 0:
            return base + value
        return base[: max(0, start - 1)] + value + base[max(0, start - 1) + len(value) :]


def _holds(value: Literal, condition: Condition) -> bool:
    """True where a plain condition holds for a value (compared as SQLite would: numbers with numbers, texts with texts)."""
    if condition.function not in ("", "()"):
        return False
    values = condition.values
    if any(isinstance(value, str) != isinstance(each, str) for each in values):
        return False
    match condition.operator:
        case "=" | "in":
            return value in values
        case "!=":
            return value not in values
        case "between":
            return values[0] <= value <= values[1]  # type: ignore[operator]
        case "<":
            return value < values[0]  # type: ignore[operator]
        case "<=":
            return value <= values[0]  # type: ignore[operator]
        case ">":
            return value > values[0]  # type: ignore[operator]
        case ">=":
            return value >= values[0]  # type: ignore[operator]
        case _:
            pattern = re.escape(str(values[0])).replace("%", ".*").replace("_", ".")
            return len(str(value)) < 500 and re.fullmatch(pattern, str(value), re.IGNORECASE) is not None


def _shifted(value: Literal, step: int) -> Literal:
    """Return a value a little above or below: numbers by steps, dates by years, texts by a letter."""
    if isinstance(value, int):
        return value + step
    if isinstance(value, float):
        return round(value + step * max(0.01, abs(value) / 20), 4)
    if date := _DATE.match(value):
        return f"{int(date[1]) + step:04d}" + value[4:]
    if value.isdigit():
        return str(max(0, int(value) + step)).zfill(len(value))
    return value + "z" * step if step > 0 else value[:-1]


def _between(low: Literal, high: Literal, rng: random.Random) -> Literal:
    if isinstance(low, int) and isinstance(high, int):
        return rng.randint(min(low, high), max(low, high))
    if isinstance(low, int | float) and isinstance(high, int | float):
        return round(rng.uniform(low, high), 3)
    first, last = str(low), str(high)
    if (start := _DATE.match(first)) and (end := _DATE.match(last)):
        year = rng.randint(int(start[1]), max(int(start[1]), int(end[1])))
        middle = f"{year:04d}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
        return middle if first <= middle <= last else rng.choice((first, last))
    if first.isdigit() and last.isdigit():
        return str(rng.randint(int(first), max(int(first), int(last)))).zfill(len(first))
    return rng.choice((first, last))


def _is_number(column: Column) -> bool:
    return any(word in column.kind for word in _NUMBERS)


def _affinity(kind: str) -> str:
    if any(word in kind for word in ("real", "float", "double")):
        return "REAL"
    if "int" in kind:
        return "INTEGER"
    return "NUMERIC" if any(word in kind for word in _NUMBERS) else "TEXT"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
