"""Write a build's views as Parquet datasets with a dataset card, and read them back.

Trees are read one at a time and rows are written in groups, so memory does not grow with the dataset. The files depend on the
trees and the settings alone, never on timing or on how many machines built the trees.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from collab.data.card import dataset_card, file_name
from collab.data.figures import DatasetStatistics as DatasetStatistics
from collab.data.figures import Figures
from collab.data.figures import as_plain as as_plain
from collab.data.figures import candidate_mrs as candidate_mrs
from collab.data.public_columns import PublicSchema, is_public, public_rows, trees_from_rows
from collab.data.splits import WHOLE, check_shares, split_of
from collab.data.views import PairSettings, balanced_pairs, dpo_row, dpo_rows, pairs_of, sft_row, sft_rows
from collab.environments.domain import BadRecord
from simulators.conversation import ConversationTree
from simulators.errors import ConfigurationError, StorageError

_ROWS_AT_ONCE = 1_000
_PART = ".part"
_HELD_OUT = "held_out"


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """How a dataset is laid out.

    `splits` are shares by name (`{"train": 0.9, "validation": 0.1}`; none: one file), by task. `deduplicate` leaves out rows that
    say what an earlier one says. `public_columns` writes the columns of the public CollabLLM datasets, too.

    Raises:
        ConfigurationError: for shares that do not add up to 1.
    """

    splits: Mapping[str, float] = field(default_factory=dict)
    deduplicate: bool = True
    public_columns: bool = False

    def __post_init__(self) -> None:
        check_shares(self.splits)


def statistics(trees: Iterable[ConversationTree], pairs: PairSettings, min_chosen_mr: float | None = None) -> DatasetStatistics:
    """Compute the statistics of the datasets that these settings give."""
    figures = Figures()
    for _ in _rows(trees, pairs, min_chosen_mr, ExportSettings(), figures):
        pass
    return figures.statistics()


def export_datasets(
    trees: Iterable[ConversationTree],
    folder: Path,
    *,
    pairs: PairSettings,
    min_chosen_mr: float | None = None,
    card: Mapping[str, Any] | None = None,
    settings: ExportSettings | None = None,
    licence: str | None = None,
) -> DatasetStatistics:
    """Write `sft.parquet`, `dpo.parquet` and `README.md` (the dataset card) below `folder`; return the statistics.

    With splits the files are `sft-train.parquet` and so on; with public columns there is `public.parquet`, too. `trees` must be
    iterable more than once; rows come in their order. `min_chosen_mr` is the threshold of SFT replies, `card` the configuration
    that the card shows. Files are replaced whole and together, never left half written.

    Raises:
        StorageError: when the disk refuses.
    """
    settings = settings or ExportSettings()
    figures = Figures()
    schemas: dict[str, Any] = {name: _schema(columns) for name, columns in _COLUMNS.items()}
    public = PublicSchema(_public_rows(trees)) if settings.public_columns else None
    if public is not None:
        schemas["public"] = public.arrow()
    files: dict[tuple[str, str], _RowFile] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, schema in schemas.items():
            for split in settings.splits or (WHOLE,):
                files[name, split] = _RowFile(folder / file_name(name, split), schema)
        for name, split, row, held_out in _rows(trees, pairs, min_chosen_mr, settings, figures):
            files[name, split].add(public.fit(row) if name == "public" and public is not None else row, held_out)
        for file in files.values():
            file.close()
        found = figures.statistics()
        readme = folder / ("README.md" + _PART)
        readme.write_bytes(dataset_card(found, card or {}, licence).encode())
        for file in files.values():
            file.replace()
        readme.replace(folder / "README.md")
        _remove_others(folder, {file.path.name for file in files.values()})
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(f"cannot write the datasets to {folder}: {reason}; the trees they come from are kept") from None
    finally:
        for file in files.values():
            file.discard()
        (folder / ("README.md" + _PART)).unlink(missing_ok=True)
    return found


def _rows(
    trees: Iterable[ConversationTree],
    pairs: PairSettings,
    min_chosen_mr: float | None,
    settings: ExportSettings,
    figures: Figures,
) -> Iterator[tuple[str, str, dict[str, Any], str | None]]:
    """Yield (dataset, split, row, published test set it comes from) of every row, tree by tree; count everything in `figures`."""
    wanted = None if pairs.length_quantiles is None else balanced_pairs(trees, pairs)
    conversations = replace(pairs, min_chosen_mr=min_chosen_mr)
    seen: set[bytes] = set()

    def is_new(*parts: Any) -> bool:
        if not settings.deduplicate:
            return True
        digest = _digest(parts)
        if digest in seen:
            figures.duplicates += 1
            return False
        seen.add(digest)
        return True

    for number, tree in enumerate(trees):
        figures.add_tree(tree)
        split, held_out = split_of(tree, settings.splits), tree.metadata.get("held_out")
        row = sft_row(tree, conversations)
        if row is not None and is_new("sft", row["messages"]):
            figures.add_conversation(row, split)
            yield "sft", split, row, held_out
        for pair in pairs_of(tree, pairs, wanted):
            row = dpo_row(tree, pair)
            if is_new("dpo", row["prompt"], row["chosen"], row["rejected"]):
                figures.add_pair(pair, tree, split)
                yield "dpo", split, row, held_out
        if settings.public_columns:
            for row in public_rows(tree, number):
                figures.add_row("public", split)
                yield "public", split, row, held_out


def _public_rows(trees: Iterable[ConversationTree]) -> Iterator[dict[str, Any]]:
    for number, tree in enumerate(trees):
        yield from public_rows(tree, number)


def _digest(parts: Sequence[Any]) -> bytes:
    """Return what tells rows apart: their texts, white space aside."""
    texts = [
        part if isinstance(part, str) else [[message["role"], " ".join(message["content"].split())] for message in part]
        for part in parts
    ]
    return hashlib.sha256(json.dumps(texts).encode("ascii")).digest()[:16]


# ---------------------------------------------------------------- files


_COLUMNS = {
    "sft": {"messages": "messages", "task_id": "string", "mr": "float64", "turns": "int64"},
    "dpo": {
        "prompt": "messages",
        "chosen": "messages",
        "rejected": "messages",
        "task_id": "string",
        "turn": "int64",
        "mr_chosen": "float64",
        "mr_rejected": "float64",
        "chosen_node": "int64",
        "rejected_node": "int64",
    },
}


def _schema(columns: Mapping[str, str]) -> Any:
    """Return the Arrow schema of columns, so that a dataset without rows has them too."""
    import pyarrow

    text = pyarrow.string()
    types = {"messages": pyarrow.list_(pyarrow.struct([("role", text), ("content", text)]))}
    return pyarrow.schema([(name, types.get(kind) or pyarrow.type_for_alias(kind)) for name, kind in columns.items()])


class _RowFile:
    """A Parquet file that is written beside its place, group by group, and put there when it is whole."""

    def __init__(self, path: Path, schema: Any) -> None:
        import pyarrow.parquet

        self.path = path
        self._part = path.with_name(path.name + _PART)
        self._schema = schema
        self._rows: list[dict[str, Any]] = []
        self._held_out: set[str] = set()
        self._stream = self._part.open("wb")
        self._writer = pyarrow.parquet.ParquetWriter(self._stream, schema)

    def add(self, row: dict[str, Any], held_out: str | None = None) -> None:
        """Add a row. A file that holds one from a published test set says so in its own metadata, wherever it is taken."""
        self._rows.append(row)
        self._held_out |= {held_out} if held_out is not None else set()
        if len(self._rows) >= _ROWS_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        import pyarrow

        if self._rows:
            self._writer.write_table(pyarrow.Table.from_pylist(self._rows, self._schema))
            self._rows = []

    def close(self) -> None:
        """Write what is left and end the file."""
        self._flush()
        if self._held_out:
            self._writer.add_key_value_metadata({_HELD_OUT: " and ".join(sorted(self._held_out))})
        self._writer.close()
        self._stream.close()

    def replace(self) -> None:
        """Put the file in its place."""
        self._part.replace(self.path)

    def discard(self) -> None:
        """Remove what was not put in its place."""
        with suppress(OSError):  # a full disk refuses the last group again when the stream is closed
            self._stream.close()
        self._part.unlink(missing_ok=True)


def _remove_others(folder: Path, current: set[str]) -> None:
    """Remove the files of an earlier export with other splits: their rows would be counted twice."""
    for name in (*_COLUMNS, "public"):
        for path in (*folder.glob(f"{name}.parquet"), *folder.glob(f"{name}-*.parquet")):
            if path.name not in current:
                path.unlink()


def read_rows(folder: Path, name: str, split: str = "train") -> list[dict[str, Any]]:
    """Return the rows of `sft` or `dpo` in a folder that `export_datasets` (or `collab build`) wrote, of one split if it has any.

    A file in the columns of the public CollabLLM datasets, or a folder of them, gives the rows that the same views of it give.

    Raises:
        ConfigurationError: when there is no such dataset.
    """
    files = _files_of(folder, name, split)
    if len(files) == 1 and files[0].name in (file_name(name, WHOLE), file_name(name, split)):
        return _read(files[0])
    if files and (rows := _read_public(files)) is not None:
        trees = trees_from_rows(rows)
        return list(sft_rows(trees)) if name == "sft" else list(dpo_rows(trees))
    raise ConfigurationError(
        f"{folder} has no {name}.parquet; give the output folder of `collab build`, or a dataset in the public columns"
    )


def _files_of(folder: Path, name: str, split: str) -> list[Path]:
    """Return the file of a dataset and split, else all files that may be in the public columns."""
    for base in (folder, folder / "dataset"):
        for path in (base / file_name(name, WHOLE), base / file_name(name, split)):
            if path.is_file():
                return [path]
    return [folder] if folder.suffix == ".parquet" else sorted([*folder.glob("*.parquet"), *folder.glob("data/*.parquet")])


def training_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of `read_rows` to train on.

    Raises:
        ConfigurationError: when there is no such dataset, or it holds conversations about problems that models are measured on.
    """
    rows = read_rows(folder, name)
    for path in _files_of(folder, name, "train"):
        if (where := _held_out_in(path)) is not None:
            raise ConfigurationError(
                f"{path} holds conversations about problems of {where}; train on others, for instance the train split"
            )
    return rows


def _held_out_in(path: Path) -> str | None:
    import pyarrow.parquet

    found = (pyarrow.parquet.read_metadata(path).metadata or {}).get(_HELD_OUT.encode())
    return found.decode() if found is not None else None


def _read_public(files: Sequence[Path]) -> list[tuple[str, Mapping[str, Any]]] | None:
    found: list[tuple[str, Mapping[str, Any]]] = []
    for path in files:
        if not path.is_file():
            raise ConfigurationError(f"{path} does not exist; give the output folder of `collab build`, or a Parquet file")
        rows = _read(path)
        if not rows or not is_public(rows[0]):
            return None
        found += [(f"{path}, row {number}", row) for number, row in enumerate(rows, start=1)]
    try:
        trees_from_rows(found)
    except BadRecord as error:
        raise ConfigurationError(f"{error}; `collab import on_bad_record=skip` leaves bad rows out") from None
    return found


def _read(path: Path) -> list[dict[str, Any]]:
    import pyarrow.lib
    import pyarrow.parquet

    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.lib.ArrowInvalid, OSError) as error:
        raise ConfigurationError(f"{path} cannot be read as Parquet ({error}); build it again") from None
    return rows
