"""The dataset card: what is in the files, the figures of Table 5, what the MR gap is made of, and how all of it was made."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from collab.data.figures import DatasetStatistics
from collab.data.splits import WHOLE

_OF_THIS_MACHINE = re.compile(
    r"output_dir|push_to|push_private|max_open_tasks|max_failure_share|(shard|budget|engine)(\..*)?"
    r"|(.*\.)?(urls|api_key_env|max_batch_size|max_concurrency|deadline_s)|(.*\.)?price\..*"
)
"""Keys that say where and how fast a dataset was made, not what is in it. They stay out of the card: it must be the same
wherever the dataset was made, and addresses are nobody's business."""

_WHAT = {
    "sft": "the kept conversations",
    "dpo": "pairs of a better and a worse reply",
    "public": "every scored reply, in the columns of the public CollabLLM datasets",
}


def file_name(dataset: str, split: str) -> str:
    """Return the name of the file that holds a dataset's split."""
    return f"{dataset}.parquet" if split == WHOLE else f"{dataset}-{split}.parquet"


def dataset_card(figures: DatasetStatistics, config: Mapping[str, Any], licence: str | None = None) -> str:
    """Return the card as Markdown with the front matter of the Hub."""
    details = without_machine(config)
    parts = [
        *_front_matter(figures, licence),
        "# MR-ranked conversations",
        "",
        *[f"**Warning**: {warning}." for warning in figures.warnings],
        *([""] if figures.warnings else []),
        "Built by forward sampling: at every turn several candidate replies were ranked by their Multiturn-aware Reward (MR),",
        "and the conversation went on with the best one. `sft` holds the kept conversations, `dpo` better and worse replies to",
        "the same history. `task_id`, `chosen_node` and `rejected_node` point into the run's `trees.jsonl`.",
        "",
        *_statistics(figures),
        *_gap(figures),
        *_origin(details, licence),
        *_simulator(figures, details),
    ]
    if details:
        code = json.dumps(details, indent=1, ensure_ascii=False, default=str)
        parts += ["", "## How it was made", "", "```json", code, "```"]
    return "\n".join(parts) + "\n"


def without_machine(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the part of a configuration that decides what is in the dataset."""
    kept: dict[str, Any] = {}
    for name, value in config.items():
        key = f"{prefix}{name}"
        if _OF_THIS_MACHINE.fullmatch(key):
            continue
        if isinstance(value, Mapping):
            inner = without_machine(value, f"{key}.")
            if inner or not value:
                kept[str(name)] = inner
        else:
            kept[str(name)] = _without_folders(value)
    return kept


def _without_folders(value: Any) -> Any:
    """Return the last part of a path on this machine, anything else as it is."""
    is_path = isinstance(value, str) and value.startswith(("/", "~", "./", "../")) and "\n" not in value
    return value.rstrip("/").rpartition("/")[2] if is_path else value


def _front_matter(figures: DatasetStatistics, licence: str | None) -> list[str]:
    """Return the YAML head of the card. `datasets` cannot load a file without rows, so those are not offered."""
    lines: list[str] = []
    for dataset, splits in figures.rows.items():
        filled = {split: rows for split, rows in splits.items() if rows}
        if WHOLE in filled:
            lines += [f"- config_name: {dataset}", f"  data_files: {file_name(dataset, WHOLE)}"]
        elif filled:
            lines += [f"- config_name: {dataset}", "  data_files:"]
            for split in filled:
                lines += [f"  - split: {split}", f"    path: {file_name(dataset, split)}"]
    head = ["configs:", *lines] if lines else []
    if licence:
        head.append(f"license: {licence}")
    return ["---", *head, "---", ""] if head else []


def _statistics(figures: DatasetStatistics) -> list[str]:
    def spread(pair: tuple[float, float] | None) -> str:
        return "-" if pair is None else f"{pair[0]:.3f} ± {pair[1]:.3f}"

    lines = [
        "| conversations | turns | average turns | pairs | chosen MR | rejected MR |",
        "|---|---|---|---|---|---|",
        f"| {figures.conversations} | {figures.turns} | {figures.turns_per_conversation:.2f} | {figures.pairs} "
        f"| {spread(figures.chosen_mr)} | {spread(figures.rejected_mr)} |",
        "",
        f"Futures sampled: {figures.futures}, of which {figures.failed_futures} failed and are left out of every mean.",
    ]
    if figures.stopped_tasks:
        lines.append(f"Tasks that stopped early because calls failed: {figures.stopped_tasks}.")
    if figures.duplicates:
        lines.append(f"Rows left out because an equal one was there: {figures.duplicates}.")
    split_rows = [
        f"| {dataset} ({_WHAT[dataset]}) | {split} | {rows} |"
        for dataset, splits in figures.rows.items()
        for split, rows in splits.items()
        if split != WHOLE
    ]
    if split_rows:
        lines += ["", "| dataset | split | rows |", "|---|---|---|", *split_rows]
        lines += ["", "Splits are by task: no task, and nothing that belongs to it, is in two of them."]
    return lines


def _gap(figures: DatasetStatistics) -> list[str]:
    if figures.length_gap is None:
        return []
    longer = figures.chosen_longer or 0.0
    lines = [
        "",
        "## What the MR gap is made of",
        "",
        f"Chosen replies are {figures.length_gap:+.0f} characters longer than rejected ones on average; {longer:.0%} of them are "
        "longer.",
    ]
    if figures.gap_shares:
        lines += ["", "| reward component | part of the mean MR gap |", "|---|---|"]
        lines += [f"| {name} | {share:.1%} |" for name, share in figures.gap_shares.items()]
        cost = figures.gap_shares.get("token_cost")
        if cost is not None:
            lines += ["", f"The token cost explains {cost:.1%} of the MR gap."]
    return lines


def _origin(details: Mapping[str, Any], licence: str | None) -> list[str]:
    source = details.get("tasks") or details.get("data")
    if source is None:
        return []
    environment = details.get("environment")
    of = f"environment `{environment.get('name')}`, " if isinstance(environment, Mapping) else ""
    stated = f"licence: {licence}" if licence else "licence: not known; state it (`licence=...`) before you pass the data on"
    return [
        "",
        "## Source",
        "",
        f"Tasks: `{source}` ({of}split `{details.get('split', '')}`); {stated}.",
    ]


def _simulator(figures: DatasetStatistics, details: Mapping[str, Any]) -> list[str]:
    if not all(isinstance(details.get(role), Mapping) for role in ("user", "judge", "policy")):
        return []
    user, judge, policy = details["user"], details["judge"], details["policy"]
    who = "made of rules" if user.get("kind") == "scripted" else f"`{user.get('model')}` ({user.get('kind')})"
    by = "none, rewards are by rule" if judge.get("kind") == "none" else f"`{judge.get('model')}`"
    lines = ["", "## Who talked, who judged", ""]
    lines += [f"- policy: `{policy.get('model')}`", f"- simulated user: {who}", f"- judge: {by}"]
    faults = {flag: rate for flag, rate in figures.user_faults.items() if rate}
    if faults:
        lines.append("- flags on simulated user turns: " + ", ".join(f"{flag} {rate:.1%}" for flag, rate in faults.items()))
    return lines
