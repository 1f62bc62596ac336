"""Sections about other runs: what is read from their files, and what is refused."""

import json
from pathlib import Path

import pytest

from collab.evaluation.report import Report
from collab.evaluation.run_sections import add_training, training_metrics
from simulators.errors import ConfigurationError


def metrics_file(path: Path, *entries: object) -> Path:
    path.write_text("".join(entry if isinstance(entry, str) else json.dumps(entry) + "\n" for entry in entries))
    return path


def test_curves_are_what_was_logged_by_step(tmp_path: Path) -> None:
    path = metrics_file(
        tmp_path / "metrics.jsonl",
        {"stage": "grpo", "step": 1, "loss": 0.5, "reward": 0.1, "epoch": 0.1, "seconds": 1.0},
        {"stage": "grpo", "outcomes": {"ended": 4}},
        {"stage": "grpo", "step": 2, "loss": 0.4, "reward": None, "kl": 0.1},
        {"stage": "grpo", "step": 3, "reward": 0.3, "train_runtime": 9.0},
        '{"step": 4, "lo',
    )
    assert training_metrics(path) == {"loss": ([1.0, 2.0], [0.5, 0.4]), "reward": ([1.0, 3.0], [0.1, 0.3])}


def test_what_is_no_metrics_file_is_refused(tmp_path: Path) -> None:
    path = metrics_file(tmp_path / "metrics.jsonl", "nonsense\n", {"step": 1})
    with pytest.raises(ConfigurationError, match=r"metrics\.jsonl, line 1: not JSON"):
        training_metrics(path)
    with pytest.raises(ConfigurationError, match="cannot read"):
        training_metrics(tmp_path / "nothing.jsonl")


def test_runs_share_the_panels_of_what_they_have_in_common(tmp_path: Path) -> None:
    runs = {}
    for name in ("sft", "dpo"):
        entries = [{"step": step, "loss": 1 / step, f"only {name}": step} for step in (1, 2)]
        runs[name] = metrics_file(tmp_path / f"{name}.jsonl", *entries)
    report = Report("Runs")
    add_training(report, runs)
    assert report.markdown().count("figures/training-curves.svg") == 1
    silent = Report("Runs")
    add_training(silent, {"none": metrics_file(tmp_path / "none.jsonl", {"stage": "build"})})
    assert "Training" not in silent.markdown()
