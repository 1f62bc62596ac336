"""Join the shards of a build into one dataset, the same that one process would have built.

collab merge output_dir=outputs/build/math_chat
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from collab.data.card import without_machine
from collab.data.export import DatasetStatistics
from collab.data.hub import push_dataset
from collab.data.tree_set import TreeSet
from recipes.configuration.launch import launch
from recipes.configuration.schema import Build, Merge, Shard
from recipes.configuration.stored import stored_configuration
from recipes.running.datasets import write_datasets
from recipes.running.run_folder import as_yaml, flat
from recipes.running.shards import MANIFEST, SHARDS
from simulators.conversation import ConversationTree
from simulators.errors import ConfigurationError
from simulators.tree_file import TreeFile
from simulators.whole_file import write_whole

_NAME = re.compile(r"(\d+)-of-(\d+)")


@dataclass(frozen=True, slots=True)
class ShardFolder:
    """A shard as it lies on disk; `tasks` is None where it is not finished."""

    path: Path
    index: int
    count: int
    config: Build
    tasks: frozenset[str] | None
    licence: str | None

    @property
    def name(self) -> str:
        return self.path.name


def run(config: Merge) -> DatasetStatistics:
    """Merge the shards of a run and return the statistics of its datasets."""
    folder = Path(config.output_dir)
    found = shard_folders(folder)
    check_complete(found, config.allow_missing)
    check_alike(found)
    with ExitStack() as stack:
        files = [
            stack.enter_context(TreeFile(shard.path / name, writable=False))
            for name in ("trees.jsonl", "stopped.jsonl")  # a task is taken from a shard that finished it, if any did
            for shard in found
            if (shard.path / name).is_file()
        ]
        planned = set().union(*(shard.tasks or () for shard in found))  # fewer than there are trees where `limit` was lowered
        trees = TreeSet(files, only=planned if all(shard.tasks is not None for shard in found) else None)
        if missing := sorted(planned - set(trees.task_ids)):
            problem = f"{len(missing)} tasks have no tree, the first is {missing[0]}"
            if not config.allow_missing:
                raise ConfigurationError(f"{folder}: {problem}; build their shard again, or set allow_missing=true")
            print(problem)
        merged = replace(found[0].config, output_dir=str(folder), shard=Shard())
        figures = write_datasets(merged, trees, folder / "dataset", found[0].licence)
        keep_trees(trees, folder / "trees.jsonl")
    write_whole(folder / "config.yaml", as_yaml(merged).encode())
    repeated = f", {trees.repeated} of them in more than one shard" if trees.repeated else ""
    print(f"{len(found)} shards, {len(trees)} tasks{repeated}")
    for warning in figures.warnings:
        print(f"warning: {warning}")
    print(f"{figures.conversations} conversations, {figures.turns} turns, {figures.pairs} pairs -> {folder / 'dataset'}")
    if config.push_to is not None:
        print(f"pushed to {push_dataset(folder / 'dataset', config.push_to, private=config.push_private)}")
    return figures


def shard_folders(folder: Path) -> list[ShardFolder]:
    """Return the shards below a run's folder, by index.

    Raises:
        ConfigurationError: when there are none, or they are of builds cut in different ways.
    """
    found = []
    for path in sorted((folder / SHARDS).glob("*-of-*")):
        name = _NAME.fullmatch(path.name)
        if name is None or not (path / "config.yaml").is_file():
            continue
        tasks, licence = read_manifest(path / MANIFEST)
        config = stored_configuration(path)
        if not isinstance(config, Build):
            raise ConfigurationError(f"{path} is not a shard of a build")
        found.append(ShardFolder(path, int(name[1]), int(name[2]), config, tasks, licence))
    if not found:
        raise ConfigurationError(f"{folder} has no shards; give the output_dir of a build with shard.count above 1")
    if len(counts := {shard.count for shard in found}) > 1:
        cuts = " and ".join(map(str, sorted(counts)))
        raise ConfigurationError(f"{folder / SHARDS} holds builds cut into {cuts} shards; delete those that you do not want")
    return sorted(found, key=lambda shard: shard.index)


def read_manifest(path: Path) -> tuple[frozenset[str] | None, str | None]:
    """Return the tasks and the licence of a finished shard, (None, None) of one that is not.

    Raises:
        ConfigurationError: when the manifest is damaged.
    """
    if not path.is_file():
        return None, None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        return frozenset(manifest["tasks"]), manifest["licence"]
    except (ValueError, KeyError, TypeError):
        raise ConfigurationError(f"{path} is damaged; start that shard again") from None


def check_complete(found: list[ShardFolder], allow_missing: bool) -> None:
    """Check that every shard is there and finished.

    Raises:
        ConfigurationError: naming the first one that is not, unless that is allowed.
    """
    there = {shard.index for shard in found if shard.tasks is not None}
    missing = [index for index in range(found[0].count) if index not in there]
    if not missing:
        return
    problem = f"shard {missing[0]} of {found[0].count} is not finished"
    if not allow_missing:
        raise ConfigurationError(f"{found[0].path.parent}: {problem}; start it again, or set allow_missing=true")
    print(f"{len(missing)} of {found[0].count} shards are not finished; what they have is merged")


def check_alike(found: list[ShardFolder]) -> None:
    """Check that the shards were built with one configuration.

    Raises:
        ConfigurationError: naming the first key in which two differ.
    """
    first = flat(without_machine(asdict(found[0].config)))
    for shard in found[1:]:
        other = flat(without_machine(asdict(shard.config)))
        for key in sorted(first.keys() | other.keys()):
            if first.get(key) != other.get(key):
                raise ConfigurationError(
                    f"shards {found[0].name} and {shard.name} differ in {key}: {first.get(key)!r} and {other.get(key)!r}; "
                    "build them with one configuration"
                )


def keep_trees(trees: Iterable[ConversationTree], path: Path) -> None:
    """Write all trees into one file, whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    with TreeFile(part) as file:
        for tree in trees:
            file.append(tree)
    part.replace(path)


def main() -> None:
    """Start the recipe from the command line."""
    launch(Merge, run)


if __name__ == "__main__":
    main()
