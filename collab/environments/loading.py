"""Where tasks come from: a bundled file, a local file or folder, or a dataset on the Hub.

Every record goes through its domain's `task_from_record`; a bad one is reported with file and line, and refused or skipped by
setting, never silently dropped.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TextIO

from collab.environments.domain import BadRecord, Domain, Unsuitable
from collab.tasks.task import Task
from simulators.errors import ConfigurationError

BUNDLED = "bundled"
"""The domain's own bundled tasks; `bundled:NAME` are those of another domain (math_chat's for an intent that evolves)."""

OnBadRecord = Literal["refuse", "skip"]
_Records = Iterator[tuple[str, Mapping[str, Any]]]
"""Pairs of where a record stands (for messages) and the record."""


@dataclass(frozen=True, slots=True)
class LoadedTasks:
    """Tasks in the order of their source, one sentence for every bad record that was skipped, and how many records were sound but
    `unsuitable` for the domain as its options are, by reason."""

    tasks: Sequence[Task]
    skipped: Sequence[str] = field(default=())
    unsuitable: Mapping[str, int] = field(default_factory=dict)


def load_tasks(
    source: str,
    domain: Domain,
    *,
    split: str = "train",
    limit: int | None = None,
    on_bad_record: OnBadRecord = "refuse",
) -> LoadedTasks:
    """Load the tasks of one split.

    `source` is `bundled`, `bundled:NAME`, a path (.jsonl, .json, .csv, .parquet, text also as .gz, or a folder saved by
    `datasets`), or a Hub id, with a configuration after a colon where the dataset has several (`openai/gsm8k:main`). Local files
    are one split each, unless their records have a `split` field, which is then matched.

    Raises:
        ConfigurationError: no such source, a missing column, no record left, a limit below 1, or (with `refuse`) a bad record
            or two tasks with one id.
    """
    if limit is not None and limit < 1:
        raise ConfigurationError(f"limit is {limit}; it must be at least 1 (null: all tasks)")
    tasks: dict[str, Task] = {}
    skipped: list[str] = []
    unsuitable: Counter[str] = Counter()
    for number, (where, record) in enumerate(_records(source, domain, split)):
        if record.get("split", split) != split:
            continue
        try:
            _check_columns(record, domain)
            if not domain.selects(record):
                continue
            task = domain.task_from_record(record, f"{domain.name}-{split}-{number:05d}")
            if task.id in tasks:
                raise BadRecord(f"task id {task.id!r} stands twice")
        except Unsuitable as misfit:
            unsuitable[str(misfit)] += 1
            continue
        except BadRecord as error:
            problem = f"{where}: {error}"
            if on_bad_record == "refuse":
                raise ConfigurationError(f"{problem}; mend it or set on_bad_record=skip") from None
            skipped.append(problem)
            continue
        tasks[task.id] = task
        if limit is not None and len(tasks) >= limit:
            break
    if not tasks:
        reason = f"; {len(skipped)} record(s) were skipped, the first: {skipped[0]}" if skipped else ""
        if unsuitable:
            often, count = unsuitable.most_common(1)[0]
            reason += f"; {unsuitable.total()} record(s) do not suit {domain.name} as its options are, {count} of them: {often}"
        raise ConfigurationError(f"{source} has no task of split {split!r}{reason}")
    return LoadedTasks(list(tasks.values()), skipped, unsuitable)


def _check_columns(record: Mapping[str, Any], domain: Domain) -> None:
    if missing := [column for column in domain.columns if column not in record]:
        found = ", ".join(sorted(map(str, record))) or "none"
        raise BadRecord(f"environment {domain.name} needs column {missing[0]!r}; the record has {found}")


def _records(source: str, domain: Domain, split: str) -> _Records:
    if source == BUNDLED and domain.bundled is None:
        raise ConfigurationError(f"environment {domain.name} has no bundled tasks; set tasks=FILE or tasks=HUB_ID")
    if source == BUNDLED or source.startswith(f"{BUNDLED}:"):
        name = str(domain.bundled).removesuffix(".jsonl") if source == BUNDLED else source.removeprefix(f"{BUNDLED}:")
        with bundled_file(name) as path:
            yield from _json_lines(path)
        return
    yield from read_records(source, split)


def bundled_file(name: str) -> AbstractContextManager[Path]:
    """Return the file with the bundled tasks of a name.

    Raises:
        ConfigurationError: there are none; the text names those that there are.
    """
    folder = resources.files("collab.tasks") / "bundled"
    known = sorted(each.name.removesuffix(".jsonl") for each in folder.iterdir() if each.name.endswith(".jsonl"))
    if name not in known:
        raise ConfigurationError(f"there are no bundled tasks {f'{BUNDLED}:{name}'!r}; known are {', '.join(known)}")
    return resources.as_file(folder / f"{name}.jsonl")


def read_records(source: str, split: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the records of a local file or folder, or of a split of a dataset on the Hub, each with where it stands.

    Raises:
        ConfigurationError: no such source, or one that cannot be read.
    """
    path = Path(source).expanduser()
    readers = {".jsonl": _json_lines, ".json": _json, ".csv": _csv, ".parquet": _parquet}
    if path.is_dir():
        yield from _saved_dataset(path, split)
    elif _suffix(path) in readers:
        if not path.is_file():
            raise ConfigurationError(f"task file {source} does not exist; give an existing file or a Hub id")
        yield from readers[_suffix(path)](path)
    elif path.exists():
        raise ConfigurationError(f"task file {source} has an unknown format; use .jsonl, .json, .csv or .parquet")
    elif source.startswith((".", "/", "~")) or source.count("/") != 1:
        raise ConfigurationError(f"task source {source} does not exist; give `bundled`, a file, a folder or a Hub id")
    else:
        yield from _hub(source, split)


