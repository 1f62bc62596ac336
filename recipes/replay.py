"""Reproduce a recorded build or evaluation from its journal, with zero model calls, and compare the trees: `collab replay RUN`.

No model is loaded: the journal holds every reply, `models.json` the names that the replies are filed under. Rewards are computed
afresh, so a replay also shows whether a verifier still judges as it did.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from collab.evaluation.run import evaluated_tree
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
    """Replay a run and return whether every tree came out as recorded."""
    if not (folder / "config.yaml").is_file():
        raise ConfigurationError(
            f"{folder} holds no run: it has no config.yaml; give the output folder of a build or an evaluation"
        )
    config = OmegaConf.load(folder / "config.yaml")
    different: list[str] = []
    with assembly.open_journal(folder, replay=True) as journal:
        models = assembly.Models(journal)
        replayed = asyncio.run(_replay(config, folder, models, Watch(journal, Budget(), config.max_failure_share)))
        for recorded, tree in replayed:
            if recorded.fingerprint() != tree.fingerprint():
                different.append(tree.task_id)
        reused = sum(counts.reused for counts in journal.counts.values())
        made = sum(counts.made for counts in journal.counts.values())
    print(f"{len(replayed)} trees replayed: {reused} calls from the journal, {made} made")
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
            pairs.append((recorded, await builder.build(tasks[recorded.task_id])))
        return pairs
    for part in parts(config):
        environment = environment_of(config, part, models)
        policy = policy_of(part, models, environment)
        tasks = {task.id: task for task in assembly.tasks(part.config).tasks}
        for recorded in _recorded(folder / part.path):
            task = tasks[recorded.task_id]
            tree = await evaluated_tree(policy, environment, task, config.runs, part.seed, score_turns=config.score_turns)
            pairs.append((recorded, tree))
    return pairs


def _recorded(folder: Path) -> Iterator[ConversationTree]:
    return read_trees(folder) if (folder / "trees.jsonl").is_file() else iter(())


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
