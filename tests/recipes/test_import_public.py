"""`collab import`: a dataset in the public CollabLLM columns becomes a run, trains a step, and is written again as it was."""

import json
import math
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from collab.data.export import read_rows
from simulators.tree_file import read_trees
from tests.data.test_public_columns import dataset
from tests.recipes.conftest import Collab, Ended


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def said(ended: Ended) -> str:
    assert ended.status == 1
    return ended.sentence.removeprefix("collab: ")


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "saved"])
def test_what_is_imported_is_exported_as_it_was(collab: Collab, kind: str) -> None:
    source = Path(f"public.{kind}")
    if kind == "parquet":
        write(source, dataset())
    elif kind == "jsonl":
        source.write_text("".join(json.dumps(row) + "\n" for row in dataset()))
    else:
        import datasets

        datasets.Dataset.from_list(dataset()).save_to_disk(str(source))
    ended = collab("import", f"data={source}", "output_dir=run", "licence=mit")
    assert ended.status == 0, ended.err
    assert "2 conversations, 3 turns, 3 pairs -> run/dataset" in ended.out
    assert pyarrow.parquet.read_table("run/dataset/public.parquet").to_pylist() == dataset()
    assert [tree.task_id for tree in read_trees(Path("run"))] == ["conv-000003", "conv-000007"]
    assert "license: mit" in Path("run/dataset/README.md").read_text()
    assert collab("view", "run", "page.html").status == 0


def test_the_views_can_be_changed_afterwards(collab: Collab) -> None:
    write(Path("public.parquet"), dataset())
    assert collab("import", "data=public.parquet", "output_dir=run").status == 0
    again = collab("import", "data=public.parquet", "output_dir=run", "min_gap=0.5", "splits.train=0.5", "splits.test=0.5")
    assert again.status == 0, again.err
    rows = [*read_rows(Path("run"), "dpo"), *read_rows(Path("run"), "dpo", "test")]
    assert sorted(row["mr_chosen"] - row["mr_rejected"] for row in rows) == [0.75, 1.25]


def test_bad_rows_are_refused_or_skipped_with_their_place(collab: Collab) -> None:
    rows = dataset()
    rows[2] = rows[2] | {"score": math.inf}
    write(Path("public.parquet"), rows)
    refused = said(collab("import", "data=public.parquet", "output_dir=run"))
    assert refused == "public.parquet, row 3: field 'score' must be a finite number; mend it or set on_bad_record=skip"
    ended = collab("import", "data=public.parquet", "output_dir=run", "on_bad_record=skip")
    assert ended.status == 0, ended.err
    assert "skipped: public.parquet, row 3: field 'score' must be a finite number" in ended.out
    assert "on_bad_record is 'drop'" in said(collab("import", "data=public.parquet", "output_dir=other", "on_bad_record=drop"))


def test_what_is_no_such_dataset_is_refused(collab: Collab) -> None:
    Path("sums.jsonl").write_text('{"question": "3?"}\n')
    assert "sums.jsonl, line 1: column 'prompt' is missing" in said(collab("import", "data=sums.jsonl", "output_dir=run"))
    assert "does not exist" in said(collab("import", "data=missing.parquet", "output_dir=run"))
    assert "data is not set" in said(collab("import", "output_dir=run"))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_a_public_dataset_trains_a_step(collab: Collab, tiny_model_folder: Path, method: str) -> None:
    write(Path("public.parquet"), dataset())
    assert collab("import", "data=public.parquet", "output_dir=run").status == 0
    for data in ("run", "public.parquet"):  # through the import, or as it is
        ended = collab(
            "train", method, f"data={data}", f"model={tiny_model_folder}", f"output_dir=trained-{data}",
            "optimization.max_steps=1", "optimization.batch_size=2", "optimization.per_device_batch_size=2",
            "optimization.gradient_checkpointing=false", "optimization.max_length=256", "lora.rank=2",
        )  # fmt: skip
        assert ended.status == 0, ended.err
        steps = [json.loads(line) for line in Path(f"trained-{data}/metrics.jsonl").read_text().splitlines()]
        assert any(math.isfinite(step.get("loss", math.nan)) for step in steps)
    assert pyarrow.parquet.read_table("run/dataset/public.parquet").to_pylist() == dataset()
