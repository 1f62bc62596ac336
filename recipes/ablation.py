"""The same replies under every reward mechanism: which replies does each prefer, and what comes of that? (Figures 4 and 6)

    collab ablation environment=math_chat limit=20 judge=llm judge.model=gpt-4o-mini
    collab train dpo data=outputs/ablation/math_chat/mechanisms/mr-window-2

Writes report.html, summary.json, the trees (with every reward on its reply) and, for each mechanism, the DPO pairs that its
rewards give, to train on. Kill it and start the same command again: answered model calls are read from the journal.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Any

from collab.data.candidate_note import candidate_note
from collab.data.export import export_datasets
from collab.data.views import PairSettings
from collab.evaluation.plots import rewards_by_window, window_ablation
from collab.evaluation.report import Report
from collab.evaluation.reward_ablation import (
    R_STAR,
    TOKENS,
    RatedReply,
    RatedTask,
    RewardAblation,
    mechanisms,
    outcomes_by_mechanism,
    pair_trees,
    rank_correlations,
    telling_pairs,
)
from collab.evaluation.statistics import MeanEstimate
from collab.evaluation.tables import Column, Row, Table
from collab.rewards.judge import helpfulness_judge
from collab.tasks.task import Task
from recipes.build import candidate_sources, print_skipped
from recipes.configuration.launch import launch
from recipes.configuration.schema import Ablation
from recipes.merge import keep_trees
from recipes.running import assembly
from recipes.running.replaying import Replayed, compared, task_of
from recipes.running.run import Run, open_run
from recipes.running.task_record import refuse_changed
from simulators.bounded_concurrency import each
from simulators.errors import ConfigurationError, TooManyFailures
from simulators.tree_file import read_trees
from simulators.whole_file import write_whole

_HIGHER_IS_WORSE = (TOKENS,)
_SHOWN_METRICS = 6


def run(config: Ablation) -> dict[str, Any]:
    """Rate the replies of every task and return the summary that is written to `summary.json`."""
    if not config.windows or any(window < 1 for window in config.windows):
        raise ConfigurationError(f"windows are {config.windows}; MR needs at least one of 1 turn or more")
    for name in ("num_samples", "outcome_samples"):
        if (count := getattr(config, name)) < 1:
            raise ConfigurationError(f"{name} is {count}; it must be at least 1")
    with open_run(config) as run:
        folder, loaded = run.path, assembly.tasks(config)
        print_skipped(loaded.skipped)
        refuse_changed(folder, loaded.tasks)
        rated = run.wait_for(_rate(config, loaded.tasks, run))
        run.log("ablation")
    if not any(task.replies for task in rated):
        reason = next((task.stopped for task in rated if task.stopped), "every reply failed")
        raise TooManyFailures(f"no task has a reply to rate: {reason}")
    keep_trees([task.tree for task in rated if task.replies], folder / "trees.jsonl")
    for name in mechanisms(rated):
        trees = pair_trees(rated, name)
        card = {**asdict(config), "mechanism": name}
        export_datasets(trees, folder / "mechanisms" / slug(name), pairs=PairSettings(config.min_gap), card=card)
    summary = summarize(rated)
    write_whole(folder / "summary.json", f"{json.dumps(summary, indent=1, ensure_ascii=False)}\n".encode())
    page = report(rated, summary, config).write(folder)
    print_outcomes(rated)
    print(f"report: {page}\nDPO pairs by mechanism: {folder / 'mechanisms'}")
    return summary


async def _rate(config: Ablation, tasks: Sequence[Task], run: Run) -> list[RatedTask]:
    ablation = _ablation(config, run)
    rated: dict[str, RatedTask] = {}

    async def rate(task: Task) -> None:
        rated[task.id] = await ablation.rate(task)

    with run.watch.tasks("tasks", len(tasks)) as advance:
        await each(tasks, rate, asyncio.Semaphore(config.max_open_tasks), advance)
    return [rated[task.id] for task in tasks]


async def replayed(config: Ablation, run: Run) -> AsyncIterator[Replayed]:
    """Yield every recorded tree of an ablation with the one that its journal gives (`collab replay`)."""
    ablation = _ablation(config, run)
    tasks = {task.id: task for task in assembly.tasks(config).tasks}
    for recorded in read_trees(run.path):
        yield compared(recorded, (await ablation.rate(task_of(recorded, tasks, run.path))).tree)


def _ablation(config: Ablation, run: Run) -> RewardAblation:
    environment = assembly.policy_environment(config, run.models)
    policy = assembly.policy(config.policy, run.models, environment)
    judge = environment.resources.judge_model
    ablation = RewardAblation(
        environment,
        policy,
        candidate_sources(config, run.models, environment, policy),
        sorted(config.windows),
        config.num_samples,
        config.outcome_samples,
        config.seed,
        helpfulness_judge(judge) if judge is not None else None,
        run.watch.observe,
    )
    if sum(source.count for source in ablation.sources) < 2:
        raise ConfigurationError("comparing rewards needs at least two replies a task; give more candidates")
    return ablation


def slug(name: str) -> str:
    """Return a mechanism's name as a folder's."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def summarize(rated: Sequence[RatedTask]) -> dict[str, Any]:
    """Return the figures of `summary.json`."""
    return {
        "tasks": sum(bool(task.replies) for task in rated),
        "replies": sum(len(task.replies) for task in rated),
        "tasks_without_replies": sum(not task.replies for task in rated),
        "outcomes": {name: _plain(metrics) for name, metrics in outcomes_by_mechanism(rated).items()},
        "rank_correlations": {name: _plain(others) for name, others in rank_correlations(rated).items()},
    }


