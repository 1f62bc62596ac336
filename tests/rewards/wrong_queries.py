"""Queries that are wrong in one small way, made from gold queries."""

import re
from collections.abc import Iterator

_AGGREGATES = {"max(": "min(", "min(": "max(", "avg(": "sum(", "sum(": "avg(", "count(distinct": "count("}


def near_misses(gold: str) -> Iterator[tuple[str, str]]:
    """Yield (what is wrong, query) for every small mistake that can be made in `gold`."""
    for kind, pattern, replacement in (
        ("comparison", r"(?<![<>!=])=\s*(?='|\"|\d)", " != "),
        ("comparison", r">(?!=)\s*(?='|\d)", "<= "),
        ("comparison", r"<(?![>=])\s*(?='|\d)", ">= "),
        ("direction", r"\bDESC\b", "ASC"),
        ("direction", r"\bASC\b", "DESC"),
        ("limit", r"\bLIMIT\s+1\b", "LIMIT 2"),
    ):
        changed = re.sub(pattern, replacement, gold, count=1, flags=re.IGNORECASE)
        if changed != gold:
            yield kind, changed
    for before, after in _AGGREGATES.items():
        changed = re.sub(re.escape(before).replace("\\ ", r"\s+"), after, gold, count=1, flags=re.IGNORECASE)
        if changed != gold:
            yield "aggregate", changed


def one_row_too_many(gold: str) -> str:
    """Return a query that gives the gold query's rows twice: the coarsest of mistakes, possible for every query."""
    return f"SELECT * FROM ({gold.rstrip().rstrip(';')}) UNION ALL SELECT * FROM ({gold.rstrip().rstrip(';')})"
