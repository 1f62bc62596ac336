"""From a build's trees and configuration to its datasets: what `collab build`, `merge` and `import` have in common."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from collab.data.export import DatasetStatistics, ExportSettings, export_datasets
from collab.data.licences import licence_of
from collab.data.views import PairSettings
from collab.environments.registry import load_domain
from recipes.assembly import plain
from simulators.conversation import ConversationTree


def pair_settings(config: Any) -> PairSettings:
    """Return which pairs a configuration asks for.

    Raises:
        ConfigurationError: for values that make no sense.
    """
    return PairSettings(
        config.min_gap, config.min_chosen_mr, config.pairs_per_turn, plain(config.min_components), config.length_quantiles
    )  # fmt: skip


def export_settings(config: Any) -> ExportSettings:
    """Return how a configuration wants its datasets laid out.

    Raises:
        ConfigurationError: for shares of splits that do not add up to 1.
    """
    return ExportSettings(plain(config.splits), config.deduplicate, config.public_columns)


def licence(config: Any) -> str | None:
    """Return the licence of a configuration's tasks, where it is stated or known."""
    if config.licence is not None:
        return str(config.licence)
    domain = load_domain(config.environment.name, plain(config.environment.options))
    return licence_of(config.tasks, domain.licences)


def write_datasets(
    config: Any, trees: Iterable[ConversationTree], folder: Path, licence: str | None = None
) -> DatasetStatistics:  # fmt: skip
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
        card=OmegaConf.to_container(config, resolve=True),  # type: ignore[arg-type]
        settings=export_settings(config),
        licence=licence,
    )
