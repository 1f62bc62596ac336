"""The parts of a build: several processes, on one machine or on many, each with every n-th task, its own folder and journal.

A shard's folder is `OUTPUT_DIR/shards/INDEX-of-COUNT`. It is a whole run by itself: resumable, viewable, with its own datasets.
A finished build leaves a manifest that names its tasks; `collab merge` reads those.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from collab.tasks.task import Task
from recipes.configuration.schema import Build, Shard
from recipes.running.datasets import export_settings, pair_settings
from simulators.errors import ConfigurationError
from simulators.tree_file import TreeFile
from simulators.whole_file import write_whole

SHARDS = "shards"
MANIFEST = "build.json"


def own_configuration(config: Build) -> Build:
    """Return the configuration of one shard of a build, with a folder of its own; the same one where there are no shards.

    Raises:
        ConfigurationError: for a shard that cannot be, or settings of the datasets that make no sense: better now than after
            hours of building.
    """
    index, count = config.shard.index, config.shard.count
    if count < 1 or not 0 <= index < count:
        raise ConfigurationError(f"shard.index is {index} and shard.count {count}; the index must lie in [0, count)")
    pair_settings(config)
    export_settings(config)
    if count == 1:
        return config
    if config.push_to is not None:
        raise ConfigurationError("push_to: one shard is not the dataset; push it when you merge (`collab merge`)")
    return replace(config, output_dir=str(Path(config.output_dir) / SHARDS / f"{index}-of-{count}"))


def part_of(tasks: Sequence[Task], shard: Shard) -> list[Task]:
    """Return the tasks of a shard: every `count`th from the `index`th on, so that shards are alike in what they hold.

    Raises:
        ConfigurationError: when there are more shards than tasks.
    """
    part = list(tasks[shard.index :: shard.count])
    if not part:
        raise ConfigurationError(f"shard {shard.index} of {shard.count} has no task: there are only {len(tasks)}")
    return part


def open_trees(folder: Path) -> tuple[TreeFile, TreeFile]:
    """Open the trees of finished tasks, and an empty file for those of tasks that stop early: they are tried again each time.

    The manifest of an earlier start goes: until this one ends, the build is not finished.
    """
    finished = TreeFile(folder / "trees.jsonl")
    try:
        for name in ("stopped.jsonl", MANIFEST):
            (folder / name).unlink(missing_ok=True)
        return finished, TreeFile(folder / "stopped.jsonl")
    except BaseException:
        finished.close()
        raise


def close_trees(finished: TreeFile, stopped: TreeFile) -> None:
    """Close both files; an empty one of stopped tasks is removed."""
    finished.close()
    stopped.close()
    if not len(stopped):
        stopped.path.unlink(missing_ok=True)


def write_manifest(folder: Path, tasks: Sequence[Task], licence: str | None, skipped: Sequence[str]) -> None:
    """Say what a finished build holds."""
    manifest = {"tasks": [task.id for task in tasks], "licence": licence, "skipped": list(skipped)}
    write_whole(folder / MANIFEST, f"{json.dumps(manifest, indent=1, ensure_ascii=False)}\n".encode())
