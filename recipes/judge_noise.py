"""How much of a judge's rating is noise? The same transcripts of a run, rated again and again with the scale in both orders.

collab judge-noise run=outputs/build/math_chat judge=llm judge.model=gpt-4o-mini repeats=5
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

from collab.data.views import kept_nodes
from collab.rewards.judge import Judge, clarity_judge, helpfulness_judge, interactivity_judge
from collab.rewards.judge_noise import JudgeNoise, measure_judge_noise
from collab.tasks.task import Task
from recipes import assembly
from recipes.launch import launch
from recipes.run_folder import RunFolder
from simulators.conversation import Conversation, ConversationTree
from simulators.errors import ConfigurationError
from simulators.tree_file import read_trees

JUDGES = {"interactivity": interactivity_judge, "helpfulness": helpfulness_judge, "clarity": clarity_judge}


def run(config: Any) -> JudgeNoise:
    """Measure, print and store a judge's noise."""
    if config.rubric not in JUDGES:
        raise ConfigurationError(f"unknown rubric {config.rubric!r}; known are {', '.join(JUDGES)}")
    if config.repeats < 2:
        raise ConfigurationError(f"repeats is {config.repeats}; noise shows from 2 on")
    folder = RunFolder(config)
    transcripts = [transcript(tree) for tree in read_trees(Path(config.run))][: config.limit]
    if not transcripts:
        raise ConfigurationError(f"{config.run} holds no conversation to rate")
    with assembly.open_journal(folder.path) as journal:
        noise = asyncio.run(_measure(config, assembly.Models(journal), transcripts))
        figures = {name: value for name, value in asdict(noise).items() if name != "transcripts"}
        folder.log_metrics("judge_noise", **figures, calls=journal.summary())
    for name, value in figures.items():
        print(f"{name:<15} {value if not isinstance(value, float) else f'{value:.3f}'}")
    return noise


async def _measure(config: Any, models: assembly.Models, transcripts: list[tuple[Conversation, Task]]) -> JudgeNoise:
    try:
        judge: Judge = JUDGES[config.rubric](models.load(config.judge))
        return await measure_judge_noise(judge, transcripts, config.repeats)
    finally:
        await models.aclose()


def transcript(tree: ConversationTree) -> tuple[Conversation, Task]:
    """Return the kept conversation of a built tree (or the first one of an evaluated tree), and its task."""
    kept = kept_nodes(tree)
    leaf = kept[-1].id if kept else next(tree.leaves()).id
    task = Task(tree.task_id, str(tree.metadata.get("goal", "")), tree.metadata.get("reference"))
    return tree.conversation(leaf), task


def main() -> None:
    """Start the recipe from the command line."""
    launch("judge_noise", run)


if __name__ == "__main__":
    main()
