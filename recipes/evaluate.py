"""Play whole conversations of several policies over held-out tasks and compare them, task by task.

    collab evaluate environment=errands policies.sft.adapter=outputs/sft/adapter
    collab evaluate environments.math_chat.limit=50 environments.abg_coqa.limit=50 seeds=[0,1]
    collab evaluate user=role_play user.model=gpt-4o-mini users.terse.persona='in a hurry' users.chatty.persona='talks a lot'

Every policy meets the same users on the same tasks, in every environment, with every user and under every seed. Writes
report.html and report.md, conversations.parquet (one row a conversation) and the trees. Kill it and start the same command again
to go on; policies, environments, users and seeds can be added in the same folder.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from collab.environments.domain import Environment
from collab.evaluation.comparison import Cell, compare, figures
from collab.evaluation.conversation_rows import write_conversations
from collab.evaluation.evaluation_report import Transcript, add_evaluation
from collab.evaluation.evaluation_tables import groups
from collab.evaluation.report import Report
from collab.evaluation.run import (
    EvaluatedConversation,
    evaluate,
    evaluated_conversations,
    evaluated_tree,
    refuse_other_weights,
    task_score_of,
)
from collab.evaluation.statistics import Interval, PairedDifference
from collab.tasks.task import Task
from recipes.configuration.launch import launch
from recipes.configuration.schema import Evaluate
from recipes.running import assembly, shards
from recipes.running.evaluation_plan import SERVED, Part, parts
from recipes.running.models import Models
from recipes.running.part_trees import part_trees
from recipes.running.replaying import Replayed, compared, recorded_trees, task_of
from recipes.running.run import Run, open_run
from recipes.running.task_record import refuse_changed
from simulators.conversation import Conversation
from simulators.policy import Policy


def run(config: Evaluate) -> list[Cell]:
    """Evaluate every policy of a configuration, write tables and report, and return the cells of the table."""
    started = time.monotonic()
    planned = parts(config)
    for part in planned:
        part.refuse_other(Path(config.output_dir))
    tasks = _tasks(planned)
    with open_run(config) as run:
        for environment, own in tasks.items():
            refuse_changed(run.path, own, environment)
        for part in planned:
            part.claim(run.path)
        scores: dict[str, str | None] = {}
        for _, group in itertools.groupby(sorted(planned, key=_order(planned)), key=lambda part: part.models):
            own_run = run.with_models_of_its_own()
            own_run.wait_for(_play(config, list(group), tasks, own_run, scores))
        cells = _cells(planned, tasks, run.path, scores, config.runs)
        for cell in cells:
            names = {"policy": cell.policy, "environment": cell.environment, "user": cell.user}
            run.folder.log_metrics("evaluate", **names, **figures(cell))
        run.log("evaluate")
    print_tables(cells)
    write_conversations(cells, run.path / "conversations.parquet")
    print(f"report: {write_report(config, cells, time.monotonic() - started)}")
    return cells


async def replayed(config: Evaluate, run: Run) -> AsyncIterator[Replayed]:
    """Yield every recorded tree of an evaluation with the one that its journal gives (`collab replay`)."""
    for part in parts(config):
        environment = environment_of(config, part, run.models)
        policy = policy_of(part, run.models, environment)
        tasks = {task.id: task for task in assembly.tasks(part.config).tasks}
        for recorded in recorded_trees(run.path / part.path):
            task = task_of(recorded, tasks, run.path)
            again = await evaluated_tree(policy, environment, task, config.runs, part.seed, run.watch.observe, config.score_turns)
            yield compared(recorded, again)


def _order(planned: Sequence[Part]) -> Any:
    """Return the key that puts parts with the same models next to each other, otherwise in their order."""
    first = {part.models: number for number, part in reversed(list(enumerate(planned)))}
    return lambda part: first[part.models]


def _tasks(planned: Sequence[Part]) -> dict[str, Sequence[Task]]:
    """Load the tasks of every environment."""
    tasks: dict[str, Sequence[Task]] = {}
    for part in planned:
        if part.environment not in tasks:
            loaded = assembly.tasks(part.config)
            for problem in loaded.skipped:
                print(f"skipped: {problem}")
            tasks[part.environment] = loaded.tasks
    return tasks


async def _play(
    config: Evaluate, planned: Sequence[Part], tasks: dict[str, Sequence[Task]], run: Run, scores: dict[str, str | None]
) -> None:
    """Play parts whose models are in memory together, all of them at once; note the task score of every environment."""
    limit = asyncio.Semaphore(config.max_open_tasks)
    with ExitStack() as stack:
        names = ", ".join(dict.fromkeys(part.policy for part in planned))
        advance = stack.enter_context(run.watch.tasks(names, sum(len(tasks[part.environment]) for part in planned)))
        async with asyncio.TaskGroup() as group:
            for part in planned:
                environment = environment_of(config, part, run.models)
                component = task_score_of(environment)
                scores[part.environment] = component.name if component else None
                policy = policy_of(part, run.models, environment)
                trees, stopped = shards.open_trees(run.path / part.path)
                stack.callback(shards.close_trees, trees, stopped)
                if part.models != SERVED:
                    refuse_other_weights(trees, policy)
                group.create_task(
                    evaluate(
                        policy,
                        environment,
                        tasks[part.environment],
                        trees,
                        stopped=stopped,
                        runs=config.runs,
                        seed=part.seed,
                        limit=limit,
                        on_task=advance,
                        observe=run.watch.observe,
                        score_turns=config.score_turns,
                    )
                )


def environment_of(config: Evaluate, part: Part, models: Models) -> Environment:
    """Return a part's environment. Whatever the policy, R* counts tokens with the tokenizer of the run's `policy`."""
    return assembly.policy_environment(replace(part.config, policy=config.policy), models)


def policy_of(part: Part, models: Models, environment: Environment) -> Policy:
    """Return a part's policy."""
    return assembly.policy(part.config.policy, models, environment, name=part.policy)


