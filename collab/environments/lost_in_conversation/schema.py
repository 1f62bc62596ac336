"""The published record schema of Lost in Conversation, read into one `Instruction` whatever the task.

A record is a single-turn benchmark problem (the *full* instruction), the same problem cut into *shards*, and what its verifier
needs. Six tasks share the shape and differ in their fields; the tables below name them. Everything a record lacks or has wrong is
reported as a `BadRecord`, which the loader completes with the file and the line.

Source: Lost in Conversation, section 3 and appendix (record fields: the public dataset).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from collab.environments.domain import BadRecord
from collab.environments.lost_in_conversation import wording
from collab.tasks.held_out import fingerprint


class TaskKind(StrEnum):
    """The six tasks; a task fixes the wording of the prompts, what counts as an answer, and the verifier."""

    MATH = "math"
    CODE = "code"
    DATABASE = "database"
    ACTIONS = "actions"
    DATA2TEXT = "data2text"
    SUMMARY = "summary"

    @property
    def verbatim(self) -> bool:
        """True where shards are tables or documents: they are handed over as they are, never rephrased."""
        return self in (TaskKind.DATA2TEXT, TaskKind.SUMMARY)

    @property
    def binary(self) -> bool:
        """True where an answer is right or wrong; the other tasks are scored in between."""
        return not self.verbatim


class Split(StrEnum):
    """What an instruction may be used for. It is part of the instruction's id, so the two can never share one."""

    TRAIN = "train"
    EVALUATION = "evaluation"


@dataclass(frozen=True, slots=True)
class Shard:
    """One piece of information, as a user would say it in one turn. `id` is the record's own number."""

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class Instruction:
    """One problem: in full, in shards, and with what its verifier needs.

    `shards[0]` is the intent, which opens a conversation. `context` is what the assistant is given whatever the simulation
    (a database schema, the list of functions; empty for most). `record` is the published record: its gold fields are for the
    verifier only, neither the user nor the policy is shown them.
    """

    id: str
    kind: TaskKind
    split: Split
    full: str
    shards: tuple[Shard, ...]
    record: Mapping[str, Any]
    context: str = ""
    fingerprint: str = field(default="", compare=False)

    @property
    def shard_texts(self) -> tuple[str, ...]:
        """The shards' texts, the intent first."""
        return tuple(shard.text for shard in self.shards)

    def with_shards(self, texts: tuple[str, ...], suffix: str) -> Instruction:
        """Return the same problem cut in another way, under an id of its own; the fingerprint stays, the problem being the same.

        Raises:
            BadRecord: for no shards, or a shard without text.
        """
        shards = tuple(Shard(number, text) for number, text in enumerate(texts, start=1))
        _check_shards(shards)
        record = {**self.record, "shards": [{"shard_id": shard.id, "shard": shard.text} for shard in shards]}
        record["task_id"] = f"{self.record['task_id']}{suffix}"
        return replace(self, id=f"{self.id}{suffix}", shards=shards, record=record)


_TEXT = (str,)
_TYPE_NAMES = {"str": "a text", "list": "a list", "dict": "an object"}
_FIELDS: dict[TaskKind, dict[str, tuple[type, ...]]] = {
    TaskKind.MATH: {"question": _TEXT, "answer": _TEXT},
    TaskKind.CODE: {"prompt": _TEXT, "test": _TEXT, "metadata": (dict,)},
    TaskKind.DATABASE: {"fully_specified_question": _TEXT, "reference_sql": _TEXT, "db_id": _TEXT, "schema_sql": _TEXT},
    TaskKind.ACTIONS: {"function": (list,), "fully_specified_question": (list, str), "reference_answer": (list,)},
    TaskKind.DATA2TEXT: {"table_highlighted_html": _TEXT, "references": (list,), "metadata": (dict,)},
    TaskKind.SUMMARY: {
        "query": _TEXT,
        "topic": _TEXT,
        "documents": (list,),
        "insights": (list,),
        "insightid2ref_citations": (dict,),
    },
}


