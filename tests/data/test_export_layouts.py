"""Splits, duplicates, licences and the card: what a dataset looks like on disk beside its rows."""

from pathlib import Path
from typing import Any

import pytest

from collab.data.builder import CandidateSource, DatasetBuilder
from collab.data.card import without_machine
from collab.data.export import ExportSettings, export_datasets, read_rows, statistics
from collab.data.licences import licence_of
from collab.data.tree_set import TreeSet
from collab.data.views import PairSettings
from collab.mr import MultiturnReward
from collab.tasks.task import Task
from simulators.conversation import Conversation, ConversationTree
from simulators.errors import ConfigurationError
from simulators.tree_file import TreeFile
from simulators.users.guards import EARLY_STOP
from simulators.users.protocol import UserTurn
from tests.data.small_trees import small_tree
from tests.scripted_environment import scripted_environment, scripted_policy

PAIRS = PairSettings()


def trees(number: int, group_size: int = 1) -> list[ConversationTree]:
    return [
        small_tree(f"task-{n:03d}", [(f"question {n}", [("good", 1.0), ("bad", 0.0)])], task={"group": f"g{n // group_size}"})
        for n in range(number)
    ]


def exported(made: list[ConversationTree], folder: Path, **settings: Any) -> str:
    export_datasets(made, folder, pairs=PAIRS, settings=ExportSettings(**settings))
    return (folder / "README.md").read_text(encoding="utf-8")


