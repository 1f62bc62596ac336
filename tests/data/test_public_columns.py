"""The public CollabLLM columns: read, looked at, trained from, and written again as they were."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from collab.data.export import ExportSettings, export_datasets, read_rows
from collab.data.public_columns import COLUMNS, public_rows, trees_from_rows
from collab.data.views import PairSettings, candidates, dpo_rows, kept_nodes, sft_rows
from collab.environments.domain import BadRecord
from simulators.conversation import ConversationTree
from tests.data.small_trees import TREES


def said(*texts: str) -> list[dict[str, str]]:
    return [{"content": text, "role": "assistant" if place % 2 else "user"} for place, text in enumerate(texts)]


def row(conv_id: int, turn_id: int, prompt: list[dict[str, str]], completion: str, score: float, **more: Any) -> dict[str, Any]:
    """A row as the published datasets have it, with two futures."""
    start = [*prompt, {"content": completion, "role": "assistant"}]
    return {
        "prompt": prompt,
        "completion": completion,
        "conv_id": conv_id,
        "score": score,
        "single_turn_prompt": f"Solve problem {conv_id}.",
        "single_turn_completion": "42",
        "single_turn_metadata": {"level": "Level 5", "type": "Algebra"},
        "turn_id": turn_id,
        "sessions": [[*start, *said("and?", f"so {number}")] for number in (1, 2)],
        "rewards": {
            "MR": [score - 0.25, score + 0.25],
            "accuracy": [0, 1],
            "interactivity": [0.5, 0.75],
            "token_amount": [0.1, 0.2],
        },
        **more,
    }


def dataset() -> list[dict[str, Any]]:
    """Two conversations; the first goes on with its best reply."""
    opening = said("help me")
    second = said("help me", "With what?", "a sum")
    return [
        row(3, 0, opening, "With what?", 1.5),
        row(3, 0, opening, "Sure!", 0.25),
        row(3, 1, second, "It is 42.", 0.5),
        row(3, 1, second, "It is 41.", 0.75),
        row(7, 0, said("another"), "Hm?", -0.5),
        row(7, 0, said("another"), "Hm!", -0.25),
        row(7, 0, said("another"), "Hm.", -1.0),
    ]


def located(rows: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    return [(f"row {number}", each) for number, each in enumerate(rows, start=1)]


def trees() -> list[ConversationTree]:
    return trees_from_rows(located(dataset()))


def test_a_dataset_comes_back_row_by_row(tmp_path: Path) -> None:
    assert [each for number, tree in enumerate(trees()) for each in public_rows(tree, number)] == dataset()
    export_datasets(trees(), tmp_path, pairs=PairSettings(), settings=ExportSettings(public_columns=True))
    table = pyarrow.parquet.read_table(tmp_path / "public.parquet")
    assert table.column_names == list(COLUMNS)
    assert table.to_pylist() == dataset()
    rewards = table.schema.field("rewards").type
    assert rewards.field("accuracy").type == pyarrow.list_(pyarrow.int64())
    assert rewards.field("MR").type == pyarrow.list_(pyarrow.float64())
    again = trees_from_rows(located(table.to_pylist()))
    assert [tree.to_record() for tree in again] == [tree.to_record() for tree in trees()]


def test_the_trees_hold_what_the_rows_say() -> None:
    first, second = trees()
    assert (first.task_id, second.task_id) == ("conv-000003", "conv-000007")
    assert (first.metadata["goal"], first.metadata["reference"]) == ("Solve problem 3.", "42")
    kept = kept_nodes(first)
    assert [node.message.content for node in kept] == ["help me", "With what?", "a sum", "It is 41."]
    estimate = kept[1].annotations["mr"]
    assert (estimate["mean"], estimate["used"], estimate["components"]["accuracy"]) == (1.5, 2, 0.5)
    assert estimate["std_error"] == pytest.approx(0.25)
    leaf = estimate["futures"][1]["leaf"]
    assert [node.message.content for node in first.path(leaf)] == ["help me", "With what?", "and?", "so 2"]
    assert [node.annotations["candidate"].get("role") for node in candidates(second, kept_nodes(second)[0].id)] == [
        None,
        "chosen",
        "rejected",
    ]


def test_pairs_and_conversations_are_the_views_of_those_trees() -> None:
    found = [(each["chosen"][0]["content"], each["rejected"][0]["content"]) for each in dpo_rows(trees())]
    assert found == [("With what?", "Sure!"), ("It is 41.", "It is 42."), ("Hm!", "Hm.")]
    assert [each["turns"] for each in sft_rows(trees())] == [2, 1]


def test_training_reads_a_public_file_or_a_folder_of_them(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(dataset()), folder / "train-00000-of-00001.parquet")
    for place in (folder, tmp_path, folder / "train-00000-of-00001.parquet"):
        assert read_rows(place, "dpo") == list(dpo_rows(trees()))
        assert read_rows(place, "sft") == list(sft_rows(trees()))


def test_conversations_about_one_problem_stay_in_one_split() -> None:
    rows = [each | {"single_turn_prompt": "the same"} for each in dataset()]
    groups = {tree.metadata["group"] for tree in trees_from_rows(located(rows))}
    assert len(groups) == 1


def test_a_dataset_without_sessions_and_rewards_is_read() -> None:
    slim = [{key: each[key] for key in ("prompt", "completion", "conv_id", "score")} for each in dataset()]
    found = trees_from_rows(located(slim))
    assert [pair["mr_chosen"] for pair in dpo_rows(found)] == [1.5, 0.75, -0.25]
    assert all(node.annotations["mr"]["used"] == 0 for node in found[0].nodes if "mr" in node.annotations)


def test_the_layout_of_the_large_datasets_is_read() -> None:
    chat = said("and?", "so 1")
    sessions = {
        "0": {"average_score": 0.5, "forward_chat": chat, "interactivity": {"score": 0.25, "thought": "hm"}},
        "1": {"average_score": None, "forward_chat": chat, "interactivity": None},
        "2": None,
    }
    old = [{key: value for key, value in row(1, 0, said("q"), "a", 0.5).items() if key != "rewards"} | {"sessions": sessions}]
    (tree,) = trees_from_rows(located(old))
    (future,) = tree.nodes[1].annotations["mr"]["futures"]
    assert (future["reward"], future["components"]) == (0.5, {"interactivity": 0.25})
    assert [node.message.content for node in tree.path(future["leaf"])] == ["q", "a", "and?", "so 1"]


def test_our_own_trees_in_public_columns_name_their_tasks() -> None:
    rows = [each for number, tree in enumerate(TREES) for each in public_rows(tree, number)]
    assert [each["single_turn_metadata"]["task_id"] for each in rows] == ["a"] * 5 + ["b"] * 2 + ["d"] * 2
    assert [each["conv_id"] for each in rows] == [0] * 5 + [1] * 2 + [3] * 2
    assert [each["turn_id"] for each in rows][:5] == [0, 0, 0, 1, 1]
    assert "Hm." not in {each["completion"] for each in rows}  # it has no MR, so it has no score


def test_metadata_of_any_kind_fits_into_one_schema(tmp_path: Path) -> None:
    made = trees()
    made[0].metadata["task"] = {"level": 5, "tags": ["a", "b"], "share": 1, "only": True}
    made[1].metadata["task"] = {"level": "five", "tags": None, "share": 0.5}
    export_datasets(made, tmp_path, pairs=PairSettings(), settings=ExportSettings(public_columns=True))
    rows = pyarrow.parquet.read_table(tmp_path / "public.parquet").to_pylist()
    assert rows[0]["single_turn_metadata"] == {"level": "5", "tags": json.dumps(["a", "b"]), "share": 1.0, "only": True}
    assert rows[-1]["single_turn_metadata"] == {"level": "five", "tags": None, "share": 0.5, "only": None}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompt": []}, "field 'prompt' must be a list of messages"),
    ({"prompt": said("a", "b")}, "that ends with the user's"),
    ({"prompt": [{"role": "tool", "content": "x"}]}, "field 'prompt' must be a list of messages"),
    ({"completion": None}, "field 'completion' must be a text"),
    ({"conv_id": "three"}, "field 'conv_id' must be a whole number"),
    ({"turn_id": 0.5}, "field 'turn_id' must be a whole number"),
    ({"score": float("nan")}, "field 'score' must be a finite number"),
    ({"score": None}, "field 'score' must be a finite number"),
    ({"sessions": [["hello"]]}, "field 'sessions' must be a list of conversations"),
]


@pytest.mark.parametrize(("change", "problem"), BAD)
def test_a_bad_row_is_refused_or_skipped_with_its_place(change: dict[str, Any], problem: str) -> None:
    rows = dataset()
    rows[1] = rows[1] | change
    with pytest.raises(BadRecord) as caught:
        trees_from_rows(located(rows))
    assert str(caught.value).startswith("row 2: ")
    assert problem in str(caught.value)
    skipped: list[str] = []
    found = trees_from_rows(located(rows), skipped)
    assert len(skipped) == 1 and skipped[0].startswith("row 2: ")
    assert sum(len(list(public_rows(tree, 0))) for tree in found) == 6


def test_a_missing_column_is_named() -> None:
    rows = [{key: value for key, value in each.items() if key != "score"} for each in dataset()]
    with pytest.raises(BadRecord, match="row 1: column 'score' is missing"):
        trees_from_rows(located(rows))