def instruction_from_record(record: Mapping[str, Any], split: Split, default_id: str = "") -> Instruction:
    """Read one published record.

    Raises:
        BadRecord: when a field is missing, empty or of the wrong type; the text names the field.
    """
    try:
        kind = TaskKind(record.get("task", ""))
    except ValueError:
        known = ", ".join(TaskKind)
        raise BadRecord(f"field 'task' is {record.get('task')!r}; it must be one of {known}") from None
    source_id = record.get("task_id", default_id)
    if not isinstance(source_id, str) or not source_id:
        raise BadRecord(f"field 'task_id' is {source_id!r}; it must be a text that is not empty")
    for name, types in _FIELDS[kind].items():
        _check_field(record, name, types, kind)
    full, context = _INSTRUCTION[kind](record)
    shards = _summary_shards(record) if kind is TaskKind.SUMMARY else _shards(record)
    _check_shards(shards)
    # A training file holds one problem cut in several ways under one id, so the cut is part of a training id.
    cut = f"/{_digest(chr(31).join(shard.text for shard in shards))[:8]}" if split is Split.TRAIN else ""
    return Instruction(
        id=f"{split}/{kind}/{source_id}{cut}",
        kind=kind,
        split=split,
        full=full,
        shards=shards,
        record={**record, "task_id": source_id},
        context=context,
        fingerprint=fingerprint(_problem_text(kind, record)),
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _check_field(record: Mapping[str, Any], name: str, types: tuple[type, ...], kind: TaskKind) -> None:
    value = record.get(name)
    expected = " or ".join(_TYPE_NAMES[each.__name__] for each in types)
    if not isinstance(value, types):
        what = "is missing" if name not in record else f"is {type(value).__name__}"
        raise BadRecord(f"field {name!r} {what}; a {kind} record needs {expected} there")
    if not value or (isinstance(value, str) and not value.strip()):
        raise BadRecord(f"field {name!r} is empty; a {kind} record needs {expected} there")


def _check_shards(shards: tuple[Shard, ...]) -> None:
    if not shards:
        raise BadRecord("field 'shards' is empty; an instruction needs at least its intent")
    for shard in shards:
        if not shard.text.strip():
            raise BadRecord(f"shard {shard.id} has no text")
    ids = [shard.id for shard in shards]
    if len(set(ids)) < len(ids):
        raise BadRecord(f"field 'shards' numbers a shard twice: {ids}")


def _raw_shards(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    shards = record.get("shards")
    if not isinstance(shards, list):
        raise BadRecord("field 'shards' is missing or not a list of {shard_id, shard}")
    for position, shard in enumerate(shards):
        if not isinstance(shard, Mapping) or not isinstance(shard.get("shard"), str):
            raise BadRecord(f"field 'shards', entry {position}: needs a text 'shard'")
        if not isinstance(shard.get("shard_id"), int) or isinstance(shard["shard_id"], bool):
            raise BadRecord(
                f"field 'shards', entry {position}: 'shard_id' is {shard.get('shard_id')!r}; it must be a whole number"
            )
    return shards


def _shards(record: Mapping[str, Any]) -> tuple[Shard, ...]:
    """Read the shards; the published training file has some without text, which say nothing and are left out."""
    shards = (Shard(shard["shard_id"], shard["shard"].strip()) for shard in _raw_shards(record))
    return tuple(shard for shard in shards if shard.text)


def _summary_shards(record: Mapping[str, Any]) -> tuple[Shard, ...]:
    """Summary shards carry numbers of documents instead of text (unless they were cut anew); the first also has the request."""
    documents: dict[int, str] = {}
    for position, document in enumerate(record["documents"]):
        index = document.get("document_index") if isinstance(document, Mapping) else None
        text = document.get("document_text") if isinstance(document, Mapping) else None
        if not isinstance(index, int) or not isinstance(text, str):
            raise BadRecord(f"field 'documents', entry {position}: needs a number 'document_index' and a text 'document_text'")
        documents[index] = text
    shards = []
    for position, shard in enumerate(_raw_shards(record)):
        if shard["shard"].strip():
            shards.append(Shard(shard["shard_id"], shard["shard"].strip()))
            continue
        indices = shard.get("doc_idxs")
        if not isinstance(indices, list) or not indices or any(index not in documents for index in indices):
            raise BadRecord(
                f"shard {shard['shard_id']}: 'doc_idxs' is {indices!r}; it must list numbers of the record's documents"
            )
        chosen = [(index, documents[index]) for index in indices]
        text = wording.summary_first(record["query"], chosen) if position == 0 else wording.summary_more(chosen)
        shards.append(Shard(shard["shard_id"], text))
    return tuple(shards)


def _full_math(record: Mapping[str, Any]) -> tuple[str, str]:
    return record["question"].strip(), ""


def _full_code(record: Mapping[str, Any]) -> tuple[str, str]:
    function = record["metadata"].get("func_name")
    if not isinstance(function, str) or not function.isidentifier():
        raise BadRecord(f"field 'metadata': 'func_name' is {function!r}; it must be the name of the function under test")
    return wording.code_full(record["prompt"]), ""


def _full_database(record: Mapping[str, Any]) -> tuple[str, str]:
    return record["fully_specified_question"].strip(), wording.database_context(record["schema_sql"])


def _full_actions(record: Mapping[str, Any]) -> tuple[str, str]:
    question = record["fully_specified_question"]
    if isinstance(question, list):
        turns = question[0] if question and isinstance(question[0], list) else question
        texts = [turn.get("content") if isinstance(turn, Mapping) else None for turn in turns]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise BadRecord("field 'fully_specified_question' must be a text or a list of messages with a 'content'")
        question = "\n".join(str(text) for text in texts)
    return question.strip(), wording.actions_context(json.dumps(record["function"], ensure_ascii=False, indent=1))


def _full_data2text(record: Mapping[str, Any]) -> tuple[str, str]:
    if not all(isinstance(reference, str) and reference.strip() for reference in record["references"]):
        raise BadRecord("field 'references' must list texts that are not empty")
    facts = {str(name): str(value) for name, value in record["metadata"].items()}
    return wording.data2text_full(record["table_highlighted_html"], facts, record.get("fewshot_descriptions")), ""


def _full_summary(record: Mapping[str, Any]) -> tuple[str, str]:
    """The full instruction hands over the documents that the shards hand over, in the same order."""
    return wording.summary_full(record["query"], _documents_in_order(record)), ""


def _documents_in_order(record: Mapping[str, Any]) -> list[tuple[int, str]]:
    texts = {doc["document_index"]: doc["document_text"] for doc in record["documents"] if isinstance(doc, Mapping)}
    order = [index for shard in _raw_shards(record) for index in shard.get("doc_idxs") or () if index in texts]
    return [(index, texts[index]) for index in order or sorted(texts)]


_INSTRUCTION: dict[TaskKind, Callable[[Mapping[str, Any]], tuple[str, str]]] = {
    TaskKind.MATH: _full_math,
    TaskKind.CODE: _full_code,
    TaskKind.DATABASE: _full_database,
    TaskKind.ACTIONS: _full_actions,
    TaskKind.DATA2TEXT: _full_data2text,
    TaskKind.SUMMARY: _full_summary,
}


def _problem_text(kind: TaskKind, record: Mapping[str, Any]) -> str:
    """Return the text that says which problem this is: what two copies of one problem have in common."""
    match kind:
        case TaskKind.MATH:
            return str(record["question"])
        case TaskKind.CODE:
            return str(record["prompt"])
        case TaskKind.DATABASE:
            return f"{record['db_id']} {record['fully_specified_question']}"
        case TaskKind.ACTIONS:
            return json.dumps(record["fully_specified_question"], ensure_ascii=False)
        case TaskKind.DATA2TEXT:
            return str(record["table_highlighted_html"])
        case TaskKind.SUMMARY:
            return f"{record['topic']} {record['query']}"
