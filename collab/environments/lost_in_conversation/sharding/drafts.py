"""From problems to sharded instructions: drafts, and the file in which a person has the last word.

drafts = [await draft(record) for record in records]            # by rules, or with a ModelSharder
drafts = await verify(drafts, policy, folder)                   # collab.evaluation.lost_in_conversation.draft_verification
write_review(path, drafts)                                      # a person edits shards and sets "decision"
instructions = read_review(path, Split.TRAIN)                   # what was accepted, checked once more
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collab.environments.domain import BadRecord
from collab.environments.lost_in_conversation.schema import Instruction, Split, instruction_from_record
from collab.environments.lost_in_conversation.sharding.model_sharding import ModelSharder
from collab.environments.lost_in_conversation.sharding.properties import Finding, check, has_fault
from collab.environments.lost_in_conversation.sharding.rephrasing import rephrase
from collab.environments.lost_in_conversation.sharding.segmentation import NotShardable, segment
from collab.environments.lost_in_conversation.splits import check_may_train
from simulators.errors import ConfigurationError
from simulators.whole_file import write_whole

DECISIONS = ("accept", "reject")


@dataclass(frozen=True, slots=True)
class Draft:
    """One problem on its way to being sharded. `rejected` says why it was given up; `verified` are mean scores (0..100) by
    simulation, once there are any."""

    record: Mapping[str, Any]
    original: str
    segments: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    verified: Mapping[str, float] | None = None
    rejected: str | None = None


async def draft(record: Mapping[str, Any], sharder: ModelSharder | None = None) -> Draft:
    """Shard one record (the published schema without `shards`), by rules or with a model.

    Raises:
        BadRecord: the record lacks a field of its task.
        ChatModelError: as the model does.
    """
    original = _unsharded(record).full
    try:
        if sharder is None:
            pieces = segment(original)
            shards = rephrase(pieces)
        else:
            pieces = await sharder.segment(original)
            shards = await sharder.rephrase(original, pieces)
    except NotShardable as error:
        return Draft(record, original, rejected=str(error))
    findings = check(original, shards)
    made = Draft(record, original, (pieces.intent, *pieces.facts), shards, findings)
    if has_fault(findings):
        return replace(made, rejected=str(next(finding for finding in findings if finding.severity == "fault")))
    return made


def instruction_of(draft: Draft, split: Split) -> Instruction:
    """Return a draft as an instruction.

    Raises:
        BadRecord: it has no shards.
    """
    shards = [{"shard_id": number, "shard": text} for number, text in enumerate(draft.shards, start=1)]
    return instruction_from_record({**draft.record, "shards": shards}, split)


def write_review(path: Path, drafts: Sequence[Draft]) -> None:
    """Write the review file: JSON that a person reads and edits. Shards may be changed, merged, split and reordered.

    Raises:
        StorageError: when the disk refuses.
    """
    entries = [
        {
            "decision": "reject" if draft.rejected else "",
            "rejected": draft.rejected,
            "original": draft.original,
            "shards": list(draft.shards),
            "findings": [str(finding) for finding in draft.findings],
            "verified": dict(draft.verified or {}),
            "segments": list(draft.segments),
            "record": dict(draft.record),
        }
        for draft in drafts
    ]
    guide = f"Set every decision to one of {', '.join(DECISIONS)}. Edit shards freely; the first is the intent."
    write_whole(path, json.dumps({"guide": guide, "drafts": entries}, ensure_ascii=False, indent=2).encode())


def read_review(path: Path, split: Split) -> list[Instruction]:
    """Return the accepted instructions of a review file, after checking the edited shards once more.

    Raises:
        ConfigurationError: no such file, no JSON, undecided drafts, a fault in an accepted draft, or (for training) an
            evaluation problem.
    """
    try:
        entries = [dict(entry) for entry in json.loads(path.read_text("utf-8"))["drafts"]]
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}; name a review file") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigurationError(f"{path} is not a review file (JSON with a list 'drafts'); restore it") from None
    undecided = [number for number, entry in enumerate(entries, start=1) if entry.get("decision") not in DECISIONS]
    if undecided:
        raise ConfigurationError(
            f"{path}: {len(undecided)} drafts have no decision, the first is number {undecided[0]}; set it to accept or reject"
        )
    accepted = []
    for number, entry in enumerate(entries, start=1):
        if entry["decision"] == "reject":
            continue
        try:
            findings = check(entry["original"], entry["shards"])
            instruction = instruction_of(Draft(entry["record"], entry["original"], shards=tuple(entry["shards"])), split)
        except (BadRecord, KeyError, TypeError) as error:
            raise ConfigurationError(f"{path}, draft {number}: {error}; mend it or reject it") from None
        if (fault := next((finding for finding in findings if finding.severity == "fault"), None)) is not None:
            raise ConfigurationError(f"{path}, draft {number} is accepted but has a {fault}; mend its shards or reject it")
        if split is Split.TRAIN:
            check_may_train(instruction)
        accepted.append(instruction)
    return accepted


def save_instructions(path: Path, instructions: Sequence[Instruction]) -> None:
    """Write instructions as JSON lines in the published schema, readable by `load_instructions`.

    Raises:
        StorageError: when the disk refuses.
    """
    lines = "".join(json.dumps(dict(instruction.record), ensure_ascii=False) + "\n" for instruction in instructions)
    write_whole(path, lines.encode("utf-8", "surrogatepass"))


def _unsharded(record: Mapping[str, Any]) -> Instruction:
    return instruction_from_record({**record, "shards": [{"shard_id": 1, "shard": "?"}]}, Split.EVALUATION)
