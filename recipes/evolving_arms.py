"""Does a policy get lost when the intent evolves? The same problems told at once, evolving, one transition at a time, and under
controls (LLMs Get Lost in Evolving User Intent).

    collab evolving-arms tasks=gsm8k_test.jsonl limit=200 policy=vllm policy.model=Qwen/Qwen3-4B
    collab evolving-arms tasks=gsm8k_test.jsonl arms=[Single,Evolve,Repeat] policies.trained.adapter=outputs/grpo/adapter

An evaluation (`recipes/evaluate.py`: policies, users, seeds, going on after a kill) whose environments are the arms, on the tasks
that allow every arm. Beside the evaluation's own report it writes `arms/report.html`: every arm against Single, and for each turn
whether replies answer today's intent, yesterday's value or yesterday's question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from collab.environments.domain import Resources
from collab.environments.evolving_intent.arms import ARMS, SINGLE
from collab.environments.evolving_intent.rewards import IntentTracking
from collab.environments.evolving_intent.tracking import ReplyVerifier, TrackingFigures
from collab.evaluation import plots
from collab.evaluation.comparison import Cell
from collab.evaluation.evolving_arms import arms_table, solved, tracked, tracking_table
from collab.evaluation.report import Report
from recipes import evaluate
from recipes.configuration.launch import launch
from recipes.configuration.schema import EvaluatedEnvironmentConfig, EvolvingArms
from recipes.running import assembly
from recipes.running.evaluation_plan import Part, parts
from recipes.running.part_trees import part_trees
from simulators.conversation import ConversationTree
from simulators.errors import ConfigurationError, did_you_mean


def run(config: EvolvingArms) -> list[Cell]:
    """Play every arm, print the table and write the report; return the cells, one a policy and arm."""
    config = with_arms(config)
    verifier = reply_verifier(config)
    cells = evaluate.run(config)
    table = arms_table(cells)
    report = Report("Evolving intent", f"{len(config.environments)} arms on the same tasks, {config.runs} runs of each task.")
    report.add_table(table)
    bars: dict[str, dict[str, Any]] = {}
    for cell in cells:
        bars.setdefault(label(cell), {})[cell.environment] = solved(cell)
    report.add_figure(plots.window_ablation(bars), "arms", "Share of tasks solved, with its 95% bootstrap interval over tasks")
    if verifier is not None:
        figures = asyncio.run(tracking(parts(config), Path(config.output_dir), cells, verifier))
        report.add_table(tracking_table(figures))
    report.set_provenance(asdict(config), {"run": config.seed})
    print(table.markdown())
    print(f"\nreport: {report.write(Path(config.output_dir) / 'arms')}")
    return cells


def with_arms(config: EvolvingArms) -> EvolvingArms:
    """Return the configuration with an environment for every arm.

    Raises:
        ConfigurationError: for an unknown arm, no arm, or environments besides the arms.
    """
    for name in config.arms:
        if name not in ARMS:
            raise ConfigurationError(f"unknown arm {name!r}{did_you_mean(name, ARMS)}; known are {', '.join(ARMS)}")
    if SINGLE not in config.arms:
        raise ConfigurationError(f"arms are {config.arms}; {SINGLE} must be among them, the others are compared with it")
    if config.environments:
        raise ConfigurationError("environments cannot be set here: they are the arms; set arms, or environment.options for all")
    options = {"mixture": None, "every_arm": True}
    arms = {name: EvaluatedEnvironmentConfig(config.environment.name, {**ARMS[name], **options}) for name in config.arms}
    return replace(config, environments=arms, arms=[])  # now they are environments, of which there may be more in the same folder


def reply_verifier(config: EvolvingArms) -> ReplyVerifier | None:
    """Return what tells which intent a reply on the way answers; None where the domain grades only the last one.

    Raises:
        ConfigurationError: when the environment is not one whose intent evolves.
    """
    domain = assembly.domain(config.environment)
    if not domain.name.startswith("evolving"):
        raise ConfigurationError(f"environment {domain.name} has no arms; choose one whose intent evolves, as evolving_gsm8k")
    components = [component for component, _ in domain.make_reward(Resources(count_tokens=len)).terms]
    return next((component.verifier for component in components if isinstance(component, IntentTracking)), None)


def label(cell: Cell) -> str:
    """Return who plays in a cell: the policy, and the user where there are several."""
    return ", ".join(filter(None, (cell.policy, cell.user)))


async def tracking(
    planned: Sequence[Part], folder: Path, cells: Sequence[Cell], verifier: ReplyVerifier
) -> dict[str, TrackingFigures]:
    """Return the tracking figures of every policy in every arm with more than one turn."""
    figures = {}
    for cell in cells:
        if cell.environment != SINGLE:
            who = (cell.environment, cell.user, cell.policy)
            own = [part for part in planned if (part.environment, part.user, part.policy) == who]
            played = {each.task_id for each in cell.conversations}
            figures[f"{label(cell)}, {cell.environment}"] = await tracked(_trees(own, folder, played), verifier)
    return figures


def _trees(planned: Sequence[Part], folder: Path, played: set[str]) -> Iterator[ConversationTree]:
    for part in planned:
        with part_trees(folder / part.path) as trees:
            yield from (trees.read(task_id) for task_id in sorted(played))


def main() -> None:
    """Start the recipe from the command line."""
    launch(EvolvingArms, run)


if __name__ == "__main__":
    main()
