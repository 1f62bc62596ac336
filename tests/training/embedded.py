"""One step on the embedded model over two-turn errands, the same for every method and engine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collab.environments.domain import Environment, Resources
from collab.environments.registry import load_environment
from collab.tasks.task import Task
from collab.training.lora import LoraSettings
from collab.training.online_run import OnlineRun
from collab.training.settings import OptimizationSettings
from simulators.errors import ConfigurationError
from simulators.users.scripted import ScriptedUser

THINGS = (("box", "4 Oak Street"), ("bag", "9 Elm Street"), ("trunk", "2 Hill Street"), ("crate", "7 Lake Street"))


def embedded_folder() -> str:
    """The embedded model's folder; tests skip with the reason where it cannot be had."""
    from collab.embedded_model import fetch_embedded_model

    try:
        return str(fetch_embedded_model())
    except ConfigurationError as error:
        pytest.skip(str(error))


def errands() -> tuple[Environment, list[Task]]:
    """The errands environment and four tasks of it, whose users tell what is missing also when they are not asked."""
    loaded = load_environment("errands", Resources(lambda text: len(text.split())))

    def make_user(task: Task, resources: Resources) -> ScriptedUser:
        user = loaded.domain.make_user(task, resources)
        assert isinstance(user, ScriptedUser)
        return replace(user, volunteers=True)

    environment = Environment(replace(loaded.domain, make_user=make_user), loaded.resources)
    records = [
        {
            "opening": f"Write a label for my {thing}.",
            "fact": place,
            "told": f"The address is {place}.",
            "lacking": True,
            "kind": "label",
        }
        for thing, place in THINGS
    ]
    return environment, [environment.domain.task_from_record(record, f"errand-{at}") for at, record in enumerate(records)]


def embedded_run(method: str, folder: Path, model: str, **changes: Any) -> OnlineRun:
    environment, tasks = errands()
    values = {
        "learning_rate": 1e-3,
        "batch_size": 4,
        "per_device_batch_size": 4,
        "max_steps": 1,
        "max_length": 512,
        "save_steps": 1000,
    }
    optimization = OptimizationSettings(**values | changes)
    return OnlineRun(method, environment, tasks, (), model, None, folder, LoraSettings(rank=4), optimization, seed=1)
