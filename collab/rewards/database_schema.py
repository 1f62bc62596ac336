"""The schema of a relational database, read from the forms that text-to-SQL benchmarks give it in."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulators.errors import ConfigurationError

ColumnKey = tuple[str, str]
"""(table, column), both in lower case."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column; `kind` is its declared type in lower case ("text", "number", "real", "date", ...), "" where unknown."""

    name: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; `primary_key` names its key columns."""

    name: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Schema:
    """Tables and the foreign keys among them, each as (referring column, referred column)."""

    tables: tuple[Table, ...]
    foreign_keys: tuple[tuple[ColumnKey, ColumnKey], ...] = ()

    @classmethod
    def from_spider(cls, entry: Mapping[str, Any]) -> Schema:
        """Read one entry of Spider's or BIRD's `tables.json`."""
        columns: list[ColumnKey] = []
        members: list[list[Column]] = [[] for _ in entry["table_names_original"]]
        for (table, name), kind in zip(entry["column_names_original"], entry["column_types"], strict=True):
            columns.append((entry["table_names_original"][table].lower() if table >= 0 else "", name.lower()))
            if table >= 0:
                members[table].append(Column(name, str(kind).lower()))
        keys: dict[str, list[str]] = {}
        for key in entry["primary_keys"]:
            for position in key if isinstance(key, list) else [key]:
                keys.setdefault(columns[position][0], []).append(columns[position][1])
        tables = tuple(
            Table(name, tuple(each), tuple(keys.get(name.lower(), ())))
            for name, each in zip(entry["table_names_original"], members, strict=True)
            if not name.startswith("sqlite_")
        )
        return cls(tables, tuple((columns[one], columns[other]) for one, other in entry["foreign_keys"]))

    @classmethod
    def from_table_info(cls, tables: Mapping[str, Mapping[str, Any]]) -> Schema:
        """Read Lost in Conversation's `schema_tables`: SQLite's `table_info` and `foreign_key_list` rows by table."""
        read: list[Table] = []
        foreign: list[tuple[ColumnKey, ColumnKey]] = []
        names = {name.lower(): name for name in tables}
        for name, info in tables.items():
            columns = tuple(Column(row[1], str(row[2]).lower()) for row in info["columns"])
            read.append(Table(name, columns, tuple(str(column).lower() for column in info.get("primary_keys", ()))))
            for row in info.get("foreign_keys", ()):
                if str(row[2]).lower() in names:
                    foreign.append(((name.lower(), str(row[3]).lower()), (str(row[2]).lower(), str(row[4] or row[3]).lower())))
        return cls(tuple(read), tuple(foreign))

    @classmethod
    def from_sql(cls, statements: str) -> Schema:
        """Read CREATE TABLE statements by letting an empty SQLite database run them.

        Raises:
            ConfigurationError: they do not run, or create no table.
        """
        connection = sqlite3.connect(":memory:")
        try:
            connection.set_authorizer(_only_tables)
            connection.executescript(statements)
            connection.set_authorizer(None)
            names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            tables = {}
            for name in names:
                rows = connection.execute(f"PRAGMA table_info({_quoted(name)})").fetchall()
                keys = [row[1] for row in sorted(rows, key=lambda row: row[5]) if row[5]]
                foreign = connection.execute(f"PRAGMA foreign_key_list({_quoted(name)})").fetchall()
                tables[name] = {"columns": rows, "primary_keys": keys, "foreign_keys": foreign}
        except sqlite3.Error as error:
            raise ConfigurationError(f"the schema's CREATE TABLE statements do not run: {error}") from None
        finally:
            connection.close()
        if not tables:
            raise ConfigurationError("the schema creates no table")
        return cls.from_table_info(tables)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Schema:
        """Read the schema of a task: `schema_tables` (mapping or JSON text), `schema` (Spider entry) or `schema_sql`.

        Raises:
            ConfigurationError: none of them is there, or it cannot be read.
        """
        try:
            if tables := metadata.get("schema_tables"):
                return cls.from_table_info(json.loads(tables) if isinstance(tables, str) else tables)
            if entry := metadata.get("schema"):
                return cls.from_spider(entry)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ConfigurationError(f"the schema cannot be read: {error!r}") from None
        if statements := metadata.get("schema_sql"):
            return cls.from_sql(str(statements))
        raise ConfigurationError("no schema: expected `schema_tables`, `schema` (an entry of tables.json) or `schema_sql`")

    def as_plain(self) -> dict[str, Any]:
        """Return the schema as JSON data; `from_plain` reads it back."""
        tables = [
            [table.name, [[column.name, column.kind] for column in table.columns], list(table.primary_key)]
            for table in self.tables
        ]
        return {"tables": tables, "foreign_keys": [[list(one), list(other)] for one, other in self.foreign_keys]}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Schema:
        """Read what `as_plain` wrote."""
        tables = tuple(
            Table(name, tuple(Column(*column) for column in columns), tuple(key)) for name, columns, key in data["tables"]
        )
        return cls(tables, tuple((_key(one), _key(other)) for one, other in data["foreign_keys"]))


def _key(pair: Sequence[str]) -> ColumnKey:
    return pair[0], pair[1]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _only_tables(action: int, first: str | None, *_: object) -> int:
    """Let schema text create tables and indexes, and nothing else (no ATTACH, no PRAGMA, no triggers)."""
    allowed = {
        sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE,
        sqlite3.SQLITE_READ, sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_REINDEX, sqlite3.SQLITE_SELECT, sqlite3.SQLITE_FUNCTION,
    }  # fmt: skip
    if action in (sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE) and not re.match(r"sqlite_", first or ""):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY
