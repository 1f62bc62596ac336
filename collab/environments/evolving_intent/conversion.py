"""Conversions: a single-turn task taken apart into ingredients, or the reason why it could not be; and the pool that keeps them.

A pool is one append-only file: a line a task, in the order of the source tasks whatever order the work finishes in, rejects
included. A run that was killed goes on after the last task written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from collab.environments.evolving_intent.answers import AnswerBook, KnownAnswers
from collab.environments.evolving_intent.intent import Argument, Counterfactual, Function, Ingredients
from simulators.errors import ChatModelError, ConfigurationError, SimulatorError
from simulators.record_file import RecordFile

KIND, VERSION = "intents", 1
FORMAT = f"collab-{KIND}"
"""What the first line of a pool file says (`simulators.record_file`)."""


@dataclass(frozen=True, slots=True)
class SourceTask:
    """A single-turn task: what the user would say at once, the reference answer, and what the domain's verifier needs besides."""

    id: str
    text: str
    reference: str
    details: Mapping[str, Any] = field(default_factory=dict)


class Rejected(Exception):
    """A task that a builder cannot convert: the stage it fell at (extraction, counterfactuals, ...) and the reason."""

    def __init__(self, stage: str, reason: str) -> None:
        super().__init__(f"{stage}: {reason}")
        self.stage = stage
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Conversion:
    """A task taken apart. `exact` says that the answer of every state is known, stale values included.

    `notes` are what the builder proposed and rejected on the way, with the reasons.
    """

    task: SourceTask
    ingredients: Ingredients
    answers: AnswerBook
    exact: bool = False
    notes: tuple[str, ...] = ()

    def to_record(self) -> dict[str, Any]:
        """Return the conversion as plain JSON data."""
        return {
            "task": {
                "id": self.task.id,
                "text": self.task.text,
                "reference": self.task.reference,
                "details": dict(self.task.details),
            },
            "source": _function_record(self.ingredients.source),
            "arguments": [asdict(argument) for argument in self.ingredients.arguments],
            "predecessors": [_function_record(function) for function in self.ingredients.predecessors],
            "answers": self.answers.to_record(),
            "exact": self.exact,
            "notes": list(self.notes),
        }


def conversion_from_record(record: Mapping[str, Any]) -> Conversion:
    """Rebuild a conversion from `Conversion.to_record`'s data.

    Raises:
        KeyError, TypeError, ValueError: when the record is not one of a conversion.
    """
    ingredients = Ingredients(
        _function(record["source"]),
        tuple(_argument(data) for data in record["arguments"]),
        tuple(_function(data) for data in record["predecessors"]),
    )
    data = record["answers"]
    book = BOOKS[data["kind"]](data) if data["kind"] in BOOKS else KnownAnswers(data["known"])
    return Conversion(SourceTask(**record["task"]), ingredients, book, record["exact"], tuple(record["notes"]))


BOOKS: dict[str, Callable[[Mapping[str, Any]], AnswerBook]] = {}
"""How the answer books of domains are read back, by their `kind`; a domain that has its own enters it here."""


def _function_record(function: Function) -> dict[str, Any]:
    own = [asdict(argument) for argument in function.own]
    return {"key": function.key, "text": function.text, "needs": sorted(function.needs), "own": own}


def _function(data: Mapping[str, Any]) -> Function:
    return Function(data["key"], data["text"], frozenset(data["needs"]), tuple(_argument(own) for own in data["own"]))


def _argument(data: Mapping[str, Any]) -> Argument:
    alternatives = tuple(Counterfactual(**alternative) for alternative in data["alternatives"])
    return Argument(data["key"], data["text"], alternatives, data["informative"])


class Builder(Protocol):
    """Takes tasks apart. Two kinds exist, by rules and by an LLM."""

    @property
    def name(self) -> str: ...

    async def convert(self, task: SourceTask) -> Conversion:
        """Take one task apart.

        Raises:
            Rejected: with the stage and the reason.
            ChatModelError, SimulatorError: the model behind the builder failed; the task may be tried again.
        """
        ...


Entry = Conversion | Rejected


async def build_pool(
    tasks: Sequence[SourceTask], builder: Builder, path: Path | None = None, concurrency: int = 16
) -> list[tuple[str, Entry]]:
    """Convert tasks, `concurrency` at a time, and return (task id, conversion or rejection) in the order of the tasks.

    With a path every entry is written once it and all before it are finished, so that the file's order is the tasks' and a
    restart goes on where it was. A task whose model failed is a rejection of stage "model"; it is not written, so that a restart
    tries it, and everything after it, again (the journal of a paid model gives the finished calls back).

    Raises:
        ConfigurationError: when two tasks share an id, or the file holds a pool of other tasks.
    """
    ids = [task.id for task in tasks]
    if len(set(ids)) < len(ids):
        twice = next(key for key in ids if ids.count(key) > 1)
        raise ConfigurationError(f"pool: two tasks have the id {twice!r}; give every task its own")
    file = RecordFile(path, KIND, VERSION) if path is not None else None
    try:
        entries = [_entry(record) for _, _, record in file.records()] if file is not None else []
        for (stored, _), task_id in zip(entries, ids, strict=False):
            if stored != task_id:
                raise ConfigurationError(
                    f"pool: {path} holds task {stored!r} where this run has {task_id!r}; choose another file"
                )
        if len(entries) > len(ids):
            raise ConfigurationError(f"pool: {path} holds {len(entries)} tasks, this run has {len(ids)}; choose another file")
        gate = asyncio.Semaphore(concurrency)
        pending = [asyncio.ensure_future(_convert(builder, task, gate)) for task in tasks[len(entries) :]]
        intact = True
        try:
            for task, future in zip(tasks[len(entries) :], pending, strict=True):
                entry = await future
                intact = intact and not (isinstance(entry, Rejected) and entry.stage == "model")
                if file is not None and intact:
                    file.append(_record(task.id, entry))
                entries.append((task.id, entry))
        finally:
            for future in pending:
                future.cancel()
        return entries
    finally:
        if file is not None:
            file.close()


async def _convert(builder: Builder, task: SourceTask, gate: asyncio.Semaphore) -> Entry:
    async with gate:
        try:
            return await builder.convert(task)
        except Rejected as rejection:
            return rejection
        except (ChatModelError, SimulatorError) as error:
            return Rejected("model", str(error))


def _record(task_id: str, entry: Entry) -> dict[str, Any]:
    if isinstance(entry, Rejected):
        return {"task_id": task_id, "rejected": {"stage": entry.stage, "reason": entry.reason}}
    return {"task_id": task_id, "conversion": entry.to_record()}


def _entry(record: Mapping[str, Any]) -> tuple[str, Entry]:
    if "rejected" in record:
        return record["task_id"], Rejected(record["rejected"]["stage"], record["rejected"]["reason"])
    return record["task_id"], conversion_from_record(record["conversion"])


def read_pool(path: Path) -> Iterator[tuple[str, Entry]]:
    """Yield the entries of a pool file in order.

    Raises:
        ConfigurationError: when there is no such file, it is something else, or an entry is damaged.
    """
    file = RecordFile(path, KIND, VERSION, writable=False)
    try:
        for _, _, record in file.records():
            try:
                yield _entry(record)
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigurationError(f"{path}: a record is not an intent conversion ({error!r})") from None
    finally:
        file.close()


def conversions_of(entries: Iterable[tuple[str, Entry]]) -> list[Conversion]:
    """Return the conversions among a pool's entries, in order."""
    return [entry for _, entry in entries if isinstance(entry, Conversion)]
