"""Sections of a report about other runs: the datasets that a build made, and the curves of training runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collab.data.export import statistics
from collab.data.figures import DatasetStatistics
from collab.data.views import PairSettings, dpo_rows
from collab.evaluation import plots
from collab.evaluation.paper_tables import DatasetFigures, dataset_statistics
from collab.evaluation.report import Report
from collab.evaluation.tables import PlusMinus
from simulators.conversation import ConversationTree
from simulators.errors import ConfigurationError

_FIRST = ("loss", "reward", "kl", "mean_token_accuracy", "rewards/margins", "rewards/accuracies", "entropy", "grad_norm")
"""What people look at first; the rest follows in the order in which it was logged."""
_NOT_CURVES = ("step", "epoch", "seconds", "learning_rate", "num_tokens", "total_flos")
_MOST_CURVES = 6

Curves = dict[str, tuple[list[float], list[float]]]
"""By metric: the steps at which it was logged, and its values."""


@dataclass(frozen=True, slots=True)
class Build:
    """The trees of a build, iterable more than once, and what its datasets take of them."""

    trees: Iterable[ConversationTree]
    pairs: PairSettings
    min_chosen_mr: float | None = None


def add_datasets(report: Report, builds: Mapping[str, Build]) -> list[DatasetFigures]:
    """Add Table 5 and the distributions of the MR of chosen and rejected replies; return the rows of the table."""
    figures: list[DatasetFigures] = []
    pairs: dict[str, list[dict[str, Any]]] = {}
    for name, build in builds.items():
        figures.append(_figures(name, statistics(build.trees, build.pairs, build.min_chosen_mr)))
        pairs[name] = list(dpo_rows(build.trees, build.pairs))
    report.add_heading("Datasets")
    report.add_table(dataset_statistics(figures))
    for number, (name, rows) in enumerate(pairs.items()):
        if rows:
            chosen, rejected = [row["mr_chosen"] for row in rows], [row["mr_rejected"] for row in rows]
            caption = f"Multiturn-aware Rewards of chosen and of rejected replies: {name}"
            report.add_figure(plots.mr_distributions(chosen, rejected), f"mr-distributions-{number}", caption)
    return figures


def _figures(name: str, found: DatasetStatistics) -> DatasetFigures:
    chosen, rejected = (PlusMinus(*pair) if pair else None for pair in (found.chosen_mr, found.rejected_mr))
    return DatasetFigures(name, found.conversations, found.turns, chosen, rejected)


def add_training(report: Report, runs: Mapping[str, Path]) -> None:
    """Add the training curves of runs, given their metrics.jsonl; runs that log the same metric share its panel.

    Raises:
        ConfigurationError: a file that is not one of metrics.
    """
    curves: dict[str, Curves] = {name: training_metrics(path) for name, path in runs.items()}
    every = list(dict.fromkeys(metric for found in curves.values() for metric in found))
    shown = sorted(every, key=lambda metric: _FIRST.index(metric) if metric in _FIRST else len(_FIRST))[:_MOST_CURVES]
    if not shown:
        return
    report.add_heading("Training")
    panels = {metric: {name: found[metric] for name, found in curves.items() if metric in found} for metric in shown}
    report.add_figure(plots.training_curves(panels), "training-curves", "Training curves")


def training_metrics(path: Path) -> Curves:
    """Return what a trainer logged, by metric; a last line that a kill tore off is passed over.

    Raises:
        ConfigurationError: a line that is not an object, or a file that cannot be read.
    """
    curves: Curves = {}
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from None
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
        except ValueError:
            if number == len(lines):
                break
            raise ConfigurationError(f"{path}, line {number}: not JSON; it must be the metrics.jsonl of a run") from None
        if not isinstance(entry, dict) or not _is_number(entry.get("step")):
            continue
        for metric, value in entry.items():
            if _is_number(value) and metric not in _NOT_CURVES and not metric.startswith("train_"):
                steps, values = curves.setdefault(metric, ([], []))
                steps.append(float(entry["step"]))
                values.append(float(value))
    return {metric: curve for metric, curve in curves.items() if len(curve[0]) > 1}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