def _suffix(path: Path) -> str:
    """Return the suffix that says how a file is to be read; compressed text is read like text."""
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


@contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    """Open a text file; spreadsheets write a byte order mark first, which is no part of the text."""
    try:
        with path.open("rb") as raw:
            binary = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            yield io.TextIOWrapper(binary, encoding="utf-8-sig", newline="")
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is not UTF-8 text; save it as UTF-8") from None
    except (EOFError, zlib.error) as error:
        raise ConfigurationError(f"{path} is damaged: {error}") from None
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror or error}") from None


def _json_lines(path: Path) -> _Records:
    with _text(path) as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield _record(_parse(line, path, number), f"{path}, line {number}")


def _json(path: Path) -> _Records:
    with _text(path) as stream:
        data = _parse(stream.read(), path)
    if not isinstance(data, list):  # column or split layouts are ambiguous; a list of records is not
        raise ConfigurationError(f"{path} holds one JSON {_kind(data)}; a task file is a list of records or JSON lines")
    for number, record in enumerate(data, start=1):
        yield _record(record, f"{path}, record {number}")


def _parse(text: str, path: Path, first_line: int = 1) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{path}, line {first_line + error.lineno - 1}"
        raise ConfigurationError(f"{where}: not valid JSON ({error.msg}, column {error.colno})") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise ConfigurationError(f"{path}, line {first_line}: not valid JSON ({error})") from None


def _record(data: Any, where: str) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(data, dict):
        raise ConfigurationError(f"{where}: a record must be a JSON object, not a JSON {_kind(data)}")
    return where, data


def _kind(data: Any) -> str:
    kinds = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(data), "number")


def _csv(path: Path) -> _Records:
    with _text(path) as stream:
        reader = csv.DictReader(stream)
        try:
            for record in reader:
                yield f"{path}, line {reader.line_num}", record
        except csv.Error as error:
            raise ConfigurationError(f"{path}, after line {reader.line_num}: not valid CSV ({error})") from None


def _parquet(path: Path) -> _Records:
    import pyarrow.lib
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.lib.ArrowException, OSError) as error:
        raise ConfigurationError(f"{path} cannot be read as Parquet ({error})") from None
    for number, record in enumerate(table.to_pylist(), start=1):
        yield f"{path}, row {number}", record


def _saved_dataset(path: Path, split: str) -> _Records:
    import datasets

    try:
        loaded = datasets.load_from_disk(str(path))
    except FileNotFoundError:
        raise ConfigurationError(f"folder {path} was not written by datasets' save_to_disk; name a file in it instead") from None
    if isinstance(loaded, datasets.DatasetDict):
        if split not in loaded:
            raise ConfigurationError(f"{path} has no split {split!r}; it has {', '.join(loaded)}")
        loaded = loaded[split]
    for number, record in enumerate(loaded, start=1):
        yield f"{path}, row {number}", record


def _hub(source: str, split: str) -> _Records:
    import datasets

    dataset_id, _, configuration = source.partition(":")
    try:
        names = [configuration] if configuration else datasets.get_dataset_config_names(dataset_id)
        preferred = next((name for name in ("main", "default") if name in names), names[0] if len(names) == 1 else None)
        name = configuration or preferred
        if name is None:
            raise ConfigurationError(f"dataset {dataset_id} has several configurations; use tasks={dataset_id}:NAME with one of "
                                     f"{', '.join(names)}")  # fmt: skip
        loaded = datasets.load_dataset(dataset_id, name, split=split)
    except ConfigurationError:
        raise
    except Exception as error:  # the Hub client raises dozens of types, and none of them means anything else to a user
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigurationError(
            f"cannot load split {split!r} of dataset {dataset_id} from the Hub: {reason}; check the id, the network and the login"
        ) from None
    for number, record in enumerate(loaded, start=1):
        yield f"{source}, row {number}", record
