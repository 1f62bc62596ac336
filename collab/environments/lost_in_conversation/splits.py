"""Keeps what a model is trained on apart from what it is measured on.

The published evaluation problems are rows of benchmark *test* sets (math: GSM8K test, "sharded-GSM8K/237" is its row 237), while
the sharded training file numbers GSM8K *train* problems in the same style, so that an id says nothing about its origin. Three
gates, each sufficient for what it covers:

1. An instruction's split is part of its id, so no id can belong to both.
2. A problem that is known to be an evaluation problem cannot be loaded for training: GSM8K test questions by fingerprint
   (`collab.tasks.held_out`, hashes only), the other tasks by the prefix of their published ids.
3. `check_disjoint` compares whole collections by fingerprint, whatever their origin.
"""

from __future__ import annotations

from collections.abc import Iterable

from collab.environments.lost_in_conversation.schema import Instruction, Split, TaskKind
from collab.tasks.held_out import gsm8k_test_fingerprints
from simulators.errors import ConfigurationError

EVALUATION_PREFIXES: dict[TaskKind, tuple[str, ...]] = {
    TaskKind.CODE: ("sharded-HumanEval/", "sharded-lcb", "sharded-LCB", "sharded-livecodebench", "sharded-LiveCodeBench"),
    TaskKind.DATABASE: ("sharded-spider-val",),
    TaskKind.ACTIONS: ("sharded-BFCL/",),
    TaskKind.DATA2TEXT: ("sharded-totto_",),
    TaskKind.SUMMARY: ("sharded-summary_",),
}


def is_known_evaluation_problem(instruction: Instruction) -> bool:
    """True where the problem belongs to a published evaluation set, whatever split it was loaded for."""
    if instruction.kind is TaskKind.MATH:
        return instruction.fingerprint in gsm8k_test_fingerprints()
    return str(instruction.record.get("task_id", "")).startswith(EVALUATION_PREFIXES[instruction.kind])


def check_may_train(instruction: Instruction) -> None:
    """Refuse to train on an evaluation problem.

    Raises:
        ConfigurationError: when it is one.
    """
    if instruction.split is not Split.TRAIN:
        raise ConfigurationError(f"{instruction.id} was loaded for evaluation; load training problems with split=train")
    if is_known_evaluation_problem(instruction):
        raise ConfigurationError(
            f"{instruction.record.get('task_id')} ({instruction.full[:60]!r}) is a problem of the published evaluation set; it "
            "must not be trained on: use split=evaluation, or another file"
        )


def check_disjoint(training: Iterable[Instruction], evaluation: Iterable[Instruction]) -> None:
    """Refuse two collections that share a problem, by id or by the problem's own text.

    Raises:
        ConfigurationError: naming the first shared problem and how many there are.
    """
    held_out = {instruction.fingerprint: instruction for instruction in evaluation}
    ids = {instruction.id for instruction in held_out.values()}
    shared = [one for one in training if one.fingerprint in held_out or one.id in ids]
    if shared:
        raise ConfigurationError(
            f"{len(shared)} training problems are also evaluation problems, the first is {shared[0].id}; take them out of one "
            "of the two"
        )
