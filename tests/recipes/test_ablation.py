"""`collab ablation`: the same replies under every reward mechanism, and the pairs to train on for each."""

import json
from pathlib import Path

import pytest

from collab.data.export import read_rows
from simulators.tree_file import read_trees
from tests.recipes.conftest import Collab, Ended

DRY = ["environment=math_chat", "policy=scripted", "limit=4", "num_samples=2", "outcome_samples=2", "windows=[1,2]"]
JUDGE = ["judge=llm", "judge.backend=scripted", "judge.model=recipes.dry_run:reply"]


def said(ended: Ended) -> str:
    assert ended.status == 1
    return ended.sentence.removeprefix("collab: ")


def test_every_mechanism_is_compared_and_gives_its_pairs(collab: Collab) -> None:
    ended = collab("ablation", *DRY, *JUDGE, "output_dir=run")
    assert ended.status == 0, ended.err
    mechanisms = ["helpfulness", "extrinsic", "extrinsic + intrinsic", "MR, window 1", "MR, window 2"]
    summary = json.loads(Path("run/summary.json").read_text())
    assert list(summary["outcomes"]) == ["any reply", *mechanisms]
    assert set(summary["outcomes"]["any reply"]) == {"R*", "accuracy", "interactivity", "token_cost", "tokens"}
    assert {other for others in summary["rank_correlations"].values() for other in others} <= {*mechanisms, "R*"}
    assert (summary["tasks"], summary["tasks_without_replies"]) == (4, 0)
    assert "report: run/report.html" in ended.out
    page = Path("run/report.html").read_text()
    assert "CollabLLM Figure 4" in page and "Kendall" in page

    folders = {"helpfulness", "extrinsic", "extrinsic-intrinsic", "mr-window-1", "mr-window-2"}
    assert {path.name for path in Path("run/mechanisms").iterdir()} == folders
    rows = read_rows(Path("run/mechanisms/mr-window-2"), "dpo")
    trees = {tree.task_id: tree for tree in read_trees(Path("run"))}
    assert len(trees) == 4 and rows
    for row in rows:
        replies = {node.message.content: node for node in trees[row["task_id"]].nodes if "rewards" in node.annotations}
        for role in ("chosen", "rejected"):
            rewards = replies[row[role][0]["content"]].annotations["rewards"]
            assert rewards["MR, window 2"] == pytest.approx(row[f"mr_{role}"])

    again = collab("ablation", *DRY, *JUDGE, "output_dir=run")
    assert again.status == 0, again.err
    entry = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    assert all(counts["made"] == 0 for counts in entry["calls"].values())  # everything came from the journal
    assert json.loads(Path("run/summary.json").read_text()) == summary


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("windows=[]", "windows are []; MR needs at least one"),
        ("windows=[0,1]", "windows are [0, 1]; MR needs at least one of 1 turn or more"),
        ("num_samples=0", "num_samples is 0"),
        ("outcome_samples=0", "outcome_samples is 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(collab: Collab, override: str, part: str) -> None:
    assert part in said(collab("ablation", *DRY, override))


def test_one_reply_alone_cannot_be_compared(collab: Collab) -> None:
    ended = collab("ablation", *DRY, "candidates.plain.count=1", "candidates.proactive.count=0")
    assert "comparing rewards needs at least two replies a task" in said(ended)
