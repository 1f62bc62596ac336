"""From a build's trees and configuration to its datasets: what `collab build`, `merge` and `import` have in common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from collab.data.export import DatasetStatistics, ExportSettings, export_datasets
from collab.data.licences import licence_of
from collab.data.views import PairSettings
from recipes.configuration.schema import Build, ImportPublic, Pairs
from recipes.running.assembly import domain
from simulators.conversation import ConversationTree


def pair_settings(config: Pairs) -> PairSettings:
    """Return which pairs a configuration asks for.

    Raises:
        ConfigurationError: for values that make no sense.
    """
    return PairSettings(
        config.min_gap, config.min_chosen_mr, config.pairs_per_turn, config.min_components, config.length_quantiles
    )  # fmt: skip


def export_settings(config: Pairs) -> ExportSettings:
    """Return how a configuration wants its datasets laid out.

    Raises:
        ConfigurationError: for shares of splits that do not add up to 1.
    """
    return ExportSettings(config.splits, config.deduplicate, config.public_columns)


def licence(config: Build) -> str | None:
    """Return the licence of a configuration's tasks, where it is stated or known."""
    if config.licence is not None:
        return config.licence
    return licence_of(config.tasks, domain(config.environment).licences)


def write_datasets(
    config: Build | ImportPublic, trees: Iterable[ConversationTree], folder: Path, licence: str | None = None
) -> DatasetStatistics:
    """Write the datasets of a configuration; return their statistics.

    Raises:
        ConfigurationError: as the settings do.
        StorageError: when the disk refuses.
    """
    return export_datasets(
        trees,
        folder,
        pairs=pair_settings(config),
        min_chosen_mr=config.min_chosen_mr,
        card=asdict(config),
        settings=export_settings(config),
        licence=licence,
    )
