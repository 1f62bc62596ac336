"""The main job end to end on the embedded model: simulated futures, an MR for each reply, an MR-ranked dataset, a LoRA adapter
trained on it, and held-out tasks before and after. `make demo` runs it; everything lands in one folder.

Each stage is another recipe with the overrides that stand in `conf/demo.yaml`, exactly as one would type them; kill it and
start it again, and finished stages and answered model calls are not repeated.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from collab.evaluation.comparison import rewards
from collab.evaluation.reward_windows import ReplyUnderWindows, mean_by_window, rewards_under_windows
from collab.evaluation.run import EvaluatedConversation
from collab.evaluation.statistics import PairedDifference, compare_by_task
from collab.tasks.task import Task
from recipes import build, evaluate, sft
from recipes.configuration.launch import launch
from recipes.configuration.overrides import stage_configuration
from recipes.configuration.schema import Build, Demo, Evaluate, Sft
from recipes.running import assembly, demo_report
from recipes.running.run import Run, open_run
from recipes.running.run_folder import RunFolder

WINDOWS = (0, 1, 2)


def run(config: Demo) -> dict[str, Any]:
    """Run every stage and return the summary that is written to `summary.json`."""
    started = time.monotonic()
    folder = RunFolder(config).claim()
    of_build, of_sft, of_evaluate = stage_configs(config)

    announce(1, "What is a reply worth? The same two replies under growing windows (CollabLLM Figure 6)")
    windows = reply_rewards(config, of_build)
    print_windows(windows)

    announce(2, "Build an MR-ranked dataset from simulated futures", of_build.output_dir)
    statistics = build.run(of_build)
    demo_report.print_statistics(statistics)

    announce(3, "LoRA SFT on the best-ranked conversations", of_sft.output_dir)
    adapter = Path(of_sft.output_dir) / "adapter"
    if not (adapter / "adapter_model.safetensors").is_file():
        sft.run(of_sft)

    announce(4, "Held-out tasks, before and after", of_evaluate.output_dir)
    cells = {cell.policy: cell for cell in evaluate.run(of_evaluate)}
    results = {name: list(cell.conversations) for name, cell in cells.items()}

    paired = compare_by_task(rewards(cells["before"]), rewards(cells["after"]))
    summary = summarize(paired, results) | {"seconds": round(time.monotonic() - started, 1)}
    (folder.path / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    folder.log_metrics("demo", **summary)
    page = demo_report.write(folder.path, config, windows, statistics, results, paired, summary)
    print(f"\nreport: {page}\nconversations: collab view {of_build.output_dir}\n")
    print(json.dumps(summary))
    return summary


def stage_configs(config: Demo) -> tuple[Build, Sft, Evaluate]:
    """Compose the configuration of each stage from the overrides in the demo's."""
    root = Path(config.output_dir)
    of_all = [f"seed={config.seed}"]
    adapter = root / "sft" / "adapter"
    policies = ["~policies.base", "~policies.proactive"]
    policies += [f"+policies={{before: {{prompt: none}}, after: {{prompt: none, adapter: '{adapter}'}}}}"]
    build_ = [*config.build, f"limit={config.train_tasks}", f"output_dir={root / 'build'}", *of_all]
    sft_ = [*config.sft, f"data={root / 'build'}", f"output_dir={root / 'sft'}", *of_all]
    numbers = [f"limit={config.held_out_tasks}", f"runs={config.runs}"]
    evaluate_ = [*config.evaluate, *numbers, *policies, f"output_dir={root / 'evaluate'}", *of_all]
    return stage_configuration(Build, build_), stage_configuration(Sft, sft_), stage_configuration(Evaluate, evaluate_)


def announce(number: int, what: str, where: str = "") -> None:
    """Print the heading of a stage."""
    print(f"\n[{number}/4] {what}{where and f'  -> {where}'}\n", flush=True)


def reply_rewards(config: Demo, of_build: Build) -> list[ReplyUnderWindows]:
    """Score an asking and a guessing reply to held-out openings that lack a fact, under every window."""
    held_out = replace(of_build, split="test", limit=None, output_dir=str(Path(config.output_dir) / "windows"))

    async def score(run: Run) -> list[ReplyUnderWindows]:
        environment = assembly.policy_environment(held_out, run.models)
        policy = assembly.policy(held_out.policy, run.models, environment)
        replies = asking_and_guessing(assembly.tasks(held_out).tasks, config.figure_six_tasks)
        return await rewards_under_windows(
            environment, policy, replies, windows=WINDOWS, num_samples=config.figure_six_samples, seed=config.seed
        )

    with open_run(held_out) as run:
        return run.wait_for(score(run))


def asking_and_guessing(tasks: Sequence[Task], count: int) -> list[tuple[Task, str, str]]:
    """Return an asking and a guessing reply for the first task of each kind that lacks its fact."""
    first_of_kind = {task.metadata["kind"]: task for task in reversed(tasks) if task.metadata["lacking"]}
    replies = []
    for kind, (question, guess) in list(demo_report.REPLIES.items())[:count]:
        task = first_of_kind[kind]
        replies += [(task, "asking", question), (task, "guessing", guess)]
    return replies


def print_windows(results: list[ReplyUnderWindows]) -> None:
    """Print R* and accuracy by window for both kinds of reply."""
    from rich.console import Console
    from rich.table import Table

    table = Table("reply", "", *(f"window {window}" for window in WINDOWS))
    accuracy = mean_by_window(results, "accuracy")
    for kind, by_window in mean_by_window(results).items():
        for name, row in (("R*", by_window), ("accuracy", accuracy[kind])):
            table.add_row(kind, name, *(f"{row[window]:+.3f}" for window in WINDOWS))
    Console().print(table)
    for result in results[:2]:
        print(f"  {result.kind}: {result.reply}")


def summarize(paired: PairedDifference, results: dict[str, list[EvaluatedConversation]]) -> dict[str, Any]:
    """Return the figures of `summary.json`: R* with the paired interval, how often first replies ask, tokens a conversation."""
    summary: dict[str, Any] = {
        "r_star_before": round(paired.before, 4),
        "r_star_after": round(paired.after, 4),
        "r_star_difference": round(paired.difference.estimate, 4),
        "ci_low": None if paired.difference.low is None else round(paired.difference.low, 4),
        "ci_high": None if paired.difference.high is None else round(paired.difference.high, 4),
    }
    for when, conversations in results.items():
        for name, lacking in (("needed", True), ("unneeded", False)):
            group = [each for each in conversations if each.reward is not None and each.task["lacking"] == lacking]
            summary[f"ask_rate_{name}_{when}"] = _mean([bool(each.asked and each.asked[0]) for each in group])
            summary[f"accuracy_{name}_{when}"] = _mean([each.components["accuracy"] for each in group])
        summary[f"tokens_{when}"] = _mean([each.policy_tokens for each in conversations])
    return summary


def _mean(values: list[Any]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


def main() -> None:
    """Start the recipe from the command line."""
    launch(Demo, run)


if __name__ == "__main__":
    main()
