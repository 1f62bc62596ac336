"""Reads files of instructions: JSON lines or one JSON list, records of any of the six tasks.

One bad record does not spoil a file silently, nor stop it: it is reported with the file and the line, and the caller decides
(`strict`, the default, raises).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collab.environments.domain import BadRecord
from collab.environments.lost_in_conversation.schema import Instruction, Split, instruction_from_record
from collab.environments.lost_in_conversation.splits import check_may_train
from simulators.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """What a file holds: its instructions (ids are unique), how many rows were exact repeats, and what is wrong with the rest."""

    path: Path
    instructions: tuple[Instruction, ...]
    rows: int
    repeats: int
    problems: tuple[str, ...] = ()

    @property
    def distinct_problems(self) -> int:
        """The number of different problems; a training file may cut one problem in many ways."""
        return len({instruction.fingerprint for instruction in self.instructions})


def load_instructions(path: Path, split: Split | str, *, strict: bool = True) -> LoadedFile:
    """Read all instructions of a file; where records have a field `split`, those of train or of test.

    In a training file a problem may be cut in several ways; exact repeats of a cut are loaded once and counted. The published
    evaluation problems are refused for training (`splits`).

    Raises:
        ConfigurationError: the file is absent, unreadable or holds no record; two evaluation records share an id; an
            evaluation problem would be trained on.
        BadRecord: with `strict`, at the first bad record; the text says where it stands.
    """
    split = Split(split)
    own = "train" if split is Split.TRAIN else "test"
    instructions: dict[str, Instruction] = {}
    problems: list[str] = []
    rows = repeats = 0
    for where, record in _records(path):
        if isinstance(record, Mapping) and record.get("split", own) != own:
            continue
        rows += 1
        try:
            if isinstance(record, BadRecord):
                raise record
            instruction = instruction_from_record(record, split, default_id=f"{path.stem}/{rows}")
        except BadRecord as error:
            if strict:
                raise BadRecord(f"{where}: {error}") from None
            problems.append(f"{where}: {error}")
            continue
        if split is Split.TRAIN:
            check_may_train(instruction)
        known = instructions.setdefault(instruction.id, instruction)
        if known is not instruction:
            if known.shard_texts != instruction.shard_texts or known.fingerprint != instruction.fingerprint:
                raise ConfigurationError(f"{where}: id {instruction.id} stands for two different records; rename one of them")
            repeats += 1
    if not rows:
        raise ConfigurationError(f"{path} holds no records")
    return LoadedFile(path, tuple(instructions.values()), rows, repeats, tuple(problems))


def one_cut_a_problem(instructions: Iterable[Instruction]) -> list[Instruction]:
    """Keep the first cut of each problem, so that no problem weighs more than another in training.

    In the published training file one single problem makes up 263 of 698 rows.
    """
    first: dict[str, Instruction] = {}
    for instruction in instructions:
        first.setdefault(instruction.fingerprint, instruction)
    return list(first.values())


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (where, record) for each row; a row that is no JSON object is yielded as the `BadRecord` it is."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}; name a file of sharded instructions") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    if text.lstrip().startswith("["):
        yield from _list_records(path, text)
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield f"{path}, line {number}", _parsed(line)


def _list_records(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    """Yield the entries of one JSON list with the line each starts on."""
    decoder = json.JSONDecoder()
    position = text.index("[") + 1
    line, counted, number = 1, 0, 0
    while True:
        while position < len(text) and text[position] in " \t\r\n,":
            position += 1
        if position >= len(text):
            raise ConfigurationError(f"{path} ends in the middle of its list; the file is cut short")
        if text[position] == "]":
            return
        line, counted, number = line + text.count("\n", counted, position), position, number + 1
        where = f"{path}, line {line} (record {number})"
        try:
            record, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"{where}: not valid JSON ({error}); nothing after it can be read") from None
        yield where, record if isinstance(record, dict) else BadRecord("is not a JSON object")


def _parsed(line: str) -> Any:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadRecord(f"not valid JSON ({error})")
    return record if isinstance(record, dict) else BadRecord("is not a JSON object")