def _plain(estimates: dict[str, MeanEstimate]) -> dict[str, Any]:
    return {name: asdict(estimate) for name, estimate in estimates.items()}


def report(rated: Sequence[RatedTask], summary: dict[str, Any], config: Ablation) -> Report:
    """Return the report: what followed from each mechanism's choices, how the mechanisms agree, and pairs like Figure 6."""
    outcomes = outcomes_by_mechanism(rated)
    page = Report("Reward ablation", f"{summary['replies']} replies to {summary['tasks']} openings under every reward mechanism.")
    page.add_heading("What follows from the replies that each mechanism prefers")
    page.add_text(
        "Measured on other conversations, played from each reply to their end: what chose a reply does not judge it. Where a "
        "mechanism cannot tell replies apart, the mean over them is taken. The paper's Figure 4 trains on each mechanism's "
        "choices; the pairs to do that with are in `mechanisms`."
    )
    page.add_table(outcome_table(outcomes))
    metrics = _shown(outcomes)
    page.add_figure(
        window_ablation({metric: {name: each.get(metric) for name, each in outcomes.items()} for metric in metrics}),
        "mechanisms",
        "Outcome of the preferred replies by reward mechanism (CollabLLM Figure 4)",
    )
    page.add_heading("How far the mechanisms agree")
    page.add_table(correlation_table(rank_correlations(rated)))
    pairs = telling_pairs(rated)
    if pairs:
        page.add_heading("Pairs that tell them apart")
        page.add_text("A is what the immediate reward prefers, or cannot tell from B; the largest window prefers B (Figure 6).")
    for number, (first, second) in enumerate(pairs, start=1):
        rewards = {"A": dict(first.rewards), "B": dict(second.rewards)}
        page.add_figure(rewards_by_window(rewards), f"pair-{number}", f"Rewards of two replies of task {first.task_id}")
        _add_replies(page, rated, first, second)
    page.set_provenance(asdict(config), {"run": config.seed})
    return page


def _add_replies(page: Report, rated: Sequence[RatedTask], first: RatedReply, second: RatedReply) -> None:
    tree = next(task.tree for task in rated if task.tree.task_id == first.task_id)
    nodes = {note.index: node.id for node in tree.nodes if (note := candidate_note(node)) is not None}
    for letter, reply in (("A", first), ("B", second)):
        page.add_transcript(tree.conversation(nodes[reply.index]), f"{letter} ({reply.source})")


def _shown(outcomes: dict[str, dict[str, MeanEstimate]]) -> list[str]:
    names = {metric for metrics in outcomes.values() for metric in metrics}
    rest = sorted(names - {R_STAR, TOKENS})
    return [name for name in (R_STAR, *rest, TOKENS) if name in names][:_SHOWN_METRICS]


def outcome_table(outcomes: dict[str, dict[str, MeanEstimate]]) -> Table:
    """Return one row a mechanism: the means over tasks of what followed."""
    metrics = _shown(outcomes)
    columns = [Column("preferred by")]
    for metric in metrics:
        columns.append(
            Column(metric, 1 if metric == TOKENS else 3, better="lower" if metric in _HIGHER_IS_WORSE else "higher")
        )  # fmt: skip
    first = next(iter(outcomes))
    rows = [
        Row((name, *(found.get(metric) for metric in metrics)), "baseline" if name == first else "ours")
        for name, found in outcomes.items()
    ]
    return Table("Outcome by reward mechanism", tuple(columns), tuple(rows), "Mean over tasks with its standard error.")


def correlation_table(correlations: dict[str, dict[str, MeanEstimate]]) -> Table:
    """Return the matrix of rank correlations."""
    names = list(correlations)
    columns = (Column("Kendall's tau-b"), *(Column(name, 2) for name in names))
    rows = [Row((name, *(correlations[name].get(other) for other in names))) for name in names]
    note = "Within tasks, mean over the tasks in which both sides tell replies apart. R* is what followed in other conversations."
    return Table("Rank correlations between mechanisms", columns, tuple(rows), note)


def print_outcomes(rated: Sequence[RatedTask]) -> None:
    """Print the outcome table and each mechanism's rank correlation with what followed."""
    from rich.console import Console
    from rich.table import Table as Printed

    outcomes, correlations = outcomes_by_mechanism(rated), rank_correlations(rated)
    metrics = _shown(outcomes)
    printed = Printed("preferred by", *metrics, f"tau with {R_STAR}")
    for name, found in outcomes.items():
        tau = correlations.get(name, {}).get(R_STAR)
        cells = [f"{found[metric].mean:.3f}" if metric in found else "-" for metric in metrics]
        printed.add_row(name, *cells, "-" if tau is None else f"{tau.mean:+.2f}")
    Console().print(printed)


def main() -> None:
    """Start the recipe from the command line."""
    launch(Ablation, run)


if __name__ == "__main__":
    main()