def test_no_task_and_no_group_is_in_two_splits(tmp_path: Path) -> None:
    made = trees(60, group_size=3)
    card = exported(made, tmp_path, splits={"train": 0.7, "test": 0.3})
    rows = {split: read_rows(tmp_path, "sft", split) for split in ("train", "test")}
    assert len(rows["train"]) + len(rows["test"]) == 60
    groups = {split: {int(row["task_id"][-3:]) // 3 for row in each} for split, each in rows.items()}
    assert groups["train"] and groups["test"] and not groups["train"] & groups["test"]
    pair_tasks = {split: {row["task_id"] for row in read_rows(tmp_path, "dpo", split)} for split in rows}
    assert pair_tasks == {split: {row["task_id"] for row in each} for split, each in rows.items()}
    assert f"| sft (the kept conversations) | train | {len(rows['train'])} |" in card
    assert "- config_name: sft\n  data_files:\n  - split: test\n    path: sft-test.parquet\n" in card


def test_the_files_are_splits_to_the_datasets_library(tmp_path: Path) -> None:
    import datasets

    exported(trees(20), tmp_path, splits={"train": 0.5, "test": 0.5})
    loaded = datasets.load_dataset(str(tmp_path), "dpo", cache_dir=str(tmp_path / "cache"))
    assert sorted(loaded) == ["test", "train"]
    assert sum(len(loaded[split]) for split in loaded) == 20


def test_an_export_with_other_splits_leaves_no_file_of_the_last_one(tmp_path: Path) -> None:
    exported(trees(10), tmp_path, splits={"train": 0.5, "test": 0.5})
    exported(trees(10), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "dpo.parquet", "sft.parquet"]
    exported(trees(10), tmp_path, splits={"train": 0.5, "dev": 0.5}, public_columns=True)
    assert sorted(path.name for path in tmp_path.glob("*.parquet")) == [
        f"{name}-{split}.parquet" for name in ("dpo", "public", "sft") for split in ("dev", "train")
    ]


def test_rows_that_say_the_same_are_left_out_and_counted(tmp_path: Path) -> None:
    same = [small_tree(f"t{n}", [("q", [("good", 1.0), ("bad ", 0.0)])]) for n in range(3)]
    spaced = small_tree("t3", [(" q", [("good", 1.0), ("bad", 0.0)])])
    card = exported([*same, spaced], tmp_path)
    assert (len(read_rows(tmp_path, "sft")), len(read_rows(tmp_path, "dpo"))) == (1, 1)
    assert "Rows left out because an equal one was there: 6." in card
    exported([*same, spaced], tmp_path, deduplicate=False)
    assert (len(read_rows(tmp_path, "sft")), len(read_rows(tmp_path, "dpo"))) == (4, 4)


def test_many_rows_go_through_several_groups(tmp_path: Path) -> None:
    made = trees(1100)
    exported(made, tmp_path)
    assert [row["task_id"] for row in read_rows(tmp_path, "sft")] == [tree.task_id for tree in made]


def test_the_card_says_what_the_gap_is_made_of() -> None:
    tree = small_tree(
        "t", [("q", [("a long good reply", 0.8), ("bad", 0.2)])], reward={"accuracy": 1.0, "token_cost": 1.0, "judge": 0.5}
    )
    for text, components in (
        ("a long good reply", {"accuracy": 1.0, "token_cost": -0.3, "judge": 0.2}),
        ("bad", {"accuracy": 0.25, "token_cost": -0.1, "judge": 0.1}),
    ):
        node = next(node for node in tree.nodes if node.message.content == text)
        node.annotations["mr"]["components"] = components
    figures = statistics([tree], PAIRS)
    assert figures.gap_shares == pytest.approx({"accuracy": 0.75 / 0.6, "judge": 0.05 / 0.6, "token_cost": -0.2 / 0.6})
    assert sum(figures.gap_shares.values()) == pytest.approx(1.0)
    assert (figures.chosen_longer, figures.length_gap) == (1.0, 14)


CONFIG = {
    "tasks": "/home/somebody/data/gsm8k.jsonl",
    "split": "train",
    "limit": 8,
    "output_dir": "/home/somebody/outputs",
    "environment": {"name": "math_chat"},
    "policy": {
        "model": "/models/qwen",
        "urls": ["http://user:secret@10.0.0.1/v1"],
        "api_key_env": "KEY",
        "price": {"prompt": 1.0},
    },
    "user": {"kind": "role_play", "model": "gpt-4o-mini", "deadline_s": 600.0},
    "judge": {"kind": "none", "model": "gpt-4o"},
    "shard": {"index": 1, "count": 4},
    "budget": {"max_calls": 3},
}


def test_the_card_names_source_simulator_and_judge_but_no_machine(tmp_path: Path) -> None:
    export_datasets(trees(2), tmp_path, pairs=PAIRS, card=CONFIG, licence="mit")
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "license: mit\n---" in card
    assert "Tasks: `gsm8k.jsonl` (environment `math_chat`, split `train`); licence: mit." in card
    assert "- simulated user: `gpt-4o-mini` (role_play)" in card
    assert "- judge: none, rewards are by rule" in card
    for secret in ("somebody", "10.0.0.1", "secret", "KEY", "/models", "deadline", "shard", "max_calls"):
        assert secret not in card
    assert '"limit": 8' in card


def test_a_card_without_a_licence_says_so(tmp_path: Path) -> None:
    export_datasets(trees(2), tmp_path, pairs=PAIRS, card=CONFIG)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "license:" not in card.split("# MR-ranked")[0]
    assert "licence: not known; state it" in card


def test_a_configuration_without_its_machine_is_equal_for_two_shards() -> None:
    other = CONFIG | {"output_dir": "elsewhere", "shard": {"index": 0, "count": 4}, "max_open_tasks": 3}
    assert without_machine(CONFIG) == without_machine(other)
    assert without_machine(CONFIG) != without_machine(CONFIG | {"split": "test"})


def test_a_simulator_that_misbehaves_is_named_in_the_first_lines(tmp_path: Path) -> None:
    made = trees(4)
    for tree in made[:1]:
        tree.nodes[0].annotations["flags"] = ["goal_leak"]
    figures = export_datasets(made, tmp_path, pairs=PAIRS, card=CONFIG)
    assert figures.user_faults["goal_leak"] == 0.25
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    head = card.split("# MR-ranked conversations")[1].splitlines()[:4]
    assert any("**Warning**: the simulated user raised the flag goal_leak in 25% of its turns" in line for line in head)
    assert "- flags on simulated user turns: goal_leak 25.0%" in card
    assert "Warning" not in exported(trees(4), tmp_path / "clean")


async def test_users_who_leave_without_a_word_are_counted(tmp_path: Path) -> None:
    def leaves_when_asked(conversation: Conversation, seed: int) -> UserTurn:
        return UserTurn("", ends=True, flags=(EARLY_STOP,)) if conversation else UserTurn("do it")

    environment = scripted_environment(leaves_when_asked, lambda conversation: float(len(conversation)))
    policy = scripted_policy(lambda request, rng: f"Which of {rng.randrange(10**6)}?")
    builder = DatasetBuilder(environment, MultiturnReward(environment, policy, 1, 2), [CandidateSource(policy, 4)])
    tree = await builder.build(Task("t", goal="have it done"))
    replies = len(tree) - 1
    assert replies > 1 and all(node.author == "policy" for node in tree.nodes[1:])  # every future ended in silence
    figures = export_datasets([tree], tmp_path, pairs=PAIRS, card=CONFIG)
    assert figures.futures == 2 * replies
    assert figures.user_faults["early_stop"] == 2 * replies / (2 * replies + 1)  # the opening is a turn, too
    assert "raised the flag early_stop" in (tmp_path / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "licence"),
    [
        ("MIT License\n\nCopyright", "mit"),
        ("Apache License\nVersion 2.0", "apache-2.0"),
        ("CC0 1.0 Universal", "cc0-1.0"),
        ("Creative Commons Attribution-ShareAlike 4.0 International", "cc-by-sa-4.0"),
        ("All rights reserved.", None),
    ],
)
def test_the_licence_of_a_local_file_is_what_stands_beside_it(tmp_path: Path, text: str, licence: str | None) -> None:
    (tmp_path / "LICENSE.md").write_text(text)
    (tmp_path / "tasks.jsonl").write_text("{}\n")
    assert licence_of(str(tmp_path / "tasks.jsonl"), {}) == licence


def test_licences_of_known_and_unknown_sources(tmp_path: Path) -> None:
    assert licence_of("openai/gsm8k:main", {"openai/gsm8k": "mit"}) == "mit"
    assert licence_of("OpenAI/GSM8K", {"openai/gsm8k": "mit"}) == "mit"
    assert licence_of("bundled", {}) == "apache-2.0"
    assert licence_of("acme/unknown", {}) is None
    assert licence_of(str(tmp_path / "missing.jsonl"), {}) is None


def test_a_tree_set_has_every_task_once_in_order(tmp_path: Path) -> None:
    made = trees(6)
    first, second = TreeFile(tmp_path / "one.jsonl"), TreeFile(tmp_path / "two.jsonl")
    for tree in (made[4], made[0], made[2]):
        first.append(tree)
    other = small_tree("task-002", [("another", [("x", 1.0), ("y", 0.0)])])
    for tree in (made[1], other, made[5]):
        second.append(tree)
    found = TreeSet([first, second])
    assert [tree.task_id for tree in found] == [f"task-{n:03d}" for n in (0, 1, 2, 4, 5)]
    assert (found.repeated, len(found), "task-003" in found) == (1, 5, False)
    assert next(tree for tree in found if tree.task_id == "task-002").nodes[0].message.content == "question 2"
    assert [tree.task_id for tree in TreeSet([first, second], only={"task-005"})] == ["task-005"]
    first.close()
    second.close()


def test_a_dataset_without_any_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"has no sft\.parquet; give the output folder of `collab build`, or a dataset"):
        read_rows(tmp_path, "sft")
    with pytest.raises(ConfigurationError, match="does not exist"):
        read_rows(tmp_path / "missing.parquet", "sft")
