"""The arms of an evaluation: Single against Evolve, each transition on its own, the repeat control, and the recaps.

An arm is a set of options of `domain_of`; all arms are played on the same tasks, those that allow every one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from collab.environments.domain import Domain
from collab.tasks.loading import LoadedTasks
from collab.tasks.task import Task
from simulators.errors import ConfigurationError

SINGLE, EVOLVE, REPEAT = "Single", "Evolve", "Repeat"

ARMS: dict[str, dict[str, Any]] = {
    SINGLE: {"turns": 1},
    EVOLVE: {"turns": 7, "switches": 2, "revisions": 2},
    "Reveal": {"turns": 3, "switches": 0, "revisions": 0},
    "Revision": {"turns": 3, "switches": 0, "revisions": 2},
    "Switch": {"turns": 3, "switches": 2, "revisions": 0},
    REPEAT: {"turns": 7, "control": "repeat"},
    "Prompt recap": {"turns": 7, "switches": 2, "revisions": 2, "recap": "prompt"},
    "Oracle recap": {"turns": 7, "switches": 2, "revisions": 2, "recap": "oracle"},
    "Dump recap": {"turns": 7, "switches": 2, "revisions": 2, "recap": "dump"},
}
"""The paper's settings (T = 7, g = 2, p = 2) with its controls, by the names used in tables."""

Load = Callable[[Domain], LoadedTasks]


def arm_domains(factory: Callable[..., Domain], arms: Mapping[str, Mapping[str, Any]] = ARMS, **common: Any) -> dict[str, Domain]:
    """Return the domain of every arm; `common` are options that all of them get (a seed, a persona)."""
    return {name: factory(**common, **options) for name, options in arms.items()}


def common_tasks(domains: Mapping[str, Domain], load: Load, limit: int | None = None) -> dict[str, list[Task]]:
    """Return the tasks of every arm, the same ids in the same order: those that all arms can be played on.

    `load` loads a domain's tasks from the one source, bad records skipped.

    Raises:
        ConfigurationError: when no task allows every arm.
    """
    loaded: dict[str, Sequence[Task]] = {name: load(domain).tasks for name, domain in domains.items()}
    shared = set.intersection(*({task.id for task in tasks} for tasks in loaded.values()))
    first = next(iter(loaded.values()))
    order = [task.id for task in first if task.id in shared][:limit]
    if not order:
        raise ConfigurationError("no task allows every arm; use fewer arms or more tasks")
    by_id = {name: {task.id: task for task in tasks} for name, tasks in loaded.items()}
    return {name: [tasks[key] for key in order] for name, tasks in by_id.items()}
