"""One report over whatever there is: datasets, training curves, reward mechanisms, and an evaluation with the papers' tables.

    collab report                                                              # a small run of every stage, on the embedded model
    collab report stages=[] runs=[outputs/build/math_chat,outputs/sft] output_dir=outputs/my_report

`runs` are output folders of builds and training runs, which need not have been stages (an evaluation writes a report of its own).
Each stage is another recipe with the overrides that stand in `conf/report.yaml`, as one would type them. Kill it and start it
again: finished stages and answered model calls are not repeated.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from collab.data.tree_set import TreeSet
from collab.evaluation.comparison import Cell, all_tokens
from collab.evaluation.evaluation_report import add_evaluation
from collab.evaluation.plots import window_ablation
from collab.evaluation.report import Report
from collab.evaluation.run_sections import Build as DatasetOfTrees
from collab.evaluation.run_sections import add_datasets, add_training, training_metrics
from collab.evaluation.statistics import MeanEstimate
from recipes import ablation, build, evaluate, sft
from recipes.configuration.launch import launch
from recipes.configuration.overrides import stage_configuration
from recipes.configuration.schema import Ablation, Build, Evaluate, Pairs, Recipe, ReportConfig, Sft
from recipes.configuration.stored import stored_configuration
from recipes.running.datasets import pair_settings
from recipes.running.run_folder import RunFolder
from simulators.conversation import ConversationTree, departures
from simulators.errors import ConfigurationError, did_you_mean
from simulators.tree_file import TreeFile

STAGES: dict[str, type[Recipe]] = {"build": Build, "sft": Sft, "ablation": Ablation, "evaluate": Evaluate}


def run(config: ReportConfig) -> dict[str, Any]:
    """Run the stages, write report.md and report.html, and return the figures that are printed as one line of JSON."""
    started = time.monotonic()
    for name in config.stages:
        if name not in STAGES:
            raise ConfigurationError(f"stages: unknown {name!r}{did_you_mean(name, STAGES)}; known are {', '.join(STAGES)}")
    runs = labelled([Path(each) for each in config.runs], config.stages, Path(config.output_dir))
    for path in runs.values():
        if not path.is_dir():
            raise ConfigurationError(f"runs: there is no folder {path}; name the output folders of builds and training runs")
    if not config.stages and not runs:
        raise ConfigurationError("there is nothing to report; name stages, or runs=[FOLDER, ...]")
    configs = stage_configs(config)
    folder = RunFolder(config).claim()
    times: dict[str, float] = {}
    cells: list[Cell] = []
    mechanisms: dict[str, Any] = {}
    for name in config.stages:
        began = time.monotonic()
        print(f"\n[{name}] -> {configs[name].output_dir}\n", flush=True)
        if name == "build":
            build.run(configs[name])
        elif name == "sft":
            _train(configs[name])
        elif name == "ablation":
            mechanisms = ablation.run(configs[name])
        elif name == "evaluate":
            cells = evaluate.run(configs[name])
        times[name] = round(time.monotonic() - began, 1)
        runs |= {name: folder.path / name} if name in ("build", "sft") else {}
    report = Report(config.title, "Tables, plots and conversations; each figure can be traced back to its conversations.")
    if cells:
        add_evaluation(report, cells, evaluate.transcripts(configs["evaluate"]))
    built = add_runs(report, runs)
    if mechanisms:
        add_ablation(report, mechanisms)
    report.set_provenance(asdict(config), {"run": config.seed}, seconds=round(time.monotonic() - started, 1))
    page = report.write(folder.path)
    summary = summarize(cells, built, times) | {"seconds": round(time.monotonic() - started, 1), "report": str(page)}
    folder.log_metrics("report", **summary)
    print(f"\nreport: {page}\n")
    print(json.dumps(summary))
    return summary


def labelled(runs: Sequence[Path], stages: Sequence[str], output_dir: Path) -> dict[str, Path]:
    """Return runs by labels that are unique and no stage's: a folder's name or, where another has that too, its path as given.

    A folder that is named twice, or is that of a stage, is there once.
    """
    own = {(output_dir / name).resolve() for name in stages}
    folders: dict[Path, Path] = {}
    for path in runs:
        if path.resolve() not in own:
            folders.setdefault(path.resolve(), path)
    often = Counter(path.name for path in folders.values())
    labels = {}
    for path in folders.values():
        label = path.name if path.name and often[path.name] == 1 and path.name not in stages else str(path)
        labels[str(path.absolute()) if label in stages else label] = path
    return labels


def stage_configs(config: ReportConfig) -> dict[str, Any]:
    """Compose the configuration of each stage; where SFT is one of them, its adapter is one of the policies to evaluate.

    Raises:
        ConfigurationError: for an override that its recipe does not take.
    """
    root = Path(config.output_dir)
    more = {
        "sft": [f"data={root / 'build'}"] if "build" in config.stages else [],
        "evaluate": [f"policies.sft.adapter='{root / 'sft' / 'adapter'}'"] if "sft" in config.stages else [],
    }
    configs: dict[str, Any] = {}
    for name in config.stages:
        try:
            overrides = [*getattr(config, name), *more.get(name, []), f"seed={config.seed}", f"output_dir={root / name}"]
            configs[name] = stage_configuration(STAGES[name], overrides)
        except ConfigurationError as error:
            raise ConfigurationError(f"stage {name}: {error}") from None
    return configs


def _train(config: Sft) -> None:
    """Train, unless that is done."""
    folder = RunFolder(config).claim()  # it refuses an adapter of other settings
    if not (folder.path / "adapter" / "adapter_model.safetensors").is_file():
        sft.run(config)


def add_runs(report: Report, runs: dict[str, Path]) -> tuple[int, int]:
    """Add the datasets of builds and the curves of training runs; return the builds' conversations and their tokens.

    Raises:
        ConfigurationError: for a run that is neither.
    """
    training = {name: path / "metrics.jsonl" for name, path in runs.items() if _was_trained(path)}
    with ExitStack() as stack:
        builds = {}
        for name, path in runs.items():
            if all((path / each).exists() for each in ("dataset", "trees.jsonl", "config.yaml")):
                own = stored_configuration(path)
                trees = TreeSet([stack.enter_context(TreeFile(path / "trees.jsonl", writable=False))])
                if isinstance(own, Pairs):
                    builds[name] = DatasetOfTrees(trees, pair_settings(own), own.min_chosen_mr)
            elif name not in training:
                raise ConfigurationError(f"runs: {path} is neither a build nor a training run; there is nothing of it to show")
        found = add_datasets(report, builds) if builds else []
        if training:
            add_training(report, training)
        tokens = sum(tokens_of(tree) for build in builds.values() for tree in build.trees)
    return sum(each.conversations for each in found), tokens


def tokens_of(tree: ConversationTree) -> int:
    """Return the tokens of all calls behind a tree's messages, prompts and completions."""
    used = [node.usage for node in tree.nodes] + [left.usage for node in tree.nodes for left in departures(node)]
    return sum(usage.prompt_tokens + usage.completion_tokens for usage in used if usage is not None)


