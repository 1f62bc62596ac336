"""Shards: each a run of its own; merged they are, byte by byte, what one process would have built."""

import json
import shutil
from pathlib import Path

import pytest

from collab.data.export import read_rows
from simulators.errors import ConfigurationError
from simulators.tree_file import read_trees
from tests.recipes.conftest import Collab, Ended

DRY = ["environment=math_chat", "policy=scripted", "limit=9", "max_turns=2", "public_columns=true"]
LAYOUT = ["splits.train=0.6", "splits.validation=0.4", "length_quantiles=2", "min_components.accuracy=0.0"]


def dataset(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "dataset").iterdir())}


def build_here(folder: Path, *overrides: str) -> None:
    """Do what `collab build` does, without the command line around it."""
    from hydra import initialize_config_dir

    from recipes import build
    from recipes.configuration.choices import conf_dir, register
    from recipes.configuration.overrides import stage_configuration
    from recipes.configuration.schema import Build

    register()
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        build.run(stage_configuration(Build, [*DRY, *LAYOUT, f"output_dir={folder}", *overrides]))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One build as a whole and in two shards, to be copied."""
    folder = tmp_path_factory.mktemp("built")
    build_here(folder / "whole")
    for index in (1, 0):
        build_here(folder / "shared", "shard.count=2", f"shard.index={index}")
    return folder


@pytest.fixture
def copied(built: Path, tmp_path: Path) -> Path:
    """The builds, free to be changed, in the folder the commands run in."""
    shutil.copytree(built, tmp_path, dirs_exist_ok=True)
    return tmp_path


def said(ended: Ended) -> str:
    assert ended.status == 1
    return ended.sentence.removeprefix("collab: ")


def test_two_shards_merged_are_byte_for_byte_one_run(collab: Collab, copied: Path) -> None:
    parts = [{tree.task_id for tree in read_trees(Path("shared/shards") / f"{index}-of-2")} for index in (0, 1)]
    assert [len(part) for part in parts] == [5, 4]
    assert not parts[0] & parts[1]

    ended = collab("merge", "output_dir=shared")
    assert ended.status == 0, ended.err
    assert "2 shards, 9 tasks\n" in ended.out
    assert dataset(Path("shared")) == dataset(Path("whole"))
    assert len(dataset(Path("shared"))) == 7
    merged = {tree.task_id: tree.fingerprint() for tree in read_trees(Path("shared"))}
    assert merged == {tree.task_id: tree.fingerprint() for tree in read_trees(Path("whole"))}
    assert list(merged) == sorted(merged)
    before = dataset(Path("shared"))
    assert collab("merge", "output_dir=shared").status == 0  # again is as good as once
    assert dataset(Path("shared")) == before
    assert collab("view", "shared", "page.html").status == 0


def test_a_launcher_starts_the_shards(collab: Collab) -> None:
    ended = collab("build", "--multirun", *DRY, "output_dir=shared", "shard.count=3", "shard.index=0,1,2")
    assert ended.status == 0, ended.err
    assert sorted(path.name for path in Path("shared/shards").glob("*-of-*")) == ["0-of-3", "1-of-3", "2-of-3"]
    assert collab("merge", "output_dir=shared").status == 0
    assert {tree.task_id for tree in read_trees(Path("shared"))} == {f"math-chat-train-{n:02d}" for n in range(1, 10)}


@pytest.mark.parametrize(("index", "count"), [(2, 2), (-1, 2), (0, 0), (1, 1)])
def test_a_shard_that_cannot_be_is_refused(collab: Collab, index: int, count: int) -> None:
    ended = collab("build", *DRY, f"shard.index={index}", f"shard.count={count}")
    assert f"shard.index is {index} and shard.count {count}; the index must lie in [0, count)" in said(ended)


def test_more_shards_than_tasks_are_refused(collab: Collab) -> None:
    ended = collab("build", *DRY, "shard.index=9", "shard.count=10")
    assert said(ended) == "shard 9 of 10 has no task: there are only 9"


def test_a_shard_is_not_pushed(collab: Collab) -> None:
    ended = collab("build", *DRY, "shard.count=2", "push_to=acme/sums")
    assert said(ended).startswith("push_to: one shard is not the dataset")


def test_merging_waits_for_every_shard_unless_told_otherwise(collab: Collab, copied: Path) -> None:
    shutil.rmtree(copied / "shared" / "shards" / "1-of-2")
    assert (
        said(collab("merge", "output_dir=shared"))
        == "shared/shards: shard 1 of 2 is not finished; start it again, or set allow_missing=true"
    )
    ended = collab("merge", "output_dir=shared", "allow_missing=true")
    assert ended.status == 0
    assert "1 of 2 shards are not finished; what they have is merged" in ended.out
    assert len(list(read_trees(Path("shared")))) == 5


def test_shards_of_two_configurations_are_not_merged(collab: Collab, copied: Path) -> None:
    config = copied / "shared" / "shards" / "1-of-2" / "config.yaml"
    config.write_text(config.read_text().replace("\nseed: 0\n", "\nseed: 1\n"))
    assert "shards 0-of-2 and 1-of-2 differ in seed: 0 and 1" in said(collab("merge", "output_dir=shared"))


def test_shards_of_two_cuts_are_not_merged(collab: Collab, copied: Path) -> None:
    shards = copied / "shared" / "shards"
    shutil.copytree(shards / "0-of-2", shards / "0-of-3")
    assert "holds builds cut into 2 and 3 shards" in said(collab("merge", "output_dir=shared"))


def test_a_folder_without_shards_is_refused(collab: Collab) -> None:
    assert said(collab("merge", "output_dir=nothing")).startswith("nothing has no shards; give the output_dir of a build")


def test_a_task_in_two_shards_is_taken_once(collab: Collab, copied: Path) -> None:
    first, second = (Path("shared/shards") / f"{index}-of-2" / "trees.jsonl" for index in (0, 1))
    lines = second.read_text().splitlines(keepends=True)
    second.write_text("".join([*lines, first.read_text().splitlines(keepends=True)[1]]))
    ended = collab("merge", "output_dir=shared")
    assert "2 shards, 9 tasks, 1 of them in more than one shard" in ended.out
    ids = [row["task_id"] for row in (*read_rows(Path("shared"), "sft"), *read_rows(Path("shared"), "sft", "validation"))]
    assert len(ids) == len(set(ids))


def test_a_shard_that_lost_a_tree_is_noticed(collab: Collab, copied: Path) -> None:
    path = Path("shared/shards/0-of-2/trees.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    lost = json.loads(lines[-1])["task_id"]
    path.write_text("".join(lines[:-1]))
    assert f"1 tasks have no tree, the first is {lost}" in said(collab("merge", "output_dir=shared"))


def test_datasets_are_written_again_with_other_thresholds(collab: Collab, copied: Path) -> None:
    ended = collab("build", *DRY, "output_dir=whole")
    assert ended.status == 0, ended.err
    assert "model calls: 0 made, 0 read from the journal" in ended.out
    pairs = read_rows(Path("whole"), "dpo")
    assert len(pairs) > 9
    gaps = sorted(pair["mr_chosen"] - pair["mr_rejected"] for pair in pairs)
    ended = collab("build", *DRY, "output_dir=whole", f"min_gap={gaps[5]}")
    assert ended.status == 0, ended.err
    assert len(read_rows(Path("whole"), "dpo")) == sum(gap >= gaps[5] for gap in gaps)
    assert "holds a run with max_turns=2" in said(collab("build", *DRY, "output_dir=whole", "max_turns=3"))


def test_a_lowered_limit_counts_after_a_merge_too(collab: Collab, copied: Path) -> None:
    for index in (0, 1):
        assert collab("build", *DRY, "output_dir=shared", "shard.count=2", f"shard.index={index}", "limit=3").status == 0
    ended = collab("merge", "output_dir=shared")
    assert ended.status == 0 and "2 shards, 3 tasks" in ended.out, ended.err


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("splits.train=0.5", "splits: the shares add up to 0.5"),
        ("pairs_per_turn=0", "pairs_per_turn is 0"),
        ("length_quantiles=1", "length_quantiles is 1"),
        ("max_conversation_tokens=0", "max_tokens is 0"),
        ("forward_sampling.max_samples=2", "forward_sampling: max_futures is 2; it must be at least min_futures (3)"),
        ("candidates.plain.count=-1", "candidates.plain.count is -1"),
        ("candidates.other.policy.modl=x", "candidates.other.policy.modl: there is no such key (did you mean 'model'?)"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_is_built(collab: Collab, override: str, part: str) -> None:
    ended = collab("build", *DRY, override)
    assert part in said(ended)
    assert not list(Path().rglob("trees.jsonl")) or not list(read_trees(Path("outputs/build/math_chat")))


def test_candidates_may_come_from_another_model(collab: Collab) -> None:
    ended = collab(
        "build", *DRY, "limit=2", "output_dir=mixed", "candidates.other.policy.model=tests.recipes.test_shards:another",
        "candidates.other.count=2", "forward_sampling.max_samples=6",
    )  # fmt: skip
    assert ended.status == 0, ended.err
    sources = {
        (node.annotations["candidate"]["source"], node.model)
        for tree in read_trees(Path("mixed"))
        for node in tree.nodes
        if "candidate" in node.annotations
    }
    assert sources == {
        ("plain", "recipes.dry_run:reply"),
        ("proactive", "recipes.dry_run:reply"),
        ("other", "tests.recipes.test_shards:another"),
    }


def another(request: object, rng: object) -> str:
    """The script of another model."""
    return f"The answer is {id(rng) % 7}."


def test_a_script_that_is_not_there_is_refused(collab: Collab) -> None:
    assert "script 'recipes.dry_run:nothing' cannot be loaded" in said(
        collab("build", *DRY, "policy.model=recipes.dry_run:nothing")
    )
    from recipes.dry_run import scripted_model

    with pytest.raises(ConfigurationError, match="is not a function"):
        scripted_model("recipes.dry_run:WORDS")