def _cells(
    planned: Sequence[Part], tasks: dict[str, Sequence[Task]], folder: Path, scores: dict[str, str | None], runs: int
) -> list[Cell]:
    """Read the conversations back from the trees; the seeds of a policy become one cell."""
    cells: dict[tuple[str, str, str], Cell] = {}
    for part in planned:
        with part_trees(folder / part.path) as trees:
            by_task = (trees.read(task.id) for task in tasks[part.environment])
            found = list(evaluated_conversations(by_task, seed=part.seed, first_run=part.number * runs))
        key = (part.environment, part.user, part.policy)
        cell = cells.get(key) or replace(part.cell(), task_score=scores[part.environment])
        cells[key] = replace(cell, conversations=[*cell.conversations, *found])
    return list(cells.values())


def write_report(config: Evaluate, cells: Sequence[Cell], seconds: float) -> Path:
    """Write report.md and report.html; return the page."""
    policies, environments = len({cell.policy for cell in cells}), len({cell.environment for cell in cells})
    lead = f"{policies} policies in {environments} environments, {config.runs} runs of each task"
    report = Report("Evaluation", f"{lead} under {len(config.seeds)} seeds." if config.seeds else f"{lead}.")
    add_evaluation(report, cells, transcripts(config))
    seeds = {"run": config.seed} if not config.seeds else {f"run {number}": seed for number, seed in enumerate(config.seeds)}
    report.set_provenance(asdict(config), seeds, seconds=round(seconds, 1))
    return report.write(Path(config.output_dir))


def transcripts(config: Evaluate) -> Transcript:
    """Return what finds the messages of a conversation in the trees of its part."""
    places = {(part.environment, part.user, part.policy, part.seed): part.path for part in parts(config)}

    def transcript(cell: Cell, conversation: EvaluatedConversation) -> Conversation:
        place = places[cell.environment, cell.user, cell.policy, conversation.seed]
        with part_trees(Path(config.output_dir) / place) as trees:
            return trees.read(conversation.task_id).conversation(conversation.leaf)

    return transcript


def print_tables(cells: Sequence[Cell]) -> None:
    """Print a column a policy for each environment and user, and how each policy differs from the first."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    several = groups(cells)
    for group in several:
        rows = {cell.policy: figures(cell) for cell in group}
        name = ", ".join(filter(None, (group[0].environment, group[0].user)))
        table = Table("", title=name if len(several) > 1 else None, title_justify="left")
        for policy in rows:
            table.add_column(policy, justify="right")
        for figure in dict.fromkeys(figure for row in rows.values() for figure in row):
            table.add_row(figure, *(_cell(row.get(figure)) for row in rows.values()))
        if len(group) > 1:
            for place, label in enumerate(_AGAINST):
                table.add_row(label, *("" if cell is group[0] else _against(group[0], cell)[place] for cell in group))
        console.print(table)


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


_AGAINST = ("R* against the first", "success against the first", "McNemar p (tasks)")


def _against(first: Cell, cell: Cell) -> tuple[str, ...]:
    """Return how a policy differs from the first, in the order of `_AGAINST`."""
    found = compare(first, cell)
    p_value = "-" if found.test is None else f"{found.test.p_value:.3f}"
    return (_difference(found.r_star), _difference(found.success), p_value)


def _difference(paired: PairedDifference | None) -> str:
    return "nothing to compare" if paired is None else _interval(paired.difference)


def _interval(interval: Interval) -> str:
    if interval.low is None or interval.high is None:  # a single task gives no interval
        return f"{interval.estimate:+.3f}"
    return f"{interval.estimate:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


def main() -> None:
    """Start the recipe from the command line."""
    launch(Evaluate, run)


if __name__ == "__main__":
    main()
