"""The rules builder of text-to-SQL: a question and its gold query, cut at the values that both hold.

A value of the query that the question says word for word becomes an argument ("The country I mean is France."), and the question
asks about "a certain country" instead. Because the value's place in the query is known, the gold query of every other state
is known too: exchange the literal. Predecessors count or list rows under the same conditions, so their queries are known as well.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from collab.environments.domain import BadRecord
from collab.environments.evolving_intent.conversion import Conversion, Rejected, SourceTask
from collab.environments.evolving_intent.intent import SOURCE, Argument, Counterfactual, Function, Ingredients
from collab.environments.evolving_intent.slots import Piece, SlotAnswers, cut_at
from collab.language.numbers import find_numbers
from collab.rewards.database_schema import Schema
from collab.rewards.query_conditions import Condition, read_query
from simulators.errors import ConfigurationError
from simulators.seeds import derive_seed

DIALECT = "I work with SQLite, so please give me one SELECT statement."
_MAX_SCHEMA_CHARACTERS = 12_000
_OPERATORS = {"=": "is", ">": "is more than", "<": "is less than", ">=": "is at least", "<=": "is at most"}


def source_task(record: Mapping[str, Any], default_id: str) -> SourceTask:
    """Return the single-turn task of a Spider or BIRD record.

    Fields: `question`, `query` (or `SQL`), and a schema as `Schema.from_metadata` reads it (`schema_sql`, `schema_tables`,
    or an entry of Spider's `tables.json` in `schema`); optionally `evidence`, `db_id`, `database_files`.

    Raises:
        BadRecord: when a field is missing or of the wrong kind.
    """
    query = record.get("query") or record.get("SQL")
    for name, value in (("question", record.get("question")), ("query", query)):
        if not isinstance(value, str) or not value.strip():
            raise BadRecord(f"field {name!r} must be a text that is not empty")
    verifier = {key: record[key] for key in ("schema_sql", "schema_tables", "schema", "database_files") if key in record}
    try:
        schema = Schema.from_metadata(verifier)
    except ConfigurationError as error:
        raise BadRecord(str(error)) from None
    question, evidence = str(record["question"]).strip(), str(record.get("evidence") or "").strip()
    text = "\n".join(part for part in (question, evidence and f"Hint: {evidence}", DIALECT) if part)
    details = {
        "preamble": f"Here is my database:\n{schema_as_text(schema)}",
        "question": question,
        "evidence": evidence,
        "labels": record.get("column_labels", {}),
        "verifier": verifier | {"reference_sql": str(query).strip()},
    }
    task_id = str(record.get("id") or record.get("question_id") or default_id)
    return SourceTask(task_id, text, str(query).strip(), json.loads(json.dumps(details)))


def schema_as_text(schema: Schema) -> str:
    """Return a schema as one line a table: name(column, column, ...), with its foreign keys."""
    lines = [f"{table.name}({', '.join(column.name for column in table.columns)})" for table in schema.tables]
    keys = [f"{one[0]}.{one[1]} = {other[0]}.{other[1]}" for one, other in schema.foreign_keys]
    return "\n".join([*lines, *([f"Foreign keys: {', '.join(keys)}"] if keys else [])])[:_MAX_SCHEMA_CHARACTERS]


@dataclass(frozen=True, slots=True)
class _Value:
    """A value that question and query share: where it stands in both, and what its column is called."""

    key: str
    label: str
    said: str
    condition: Condition
    in_question: tuple[int, int]
    in_query: tuple[int, int]


def convert_record(record: Mapping[str, Any], default_id: str, seed: int) -> Conversion:
    """Read a record and take it apart.

    Raises:
        BadRecord, Rejected: as `source_task` and `convert_by_rules` do.
    """
    return convert_by_rules(source_task(record, default_id), seed)


def convert_by_rules(task: SourceTask, seed: int = 0) -> Conversion:
    """Take a question with its gold query apart.

    Raises:
        Rejected: stage "extraction", where question and query share no value that can be told apart.
    """
    question, query = str(task.details["question"]), task.reference
    schema = Schema.from_metadata(task.details["verifier"])
    values = _shared_values(question, query, schema, task.details.get("labels", {}))
    if not values:
        raise Rejected("extraction", "question and query share no value of their own")
    arguments, literals = [], {}
    evidence = str(task.details.get("evidence") or "")
    for value in values:
        fixed = value.said.lower() in evidence.lower()  # a hint that names the value would contradict another one
        argument, texts = _argument(value, query, random.Random(derive_seed(seed, task.id, value.key)), fixed)
        arguments.append(argument)
        literals[value.key] = texts
    if evidence:
        arguments.append(Argument(f"a{len(arguments) + 1}", f"A hint about the data: {evidence}"))
    arguments.append(Argument(f"a{len(arguments) + 1}", DIALECT, informative=False))
    function = Function(SOURCE, _without_values(question, values), frozenset(argument.key for argument in arguments))
    predecessors, templates = _predecessors(values, query, schema)
    templates[SOURCE] = cut_at(query, {value.key: value.in_query for value in values})
    answers = SlotAnswers(templates, literals)
    return Conversion(task, Ingredients(function, tuple(arguments), predecessors), answers, exact=True)


def _shared_values(question: str, query: str, schema: Schema, labels: Mapping[str, str]) -> list[_Value]:
    """Find the values that stand once in the question and once in the query, one a column, in the question's order."""
    columns = frozenset(column.name.lower() for table in schema.tables for column in table.columns)
    conditions = read_query(query, columns).conditions
    found: list[_Value] = []
    for condition in conditions:
        alone = sum(other.column == condition.column for other in conditions) == 1
        if condition.operator not in _OPERATORS or len(condition.values) != 1 or not alone or condition.function:
            continue
        said = str(condition.values[0])
        places = list(re.finditer(rf"(?<![\w.]){re.escape(said)}(?![\w]|\.\d)", question, re.IGNORECASE))
        plain = re.escape(said)
        literals = list(re.finditer(rf"'{plain}'|\"{plain}\"|(?<![\w.'\"]){plain}(?![\w.'\"])", query))
        if len(said) < 1 or len(places) != 1 or len(literals) != 1:
            continue
        label = str(labels.get(condition.column) or condition.column.replace("_", " ")).lower()
        found.append(_Value("", label, places[0].group(), condition, places[0].span(), literals[0].span()))
    found.sort(key=lambda value: value.in_question)
    apart = all(one.in_question[1] <= other.in_question[0] for one, other in itertools.pairwise(found))
    named = len({value.label for value in found}) == len(found)
    if not apart or not named:
        return []
    return [
        _Value(f"a{number}", value.label, value.said, value.condition, value.in_question, value.in_query)
        for number, value in enumerate(found, start=1)
    ]


def _without_values(question: str, values: list[_Value]) -> str:
    """Return the question with "a certain country" for "France"; a word that names the value already goes with it."""
    text = question
    for value in reversed(values):
        start, end = value.in_question
        before, after = text[:start].rstrip("'\""), text[end:].lstrip("'\"")
        before = re.sub(rf"(?:\b{re.escape(value.label)}|\b[Nn]o\.|\b[Nn]umber|\bid|#)\s*$", "", before, flags=re.IGNORECASE)
        before = re.sub(r"\b(?:a|an|the)\s*$", "", before)
        after = re.sub(rf"^\s*{re.escape(value.label.split()[-1])}\b", "", after, flags=re.IGNORECASE)
        gap = "" if not before or before.endswith((" ", "(")) else " "
        text = f"{before}{gap}a certain {value.label}{after}"
    return text[:1].upper() + text[1:]


def _argument(value: _Value, query: str, rng: random.Random, fixed: bool) -> tuple[Argument, tuple[str, ...]]:
    """Return the argument of a value, and its literal in the query at every version."""
    written = query[slice(*value.in_query)]

    def statement(said: str) -> str:
        return f"The {value.label} I mean is {said}."

    alternatives = []
    literals = [written]
    for other in [] if fixed else _other_values(value, rng):
        alternatives.append(Counterfactual(statement(other), value.said, other))
        quote = written[0] if written[0] in "'\"" else ""
        literals.append(f"{quote}{other}{quote}")
    return Argument(value.key, statement(value.said), tuple(alternatives)), tuple(literals)


_PLACES = ("France", "Spain", "Brazil", "Japan", "Canada", "Kenya")
_NAMES = ("Anna", "Peter", "Maria", "James", "Laura", "David")
_WORDS = ("Alpha", "North", "Silver", "Central", "Delta", "Green")


def _other_values(value: _Value, rng: random.Random) -> list[str]:
    """Return two other values of the same kind: numbers nearby, places for places, names for names, else plain words."""
    numbers = find_numbers(value.said)
    if len(numbers) == 1 and numbers[0].written == value.said and numbers[0].value.denominator == 1:
        number = int(Fraction(numbers[0].value))
        near = [number + step for step in (-3, -2, -1, 1, 2, 3, 5) if number + step > 0]
        return [str(other) for other in rng.sample(near, min(2, len(near)))]
    if find_numbers(value.said) or not value.said.replace(" ", "").isalpha():
        return []
    place = re.search(r"country|city|nation|location|state|region|continent|town", value.label)
    name = re.search(r"name|player|author|person|owner|employee|singer", value.label)
    words = _PLACES if place else _NAMES if name else _WORDS
    return rng.sample([word for word in words if word.lower() != value.said.lower()], 2)


def _table_of(condition: Condition, query: str, schema: Schema) -> str | None:
    """Return the table of a condition: as the query says, or the only table of the query that has the column."""
    named = [table.name for table in schema.tables if table.name.lower() == condition.table]
    if named:
        return named[0]
    holding = [
        table.name
        for table in schema.tables
        if any(column.name.lower() == condition.column for column in table.columns)
        and re.search(rf"\b{re.escape(table.name)}\b", query, re.IGNORECASE)
    ]
    return holding[0] if len(holding) == 1 else None


def _predecessors(values: list[_Value], query: str, schema: Schema) -> tuple[tuple[Function, ...], dict[str, tuple[Piece, ...]]]:
    """Return earlier questions under the same conditions: how many rows there are, and which they are."""
    functions: list[Function] = []
    templates: dict[str, tuple[Piece, ...]] = {}
    for value in values:
        table, condition = _table_of(value.condition, query, schema), value.condition
        if table is None:
            continue
        relation = _OPERATORS[condition.operator]
        start, end = value.in_query
        slot = {value.key: (0, end - start)}
        for wanted, select in (("How many rows of", "SELECT COUNT(*)"), ("What are all rows of", "SELECT *")):
            key = f"f{len(functions) + 1}"
            ending = "are there" if wanted.startswith("How") else ""
            text = f"{wanted} {table} {ending} whose {value.label} {relation} the one I mean?"
            functions.append(Function(key, re.sub(r"\s+", " ", text), frozenset({value.key})))
            head = f'{select} FROM "{table}" WHERE "{condition.column}" {condition.operator} '
            templates[key] = (("text", head), *cut_at(query[start:end], slot))
    return tuple(functions), templates
