"""Write a build's views as Parquet datasets with a dataset card: SFT conversations, DPO pairs, and the figures of Table 5."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from collab.data.views import PairSettings, candidates, dpo_rows, kept_nodes, mr_of, sft_rows
from simulators.conversation import ConversationTree
from simulators.errors import StorageError


@dataclass(frozen=True, slots=True)
class DatasetStatistics:
    """The columns of CollabLLM's Table 5, and what happened to the futures.

    `chosen_mr` and `rejected_mr` are (mean, standard deviation) over the pairs, in units of R*; None without any pair.
    `length_gap` is the mean number of characters by which chosen replies are longer than rejected ones.
    """

    conversations: int
    turns: int
    pairs: int
    chosen_mr: tuple[float, float] | None
    rejected_mr: tuple[float, float] | None
    length_gap: float | None
    futures: int
    failed_futures: int
    stopped_tasks: int

    @property
    def turns_per_conversation(self) -> float:
        return self.turns / self.conversations if self.conversations else 0.0


def statistics(trees: Sequence[ConversationTree], pairs: PairSettings, min_chosen_mr: float | None = None) -> DatasetStatistics:
    """Compute the statistics of the datasets that these settings give."""
    conversations = list(sft_rows(trees, min_chosen_mr))
    rows = list(dpo_rows(trees, pairs))
    estimates = [
        reply.annotations["mr"]
        for tree in trees
        for node in kept_nodes(tree)
        if node.message.role == "user"
        for reply in candidates(tree, node.id)
    ]
    return DatasetStatistics(
        conversations=len(conversations),
        turns=sum(row["turns"] for row in conversations),
        pairs=len(rows),
        chosen_mr=_mean_and_deviation([row["mr_chosen"] for row in rows]),
        rejected_mr=_mean_and_deviation([row["mr_rejected"] for row in rows]),
        length_gap=_mean([len(row["chosen"][0]["content"]) - len(row["rejected"][0]["content"]) for row in rows]),
        futures=sum(estimate["used"] + estimate["failed"] for estimate in estimates),
        failed_futures=sum(estimate["failed"] for estimate in estimates),
        stopped_tasks=sum("stopped" in tree.metadata for tree in trees),
    )


def candidate_mrs(trees: Iterable[ConversationTree]) -> list[float]:
    """Return the MR of every scored candidate, for a distribution plot."""
    return [
        worth
        for tree in trees
        for node in kept_nodes(tree)
        if node.message.role == "user"
        for reply in candidates(tree, node.id)
        if (worth := mr_of(reply)) is not None
    ]


def export_datasets(
    trees: Sequence[ConversationTree],
    folder: Path,
    *,
    pairs: PairSettings,
    min_chosen_mr: float | None = None,
    card: Mapping[str, Any] | None = None,
) -> DatasetStatistics:
    """Write `sft.parquet`, `dpo.parquet` and `README.md` (the dataset card) below `folder`; return the statistics.

    Rows come in the order of `trees`, so sorting the trees by task makes the files independent of timing. Files are replaced
    whole, never left half written.

    Raises:
        StorageError: when the disk refuses.
    """
    figures = statistics(trees, pairs, min_chosen_mr)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_parquet(folder / "sft.parquet", list(sft_rows(trees, min_chosen_mr)), _SFT_COLUMNS)
        _write_parquet(folder / "dpo.parquet", list(dpo_rows(trees, pairs)), _DPO_COLUMNS)
        _replace(folder / "README.md", _card(figures, card or {}).encode())
    except OSError as error:
        raise StorageError(
            f"cannot write the datasets to {folder}: {error.strerror}; the trees they come from are kept"
        ) from None
    return figures


def read_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of `sft` or `dpo` in a folder that `export_datasets` (or `collab build`) wrote.

    Raises:
        ConfigurationError: when there is no such dataset.
    """
    import pyarrow.lib
    import pyarrow.parquet

    from simulators.errors import ConfigurationError

    path = next((base / f"{name}.parquet" for base in (folder, folder / "dataset") if (base / f"{name}.parquet").is_file()), None)
    if path is None:
        raise ConfigurationError(f"{folder} has no {name}.parquet; give the output folder of `collab build`")
    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.lib.ArrowInvalid, OSError) as error:
        raise ConfigurationError(f"{path} cannot be read as Parquet ({error}); build it again") from None
    return rows


_SFT_COLUMNS = {"messages": "messages", "task_id": "string", "mr": "float64", "turns": "int64"}
_DPO_COLUMNS = {
    "prompt": "messages",
    "chosen": "messages",
    "rejected": "messages",
    "task_id": "string",
    "turn": "int64",
    "mr_chosen": "float64",
    "mr_rejected": "float64",
    "chosen_node": "int64",
    "rejected_node": "int64",
}


def _write_parquet(path: Path, rows: list[dict[str, Any]], columns: Mapping[str, str]) -> None:
    """Write rows with the given columns, so that a dataset without rows has them too."""
    import pyarrow
    import pyarrow.parquet

    text = pyarrow.string()
    types = {"messages": pyarrow.list_(pyarrow.struct([("role", text), ("content", text)]))}
    schema = pyarrow.schema([(name, types.get(kind) or pyarrow.type_for_alias(kind)) for name, kind in columns.items()])
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema), sink)
    _replace(path, sink.getvalue().to_pybytes())


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".part")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _card(figures: DatasetStatistics, details: Mapping[str, Any]) -> str:
    def spread(pair: tuple[float, float] | None) -> str:
        return "-" if pair is None else f"{pair[0]:.3f} ± {pair[1]:.3f}"

    rows = {"sft": figures.conversations, "dpo": figures.pairs}  # `datasets` cannot load a file without rows
    configs = [line for name in rows if rows[name] for line in (f"- config_name: {name}", f"  data_files: {name}.parquet")]
    lines = [
        *(["---", "configs:", *configs, "---", ""] if configs else []),
        "# MR-ranked conversations",
        "",
        "Built by forward sampling: at every turn several candidate replies were ranked by their Multiturn-aware Reward (MR),",
        "and the conversation went on with the best one. `sft` holds the kept conversations, `dpo` the best and the worst reply",
        "of each turn. `task_id`, `chosen_node` and `rejected_node` point into the run's `trees.jsonl`.",
        "",
        "| conversations | turns | average turns | pairs | chosen MR | rejected MR |",
        "|---|---|---|---|---|---|",
        f"| {figures.conversations} | {figures.turns} | {figures.turns_per_conversation:.2f} | {figures.pairs} "
        f"| {spread(figures.chosen_mr)} | {spread(figures.rejected_mr)} |",
        "",
        f"Futures sampled: {figures.futures}, of which {figures.failed_futures} failed and are left out of every mean.",
    ]
    if figures.length_gap is not None:
        lines.append(f"Chosen replies are {figures.length_gap:+.0f} characters longer than rejected ones on average.")
    if details:
        lines += ["", "## How it was made", "", "```json", json.dumps(details, indent=1, ensure_ascii=False, default=str), "```"]
    return "\n".join(lines) + "\n"


def as_plain(figures: DatasetStatistics) -> dict[str, Any]:
    """Return the statistics as plain data, for metrics.jsonl."""
    return asdict(figures) | {"turns_per_conversation": figures.turns_per_conversation}


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _mean_and_deviation(values: Sequence[float]) -> tuple[float, float] | None:
    mean = _mean(values)
    if mean is None:
        return None
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
