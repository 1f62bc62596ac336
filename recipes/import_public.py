"""Read a dataset in the public CollabLLM columns as a run: conversation trees, and the datasets that views of them give.

    collab import data=collabllm/collabllm-multiturn-math-hard output_dir=outputs/math_hard
    collab train dpo data=outputs/math_hard

The trees can be looked at (`collab view`), and the datasets written again with other thresholds, splits or length balance.
"""

from __future__ import annotations

from collab.data.export import DatasetStatistics, as_plain
from collab.data.public_columns import trees_from_rows
from collab.environments.domain import BadRecord
from collab.environments.loading import read_records
from recipes.build import print_skipped
from recipes.configuration.launch import launch
from recipes.configuration.schema import ImportPublic
from recipes.running.datasets import export_settings, pair_settings, write_datasets
from recipes.running.run_folder import RunFolder
from simulators.errors import ConfigurationError
from simulators.tree_file import TreeFile


def run(config: ImportPublic) -> DatasetStatistics:
    """Import a dataset and return the statistics of the datasets that it gives here."""
    pair_settings(config)
    export_settings(config)
    folder = RunFolder(config).claim()
    skipped: list[str] = []
    try:
        trees = trees_from_rows(read_records(config.data, config.split), skipped if config.on_bad_record == "skip" else None)
    except BadRecord as error:
        raise ConfigurationError(f"{error}; mend it or set on_bad_record=skip") from None
    print_skipped(skipped)
    if not trees:
        raise ConfigurationError(f"{config.data} has no conversation in split {config.split!r}")
    with TreeFile(folder.path / "trees.jsonl") as file:
        for tree in trees:
            if tree.task_id not in file:
                file.append(tree)
    figures = write_datasets(config, trees, folder.path / "dataset", config.licence)
    folder.log_metrics("import", **as_plain(figures), skipped_records=len(skipped))
    print(f"{figures.conversations} conversations, {figures.turns} turns, {figures.pairs} pairs -> {folder.path / 'dataset'}")
    return figures


def main() -> None:
    """Start the recipe from the command line."""
    launch(ImportPublic, run)


if __name__ == "__main__":
    main()
