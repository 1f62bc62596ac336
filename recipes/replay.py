"""Reproduce a recorded build or evaluation from its journal, with zero model calls, and compare the trees: `collab replay RUN`.

No model is loaded: the journal holds every reply, `models.json` the names that the replies are filed under. A call that failed
fails again, in the words on record. Rewards are computed afresh, so a replay also shows whether a verifier still judges as it
did.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from collab.evaluation.run import evaluated_tree
from collab.tasks.task import Task
from recipes import assembly, build
from recipes.evaluate import environment_of, policy_of
from recipes.evaluation_plan import parts
from recipes.launch import fail, run_guarded
from recipes.progress import Watch
from simulators.budget import Budget
from simulators.conversation import ConversationTree
from simulators.errors import ConfigurationError
from simulators.tree_file import read_trees


def run(folder: Path) -> bool:
    """Replay a run and return whether every tree came out as recorded.

    Raises:
        ConfigurationError: the folder holds no run, or one that finished no task.
        ReplayMiss: the journal lacks a call.
    """
    if not (folder / "config.yaml").is_file():
        raise ConfigurationError(
            f"{folder} holds no run: it has no config.yaml; give the output folder of a build or an evaluation"
        )
    config = OmegaConf.load(folder / "config.yaml")
    if "windows" in config or not {"candidates", "policies"} & config.keys():
        raise ConfigurationError(f"{folder} is neither a build nor an evaluation, and only those can be replayed")
    config.limit = None  # it may have been lowered since
    different: list[str] = []
    with assembly.open_journal(folder, replay=True) as journal:
        models = assembly.Models(journal)
        watch = Watch(journal, Budget(), max_failure_share=1.0)  # what failed is on record, and must come again
        replayed = asyncio.run(_replay(config, folder, models, watch))
        if not replayed:
            raise ConfigurationError(f"{folder} has no finished task to replay; start its command again, and replay it then")
        for recorded, tree in replayed:
            if recorded.fingerprint() != tree.fingerprint():
                different.append(tree.task_id)
        reused = sum(counts.reused for counts in journal.counts.values())
        made = sum(counts.made for counts in journal.counts.values())
        failed = sum(counts.failed for counts in journal.counts.values())
    failures = f", {failed} failed as recorded" if failed else ""
    print(f"{len(replayed)} trees replayed: {reused} calls from the journal{failures}, {made} made")
    if different:
        print(f"{len(different)} differ from the record: {', '.join(different[:5])}")
    else:
        print("every tree is as recorded")
    return not different


async def _replay(
    config: Any, folder: Path, models: assembly.Models, watch: Watch
) -> list[tuple[ConversationTree, ConversationTree]]:
    """Return pairs of the recorded and the replayed tree, of the tasks that the run finished."""
    pairs = []
    if "candidates" in config:
        environment = assembly.environment(config, models)
        tasks = {task.id: task for task in assembly.tasks(config).tasks}
        builder = build.dataset_builder(config, models, environment, watch)
        for recorded in read_trees(folder):
            pairs.append((recorded, await builder.build(_task_of(recorded, tasks, folder))))
        return pairs
    for part in parts(config):
        environment = environment_of(config, part, models)
        policy = policy_of(part, models, environment)
        tasks = {task.id: task for task in assembly.tasks(part.config).tasks}
        for recorded in _recorded(folder / part.path):
            task = _task_of(recorded, tasks, folder)
            tree = await evaluated_tree(policy, environment, task, config.runs, part.seed, score_turns=config.score_turns)
            pairs.append((recorded, tree))
    return pairs


def _task_of(recorded: ConversationTree, tasks: Mapping[str, Task], folder: Path) -> Task:
    if recorded.task_id not in tasks:
        raise ConfigurationError(f"{folder} is about task {recorded.task_id}, which its task file does not hold any more")
    return tasks[recorded.task_id]


def _recorded(folder: Path) -> Iterator[ConversationTree]:
    """Yield the trees of finished tasks, then those of tasks that a failure spoilt."""
    for name in ("trees.jsonl", "stopped.jsonl"):
        if (folder / name).is_file():
            yield from read_trees(folder / name)


def main() -> None:
    """Start the recipe from the command line; exit with 1 where a tree differs."""
    arguments = sys.argv[1:]
    if len(arguments) != 1 or arguments[0].startswith("-"):
        fail("usage: collab replay RUN, RUN being the output folder of a build or an evaluation", status=2)
    outcome: list[bool] = []
    run_guarded(lambda: outcome.append(run(Path(arguments[0]))))
    sys.exit(0 if outcome and outcome[0] else 1)


if __name__ == "__main__":
    main()
