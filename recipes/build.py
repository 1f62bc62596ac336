"""Build an MR-ranked dataset: tasks -> conversation trees -> SFT and DPO rows (CollabLLM Appendix B.1).

    collab build environment=errands candidates=stems
    collab build environment=math_chat tasks=problems.jsonl limit=20
    collab build --multirun environment=math_chat shard.count=2 shard.index=0,1 hydra/launcher=joblib
    collab merge output_dir=outputs/build/math_chat

Kill it and start the same command again: finished tasks are kept, answered model calls are read from the journal. A task that
stopped because calls failed is not finished: what it has is exported, and the next start tries it again. Start it with other
thresholds, splits or layouts to write the datasets again from the same trees.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from collab.data.builder import CandidateSource, DatasetBuilder
from collab.data.critical_path import critical_path_s
from collab.data.export import DatasetStatistics, as_plain
from collab.data.hub import push_dataset
from collab.data.tree_set import TreeSet
from collab.environments.domain import Environment
from collab.mr import MultiturnReward
from collab.tasks.task import Task
from recipes.configuration.group_schema import Candidate
from recipes.configuration.launch import launch
from recipes.configuration.schema import Ablation, Build
from recipes.running import assembly, held_out, shards
from recipes.running.datasets import licence, write_datasets
from recipes.running.models import Models
from recipes.running.replaying import Replayed, compared, task_of
from recipes.running.run import Run, open_run
from recipes.running.task_record import refuse_changed
from simulators.adaptive_sampling import AdaptiveSampling
from simulators.bounded_concurrency import each
from simulators.conversation import ConversationTree
from simulators.errors import ConfigurationError, TooManyFailures
from simulators.journal import Journal
from simulators.policy import Policy
from simulators.tree_file import TreeFile, read_trees

_SHOWN = 20
"""How many skipped records are printed; the manifest has all of them."""


def run(config: Build) -> DatasetStatistics:
    """Build the dataset (or the shard of one) of a configuration and return its statistics."""
    config = shards.own_configuration(config)
    with open_run(config) as run:
        loaded = assembly.tasks(config)
        print_skipped(loaded.skipped)
        tasks, source_licence = shards.part_of(loaded.tasks, config.shard), licence(config)
        held_out.announce(tasks, config)
        refuse_changed(run.path, tasks)
        finished, stopped = shards.open_trees(run.path)
        try:
            work = Work(finished, stopped)
            run.wait_for(_build(config, tasks, work, run))
            trees = TreeSet([finished, stopped], only={task.id for task in tasks})
            figures = write_datasets(config, trees, run.path / "dataset", source_licence)
        finally:
            shards.close_trees(finished, stopped)
        shards.write_manifest(run.path, tasks, source_licence, loaded.skipped)
        speed = run.watch.speed(work.chain_s, config.engine)
        run.log("build", **as_plain(figures), skipped_records=len(loaded.skipped), speed=speed)
    print_summary(run.path, figures, run.journal)
    if work.reasons:
        problem = f"{len(work.reasons)} of {len(tasks)} tasks stopped early; the first at {work.reasons[0]}"
        if not figures.conversations:
            raise TooManyFailures(problem)
        print(f"{problem}; start the same command again to try them again")
    if config.push_to is not None:
        print(f"pushed to {push_dataset(run.path / 'dataset', config.push_to, private=config.push_private)}")
    return figures


@dataclass(slots=True)
class Work:
    """The trees of a build as they come: those of finished tasks, those of tasks that stopped early, and why they did.

    `chain_s` is the longest chain of calls behind one of them, in seconds.
    """

    finished: TreeFile
    stopped: TreeFile
    reasons: list[str] = field(default_factory=list)
    chain_s: float = 0.0

    def add(self, tree: ConversationTree) -> None:
        """Store a tree."""
        self.chain_s = max(self.chain_s, critical_path_s(tree))
        if (reason := tree.metadata.get("stopped")) is not None:
            self.reasons.append(str(reason))
        (self.finished if reason is None else self.stopped).append(tree)


async def _build(config: Build, tasks: Sequence[Task], work: Work, run: Run) -> None:
    """Build the tree of every task that is not finished yet, `max_open_tasks` at a time."""
    builder = dataset_builder(config, run)

    async def build(task: Task) -> None:
        if task.id not in work.finished:
            work.add(await builder.build(task))

    with run.watch.tasks("tasks", len(tasks)) as advance:
        await each(tasks, build, asyncio.Semaphore(config.max_open_tasks), advance)


async def replayed(config: Build, run: Run) -> AsyncIterator[Replayed]:
    """Yield every recorded tree of a build with the one that its journal gives (`collab replay`)."""
    builder = dataset_builder(config, run)
    tasks = {task.id: task for task in assembly.tasks(config).tasks}
    for recorded in read_trees(run.path):
        yield compared(recorded, await builder.build(task_of(recorded, tasks, run.path)))


def dataset_builder(config: Build, run: Run) -> DatasetBuilder:
    """Return the builder of a configuration.

    Raises:
        ConfigurationError: for a window below 0, no samples, or fewer than two candidates a turn.
    """
    environment = assembly.policy_environment(config, run.models)
    policy = assembly.policy(config.policy, run.models, environment)
    sampling = config.forward_sampling
    try:
        reward = MultiturnReward(environment, policy, sampling.window_turns, sampling.num_samples, config.seed, run.watch.observe)
        adaptive = None
        if sampling.max_samples is not None:
            adaptive = AdaptiveSampling(sampling.num_samples, sampling.max_samples, sampling.confidence)
    except ValueError as error:
        raise ConfigurationError(f"forward_sampling: {error}") from None
    sources = candidate_sources(config, run.models, environment, policy)
    return DatasetBuilder(
        environment, reward, sources, config.seed, config.max_turns, config.max_conversation_tokens, adaptive
    )  # fmt: skip


def candidate_sources(
    config: Build | Ablation, models: Models, environment: Environment, policy: Policy
) -> list[CandidateSource]:
    """Return where the candidates of a turn come from.

    Raises:
        ConfigurationError: naming the entry that cannot be used.
    """
    return [
        source
        for name, entry in config.candidates.items()
        for source in _sources(name, entry, config, policy, models, environment)
    ]


def _sources(
    name: str, entry: Candidate, config: Build | Ablation, policy: Policy, models: Models, environment: Environment
) -> list[CandidateSource]:
    """Return the sources of one entry of `candidates`: its count is dealt out over its reply prefixes in turn."""
    if entry.count < 0:
        raise ConfigurationError(f"candidates.{name}.count is {entry.count}; it must not be negative")
    own = config.policy
    if entry.policy:
        own = assembly.overridden(config.policy, entry.policy, f"candidates.{name}.policy")
        policy = assembly.policy(own, models, environment)
    changes = {key: value for key in ("temperature", "max_tokens", "stop") if (value := getattr(entry, key)) is not None}
    sampling = replace(own.sampling, include_stop=entry.include_stop or own.sampling.include_stop, **changes).settings()
    prompt = assembly.system_prompt(entry.prompt, environment) if entry.prompt is not None else policy.system_prompt
    prefixes = entry.reply_prefixes or [""]
    counts = [len(range(start, entry.count, len(prefixes))) for start in range(len(prefixes))]
    return [
        CandidateSource(Policy(policy.model, sampling, prompt, prefix, name), count)
        for prefix, count in zip(prefixes, counts, strict=True)
        if count
    ]


def print_skipped(skipped: Sequence[str]) -> None:
    """Print which records were skipped, and why."""
    for problem in skipped[:_SHOWN]:
        print(f"skipped: {problem}")
    if len(skipped) > _SHOWN:
        print(f"skipped: {len(skipped) - _SHOWN} more records, all listed in {shards.MANIFEST}")


def print_summary(folder: Path, figures: DatasetStatistics, journal: Journal) -> None:
    """Print what was built, and how many model calls it took and saved; first of all what not to trust."""
    for warning in figures.warnings:
        print(f"warning: {warning}")
    made = sum(counts.made for counts in journal.counts.values())
    reused = sum(counts.reused for counts in journal.counts.values())
    print(f"{figures.conversations} conversations, {figures.turns} turns, {figures.pairs} pairs -> {folder / 'dataset'}")
    print(f"futures: {figures.futures} sampled, {figures.failed_futures} failed")
    shared = sum(counts.shared for counts in journal.counts.values())
    more = f", {shared} shared with one of those" if shared else ""
    print(f"model calls: {made} made, {reused} read from the journal{more}")


def main() -> None:
    """Start the recipe from the command line."""
    launch(Build, run)


if __name__ == "__main__":
    main()
