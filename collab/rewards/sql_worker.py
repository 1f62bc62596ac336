"""Runs a policy's SQL against databases and compares the rows with the gold query's. Runs in a worker process only.

The query is hostile: the connection is read-only, an authorizer lets it read and nothing else (no ATTACH, no PRAGMA, no
writing, no extension), and its steps, time, rows and memory are bounded. What SQLite cannot interrupt (a pathological LIKE, say)
hangs this process, which the worker pool kills.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import Any

from collab.rewards.database_schema import Schema
from collab.rewards.synthetic_database import fill, telling

MAX_ROWS = 100_000
MAX_STEPS = 20_000_000
STEPS_BETWEEN_LOOKS = 10_000
MAX_SEEDS_TRIED = 8
MAX_COLUMNS_TO_PERMUTE = 6
SIGNIFICANT_DIGITS = 9

_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 10_000_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 500,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1_000,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 100,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}
_MEMORY_BYTES = 512 << 20
_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_FORBIDDEN_FUNCTIONS = frozenset({"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"})

Row = tuple[Any, ...]


class QueryFailed(Exception):
    """A query did not run to its end within its limits."""


def match_execution(request: dict[str, Any]) -> dict[str, Any]:
    """Return `{"equal": bool, "telling": bool, "reason": str | None}` for `request["query"]` against `request["gold"]`.

    Databases: `files` (paths), or `schema` (as plain data), `fills` and `seed` for synthetic ones. `telling` says whether the
    gold query returned anything on those looked at. A gold query that fails raises: then there is no verdict.
    """
    gold, query, seconds = request["gold"], request["query"], request["seconds"]
    any_order = bool(request["any_column_order"])
    any_telling = False
    for connection, expected in _databases(_frozen(request)):
        any_telling = any_telling or telling(expected)
        try:
            rows = run(connection, query, seconds)
        except QueryFailed as error:
            return {"equal": False, "telling": any_telling, "reason": str(error)}
        if not same_rows(expected, rows, ordered=orders_rows(gold), any_column_order=any_order):
            return {
                "equal": False,
                "telling": any_telling,
                "reason": f"{len(rows)} rows differ from the expected {len(expected)}",
            }
    return {"equal": True, "telling": any_telling, "reason": None}


def _frozen(request: dict[str, Any]) -> str:
    return json.dumps({key: request[key] for key in ("gold", "files", "schema", "fills", "seed", "seconds")}, sort_keys=True)


@functools.lru_cache(maxsize=64)
def _databases(request_text: str) -> tuple[tuple[sqlite3.Connection, list[Row]], ...]:
    """Return the databases of a task, each with the gold query's rows; kept, as many replies to one task are compared."""
    request = json.loads(request_text)
    gold, seconds = request["gold"], request["seconds"]
    if request["files"]:
        opened = [_guarded(_open(path)) for path in request["files"]]
        return tuple((connection, _run_gold(connection, gold, seconds)) for connection in opened)
    schema = Schema.from_plain(request["schema"])
    kept: list[tuple[sqlite3.Connection, list[Row]]] = []
    spare: list[tuple[sqlite3.Connection, list[Row]]] = []
    for seed in range(request["seed"], request["seed"] + MAX_SEEDS_TRIED):
        connection = _guarded(fill(schema, gold, seed))
        rows = _run_gold(connection, gold, seconds)
        (kept if telling(rows) else spare).append((connection, rows))
        if len(kept) == request["fills"]:
            break
    return tuple((kept + spare)[: request["fills"]])


def _open(path: str) -> sqlite3.Connection:
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no database {path}")
    connection = sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    connection.text_factory = lambda data: data.decode(errors="replace")  # Spider's files hold Latin-1 here and there
    return connection


def _guarded(connection: sqlite3.Connection) -> sqlite3.Connection:
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute(f"PRAGMA hard_heap_limit = {_MEMORY_BYTES}")
    for limit, value in _LIMITS.items():
        connection.setlimit(limit, value)
    connection.set_authorizer(_authorize)
    return connection


def _authorize(action: int, first: str | None, second: str | None, *_: object) -> int:
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FORBIDDEN_FUNCTIONS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY


def _run_gold(connection: sqlite3.Connection, gold: str, seconds: float) -> list[Row]:
    try:
        return run(connection, gold, seconds)
    except QueryFailed as error:
        raise ValueError(f"the gold query does not run: {error}") from None


def run(connection: sqlite3.Connection, query: str, seconds: float) -> list[Row]:
    """Return the rows of one statement.

    Raises:
        QueryFailed: it is no single SELECT, it fails, or it takes too many steps, rows or seconds.
    """
    ends = time.monotonic() + seconds
    left = MAX_STEPS // STEPS_BETWEEN_LOOKS

    def look() -> int:
        nonlocal left
        left -= 1
        return int(left <= 0 or time.monotonic() > ends)

    connection.set_progress_handler(look, STEPS_BETWEEN_LOOKS)
    try:
        cursor = connection.execute(query)
        rows = cursor.fetchmany(MAX_ROWS + 1)
        cursor.close()
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
        raise QueryFailed(f"{type(error).__name__}: {error}"[:200]) from None
    finally:
        connection.set_progress_handler(None, 0)
    if len(rows) > MAX_ROWS:
        raise QueryFailed(f"more than {MAX_ROWS} rows")
    return rows


def orders_rows(query: str) -> bool:
    """True where the outermost query has an ORDER BY, so that the order of its rows is part of the answer."""
    bare = re.sub(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`", "''", query)
    depth = 0
    for match in re.finditer(r"[()]|\border\s+by\b", bare, re.IGNORECASE):
        if match.group() == "(":
            depth += 1
        elif match.group() == ")":
            depth -= 1
        elif depth == 0:
            return True
    return False


def same_rows(expected: list[Row], rows: list[Row], ordered: bool, any_column_order: bool) -> bool:
    """Compare results: as lists where the gold query orders, else as bags. Numbers agree to nine significant digits.

    With `any_column_order` the columns may stand in any order, the same for all rows (Spider's official rule).
    """
    if len(expected) != len(rows) or (expected and len(expected[0]) != len(rows[0])):
        return False
    ours = [tuple(map(_canonical, row)) for row in rows]
    theirs = [tuple(map(_canonical, row)) for row in expected]
    if _same(theirs, ours, ordered):
        return True
    width = len(theirs[0]) if theirs else 0
    if not any_column_order or not 2 <= width <= MAX_COLUMNS_TO_PERMUTE:
        return False
    bags = [Counter(row[column] for row in theirs) for column in range(width)]
    our_bags = [Counter(row[column] for row in ours) for column in range(width)]
    return any(
        _same(theirs, [tuple(row[column] for column in order) for row in ours], ordered)
        for order in itertools.permutations(range(width))
        if all(bags[place] == our_bags[column] for place, column in enumerate(order))
    )


def _same(expected: list[Row], rows: list[Row], ordered: bool) -> bool:
    return expected == rows if ordered else Counter(expected) == Counter(rows)


def _canonical(value: Any) -> Any:
    """Return a value that compares equal for equal meaning: 5 and 5.0, and sums taken in another order. Texts stay texts."""
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}") + 0.0
    return value