def add_ablation(report: Report, summary: dict[str, Any]) -> None:
    """Add what followed from each reward mechanism's choices (CollabLLM Figure 4), from an ablation's summary."""
    outcomes = {
        name: {metric: MeanEstimate(**estimate) for metric, estimate in metrics.items()}
        for name, metrics in summary["outcomes"].items()
    }
    metrics = list(dict.fromkeys(metric for found in outcomes.values() for metric in found))
    report.add_heading("Reward mechanisms")
    report.add_text("The same replies under every reward mechanism: what follows from those that each of them prefers.")
    panels = {metric: {name: found.get(metric) for name, found in outcomes.items()} for metric in metrics}
    caption = "Outcome of the preferred replies by reward mechanism (CollabLLM Figure 4)"
    report.add_figure(window_ablation(panels), "mechanisms", caption)
    report.add_table(ablation.outcome_table(outcomes))


def _was_trained(path: Path) -> bool:
    return (path / "metrics.jsonl").is_file() and bool(training_metrics(path / "metrics.jsonl"))


def summarize(cells: list[Cell], built: tuple[int, int], times: dict[str, float]) -> dict[str, Any]:
    """Return the headline figures: of the evaluation, or of the builds (their conversations and tokens) where there is none."""
    conversations = [each for cell in cells for each in cell.conversations]
    return {
        "conversations": len(conversations) if cells else built[0],
        "unscored": sum(cell.unscored for cell in cells),
        "tokens": sum(all_tokens(each) or 0 for each in conversations) if cells else built[1],
        "stages": times,
    }


def main() -> None:
    """Start the recipe from the command line."""
    launch(ReportConfig, run)


if __name__ == "__main__":
    main()
