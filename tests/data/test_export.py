"""Parquet datasets with a card: what is written can be read back, says what is in it, and is the same every time."""

import copy
import errno
import hashlib
import os
import re
import shutil
from pathlib import Path

import pyarrow.parquet
import pytest

from collab.data.export import ExportSettings, candidate_mrs, export_datasets, read_rows, statistics, training_rows
from collab.data.views import PairSettings, dpo_rows, sft_rows
from simulators.errors import ConfigurationError, StorageError
from tests.data.small_trees import TREES

PAIRS = PairSettings()


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    export_datasets(TREES, tmp_path, pairs=PAIRS)
    assert read_rows(tmp_path, "sft") == list(sft_rows(TREES))
    assert read_rows(tmp_path, "dpo") == list(dpo_rows(TREES))


@pytest.mark.parametrize("splits", [{}, {"train": 0.5, "validation": 0.5}])
def test_conversations_about_problems_to_measure_with_are_not_trained_on(tmp_path: Path, splits: dict[str, float]) -> None:
    settings = ExportSettings(splits, public_columns=True)
    export_datasets(TREES, tmp_path / "free", pairs=PAIRS, settings=settings)
    assert training_rows(tmp_path / "free", "sft") == read_rows(tmp_path / "free", "sft")
    tested = copy.deepcopy(TREES)
    for tree in tested:
        tree.metadata["held_out"] = "the test split of GSM8K"
    export_datasets(tested, tmp_path / "run" / "dataset", pairs=PAIRS, settings=settings)
    assert read_rows(tmp_path / "run", "sft")  # to be looked at, not to be trained on
    taken = tmp_path / "taken.parquet"
    shutil.copy(next((tmp_path / "run" / "dataset").glob("public*.parquet")), taken)
    for place in (tmp_path / "run", tmp_path / "run" / "dataset", taken):
        with pytest.raises(ConfigurationError, match=r"problems of the test split of GSM8K; train on others"):
            training_rows(place, "dpo")


def test_a_run_folder_is_read_through_its_dataset_folder(tmp_path: Path) -> None:
    export_datasets(TREES, tmp_path / "dataset", pairs=PAIRS)
    assert len(read_rows(tmp_path, "sft")) == 3


def test_the_files_are_what_the_datasets_library_reads(tmp_path: Path) -> None:
    import datasets

    export_datasets(TREES, tmp_path, pairs=PAIRS)
    loaded = datasets.load_dataset(str(tmp_path), "dpo", split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded[0]["chosen"] == [{"role": "assistant", "content": "For when?"}]


def test_a_dataset_without_rows_has_its_columns_and_is_not_offered(tmp_path: Path) -> None:
    figures = export_datasets(TREES[1:3], tmp_path, pairs=PAIRS)
    assert (figures.pairs, figures.chosen_mr, figures.length_gap) == (0, None, None)
    assert read_rows(tmp_path, "dpo") == []
    assert pyarrow.parquet.read_schema(tmp_path / "dpo.parquet").names[:3] == ["prompt", "chosen", "rejected"]
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "config_name: sft" in card
    assert "config_name: dpo" not in card
    assert "| - | - |" in card


def test_the_same_trees_give_the_same_bytes(tmp_path: Path) -> None:
    def digests(folder: Path) -> dict[str, str]:
        export_datasets(TREES, folder, pairs=PAIRS, card={"seed": 0})
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}

    first, again = digests(tmp_path / "one"), digests(tmp_path / "two")
    assert first == again
    assert sorted(first) == ["README.md", "dpo.parquet", "sft.parquet"]


def test_statistics_are_those_of_table_5() -> None:
    figures = statistics(TREES, PAIRS)
    assert (figures.conversations, figures.turns, figures.pairs, figures.stopped_tasks) == (3, 4, 3, 1)
    assert figures.turns_per_conversation == 4 / 3
    chosen, rejected = [0.5, 1.0, -0.5], [-0.25, 0.25, -1.0]
    for found, values in ((figures.chosen_mr, chosen), (figures.rejected_mr, rejected)):
        mean = sum(values) / 3
        assert found == pytest.approx((mean, (sum((value - mean) ** 2 for value in values) / 3) ** 0.5), rel=1e-12)
    assert figures.length_gap == (len("For when?") - len("Done.") + 0 + 0) / 3
    assert (figures.futures, figures.failed_futures) == (9 * 4 + 2 * 3, 9 + 2 * 3)
    assert candidate_mrs(TREES) == [0.5, -0.25, 0.0, 1.0, 0.25, 0.75, 0.75, -0.5, -1.0]


def test_the_statistics_are_those_of_the_files(tmp_path: Path) -> None:
    figures = export_datasets(TREES, tmp_path, pairs=PairSettings(min_chosen_mr=0.0), min_chosen_mr=0.0)
    rows = read_rows(tmp_path, "sft")
    assert (figures.conversations, figures.turns) == (len(rows), sum(row["turns"] for row in rows)) == (2, 3)
    assert figures.pairs == len(read_rows(tmp_path, "dpo")) == 2


def test_the_card_states_the_figures_and_how_it_was_made(tmp_path: Path) -> None:
    export_datasets(TREES, tmp_path, pairs=PAIRS, card={"seed": 7, "tasks": "größer"})
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nconfigs:\n- config_name: sft\n  data_files: sft.parquet\n")
    assert "| 3 | 4 | 1.33 | 3 | 0.333 ± 0.624 | -0.333 ± 0.514 |" in card
    assert "Futures sampled: 42, of which 15 failed" in card
    assert re.search(r'"seed": 7,\s+"tasks": "größer"', card)


@pytest.mark.parametrize("name", ["sft", "dpo"])
def test_a_folder_without_the_dataset_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"has no {name}.parquet"):
        read_rows(tmp_path, name)


def test_a_damaged_dataset_is_refused(tmp_path: Path) -> None:
    export_datasets(TREES, tmp_path, pairs=PAIRS)
    path = tmp_path / "sft.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ConfigurationError, match="cannot be read as Parquet"):
        read_rows(tmp_path, "sft")


def test_a_disk_that_fills_up_leaves_the_last_export_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export_datasets(TREES[:1], tmp_path, pairs=PAIRS)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as stream:
            stream.write(data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match="No space left on device; the trees they come from are kept"):
        export_datasets(TREES, tmp_path, pairs=PAIRS)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
