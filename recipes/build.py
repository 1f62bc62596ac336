"""Build an MR-ranked dataset: tasks -> conversation trees -> SFT and DPO rows (CollabLLM Appendix B.1).

    collab build environment=errands candidates=stems
    collab build environment=math_chat tasks=problems.jsonl limit=20

Kill it and start the same command again: finished tasks are kept, answered model calls are read from the journal. A task that
stopped because calls failed is not finished: what it has is exported, and the next start tries it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from collab.data.builder import CandidateSource, DatasetBuilder
from collab.data.critical_path import critical_path_s
from collab.data.export import DatasetStatistics, as_plain, export_datasets
from collab.data.views import PairSettings
from collab.environments.domain import Environment
from collab.mr import MultiturnReward
from collab.tasks.task import Task
from recipes import assembly
from recipes.assembly import as_object
from recipes.launch import launch
from recipes.progress import Watch
from recipes.run_folder import RunFolder
from simulators.conversation import ConversationTree
from simulators.errors import ConfigurationError, TooManyFailures
from simulators.journal import Journal
from simulators.policy import Policy
from simulators.tree_file import TreeFile


def run(config: Any) -> DatasetStatistics:
    """Build the dataset of one configuration and return its statistics."""
    folder = RunFolder(config)
    loaded = assembly.tasks(config)
    for problem in loaded.skipped:
        print(f"skipped: {problem}")
    with assembly.open_journal(folder.path) as journal:
        trees = TreeFile(folder.path / "trees.jsonl")
        try:
            watch = Watch(journal, spending := assembly.budget(config, journal), config.max_failure_share)
            stopped = asyncio.run(_build(config, loaded.tasks, trees, assembly.Models(journal, spending), watch))
            by_task = [stopped[task.id] if task.id in stopped else trees.read(task.id) for task in loaded.tasks]
        finally:
            trees.close()
        figures = export_datasets(
            by_task,
            folder.path / "dataset",
            pairs=PairSettings(config.min_gap, config.min_chosen_mr, config.pairs_per_turn),
            min_chosen_mr=config.min_chosen_mr,
            card=OmegaConf.to_container(config, resolve=True),  # type: ignore[arg-type]
        )
        folder.log_metrics(
            "build",
            **as_plain(figures),
            skipped_records=len(loaded.skipped),
            outcomes=watch.outcomes(),
            calls=journal.summary(),
            speed=watch.speed(max((critical_path_s(tree) for tree in by_task), default=0.0), as_object(config.engine)),
        )
    print_summary(folder.path, figures, journal)
    if stopped:
        reason = next(iter(stopped.values())).metadata["stopped"]
        problem = f"{len(stopped)} of {len(loaded.tasks)} tasks stopped early; the first at {reason}"
        if not figures.conversations:
            raise TooManyFailures(problem)
        print(f"{problem}; start the same command again to try them again")
    return figures


async def _build(
    config: Any, tasks: Sequence[Task], trees: TreeFile, models: assembly.Models, watch: Watch
) -> dict[str, ConversationTree]:
    """Build the tree of every task that `trees` does not hold yet; return those that stopped early, by task."""
    stopped: dict[str, ConversationTree] = {}
    try:
        environment = assembly.environment(config, models)
        builder = dataset_builder(config, models, environment, watch)
        limit = asyncio.Semaphore(config.max_open_tasks)

        async def one(task: Task) -> None:
            if task.id not in trees:
                async with limit:
                    tree = await builder.build(task)
                    if "stopped" in tree.metadata:
                        stopped[task.id] = tree
                    else:
                        trees.append(tree)
            advance()

        with watch.tasks("tasks", len(tasks)) as advance:
            async with asyncio.TaskGroup() as group:
                for task in tasks:
                    group.create_task(one(task))
        return stopped
    finally:
        await models.aclose()


def dataset_builder(config: Any, models: assembly.Models, environment: Environment, watch: Watch) -> DatasetBuilder:
    """Return the builder of a configuration.

    Raises:
        ConfigurationError: for a window below 0, no samples, or fewer than two candidates a turn.
    """
    policy = assembly.policy(config.policy, models, environment)
    try:
        reward = MultiturnReward(
            environment,
            policy,
            config.forward_sampling.window_turns,
            config.forward_sampling.num_samples,
            config.seed,
            watch.observe,
        )
    except ValueError as error:
        raise ConfigurationError(f"forward_sampling: {error}") from None
    sources = [
        source for name, entry in config.candidates.items() for source in _sources(str(name), entry, config, policy, environment)
    ]
    return DatasetBuilder(environment, reward, sources, config.seed, config.max_turns)


def _sources(name: str, entry: Any, config: Any, policy: Policy, environment: Environment) -> list[CandidateSource]:
    """Return the sources of one entry of `candidates`: its count is dealt out over its reply prefixes in turn."""
    settings = {**OmegaConf.to_container(config.policy.sampling), "include_stop": entry.include_stop}  # type: ignore[dict-item]
    for key in ("temperature", "max_tokens", "stop"):
        if entry[key] is not None:
            settings[key] = entry[key]
    prompt = assembly.system_prompt(entry.prompt, environment) if entry.prompt is not None else policy.system_prompt
    sampling = assembly.sampling(OmegaConf.create(settings))
    prefixes = list(entry.reply_prefixes) or [""]
    counts = [len(range(start, entry.count, len(prefixes))) for start in range(len(prefixes))]
    return [
        CandidateSource(Policy(policy.model, sampling, prompt, prefix, name), count)
        for prefix, count in zip(prefixes, counts, strict=True)
        if count
    ]


def print_summary(folder: Path, figures: DatasetStatistics, journal: Journal) -> None:
    """Print what was built, and how many model calls it took and saved."""
    made = sum(counts.made for counts in journal.counts.values())
    reused = sum(counts.reused for counts in journal.counts.values())
    print(f"{figures.conversations} conversations, {figures.turns} turns, {figures.pairs} pairs -> {folder / 'dataset'}")
    print(f"futures: {figures.futures} sampled, {figures.failed_futures} failed")
    print(f"model calls: {made} made, {reused} read from the journal")


def main() -> None:
    """Start the recipe from the command line."""
    launch("build", run)


if __name__ == "__main__":
    main()
