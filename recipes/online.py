"""Online training over conversations with a simulated user: GRPO, online DPO, PPO, or a method of your own.

    collab train grpo environment=errands
    collab train online method=my_methods:Mine environment=math_chat user=role_play user.model=gpt-4o-mini
    accelerate launch --config_file conf/hardware/ddp.yaml recipes/online.py method=grpo environment=math_chat model=Qwen/Qwen3-4B

Kill it and start the same command again to go on; a finished run goes on with a larger `optimization.max_steps`. `budget` bounds
the calls of user and judge (the policy samples in the training process, or on a server of one's own).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from collab.embedded_model import resolve_model
from collab.training.online_method import load_method
from recipes.configuration.launch import launch
from recipes.configuration.schema import Online
from recipes.running import assembly, held_out
from recipes.running.replaying import Replayed, recorded_trees, task_of
from recipes.running.run import Run, open_run
from simulators.errors import ConfigurationError


def run(config: Online) -> Path:
    """Train and return the adapter's folder.

    Every process of a distributed run has a journal of its own for the user's and the judge's calls.
    """
    from collab.training.online_run import train_online

    method = load_method(config.algorithm)
    if not isinstance(config.method, method.Settings):
        raise ConfigurationError(f"method has not the settings of {config.algorithm}; set method=NAME, and leave algorithm alone")
    with open_run(config, journal=journal_of(config)) as run:
        tasks = assembly.tasks(config).tasks
        held_out.refuse(tasks, config)
        eval_tasks = assembly.tasks(config, config.eval_split, config.eval_limit).tasks if config.eval_limit else []
        try:
            environment = assembly.environment(config, run.models, run.models.tokens_of(config.model))
            trained = train_online(
                method,
                environment,
                tasks,
                resolve_model(config.model),
                run.path,
                config.method,
                lora=config.lora,
                optimization=config.optimization,
                adapter=config.adapter,
                eval_tasks=eval_tasks,
                seed=config.seed,
                count=run.watch.count,
            )
        finally:
            asyncio.run(run.models.aclose())
        if os.environ.get("RANK", "0") == "0":
            run.log(method.name)
            print(f"trained in {environment.name} on {len(tasks)} tasks -> {trained}")
    return trained


def journal_of(config: Online) -> Path:
    """Return the folder of this process's journal."""
    return Path(config.output_dir) / "journals" / f"rank{os.environ.get('RANK', '0')}"


async def replayed(config: Online, run: Run) -> AsyncIterator[Replayed]:
    """Yield what users said in every rollout of the first process and what it earned, as recorded and as it comes again."""
    from collab.training.replayed_rollout import recorded_rollout, replayed_rollout

    environment = assembly.environment(config, run.models, run.models.tokens_of(config.model))
    splits = [(config.split, None), *([(config.eval_split, config.eval_limit)] if config.eval_limit else [])]
    tasks = {task.id: task for split, limit in splits for task in assembly.tasks(config, split, limit).tasks}
    for tree in recorded_trees(run.path):
        task = tasks[tree.metadata["task_id"]] if tree.metadata["task_id"] in tasks else task_of(tree, tasks, run.path)
        yield tree.task_id, recorded_rollout(tree), await replayed_rollout(environment, task, tree)


def main() -> None:
    """Start the recipe from the command line."""
    launch(Online, run)


if __name__ == "__main__":
    main()
