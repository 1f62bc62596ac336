"""A file of rendered conversations for a person to read, each checked against its source problem.

    python -m collab.environments.evolving_intent.preview SOURCE [SOURCE ...] --out preview.md --count 200 --seed 0

A source is whatever the task loader takes: a file of GSM8K records, or a Hub id.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from collab.environments.evolving_intent.conversion import conversion_from_record
from collab.environments.evolving_intent.gsm8k.domain import domain
from collab.environments.evolving_intent.reader import meaning_kept
from collab.environments.evolving_intent.verification import reading_violations
from collab.environments.loading import load_tasks
from collab.tasks.task import Task
from simulators.errors import CollabError

LENGTHS = (7, 4)


def sample_tasks(by_length: Mapping[int, Sequence[Task]], count: int, seed: int) -> list[Task]:
    """Draw `count` tasks, an equal share of each length, no problem twice."""
    rng = random.Random(seed)
    waiting = {length: rng.sample(list(tasks), len(tasks)) for length, tasks in by_length.items()}
    taken: set[str] = set()
    sample: list[Task] = []
    lengths = list(by_length)
    while len(sample) < count and any(waiting.values()):
        queue = waiting[lengths[len(sample) % len(lengths)]] or next(tasks for tasks in waiting.values() if tasks)
        task = queue.pop()
        if task.id not in taken:
            taken.add(task.id)
            sample.append(task)
    return sample


def faults_of(task: Task) -> list[str]:
    """Return how a conversation's end differs from its source problem, by its words and to a perfect listener; [] if not."""
    conversion = conversion_from_record(task.metadata["conversion"])
    messages = task.metadata["evolving"]["messages"]
    found = reading_violations(messages, conversion)
    return found if meaning_kept(conversion, messages) else [*found, "a perfect listener does not end in the source problem"]


def as_markdown(tasks: Sequence[Task]) -> str:
    """Return the conversations as a page to read: the source, every turn with its kind and target, and the check's verdict."""
    pages = ["# Evolving-intent conversations\n"]
    for number, task in enumerate(tasks, start=1):
        record = task.metadata["evolving"]
        turns = zip(record["messages"], record["kinds"], record["targets"], strict=True)
        lines = [f"{turn}. *{kind}* {text} `{target['answer']}`" for turn, (text, kind, target) in enumerate(turns, start=1)]
        verdict = "; ".join(faults_of(task)) or "ends in the source problem"
        pages += [f"## {number}. {task.id}\n", f"Source: {task.goal} **{task.reference}**\n", *lines, f"\nCheck: {verdict}\n"]
    return "\n".join(pages)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file; return 1 when a conversation fails its check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", metavar="SOURCE")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        by_length: dict[int, list[Task]] = {}
        for length in LENGTHS:
            for source in options.sources:
                loaded = load_tasks(source, domain(turns=length, seed=options.seed), on_bad_record="skip").tasks
                name = Path(source).stem
                by_length.setdefault(length, []).extend(replace(task, id=f"{name}/{task.id}") for task in loaded)
        tasks = sample_tasks(by_length, options.count, options.seed)
        options.out.write_text(as_markdown(tasks), encoding="utf-8")
    except (CollabError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    broken = sum(bool(faults_of(task)) for task in tasks)
    print(f"{len(tasks)} conversations in {options.out}; {broken} of them do not end in their source problem")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
