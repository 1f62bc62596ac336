"""`collab chat`: a folder for each talk, what a spent budget leaves, and no input at all."""

import builtins
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from simulators.tree_file import read_trees
from tests.recipes.conftest import Collab

SCRIPTED = ["policy=scripted", "output_dir=ch"]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []

    def read(prompt: str = "") -> str:
        if not lines:
            raise EOFError
        return lines.pop(0)

    monkeypatch.setattr(builtins, "input", read)
    return lines


def said_in(folder: str) -> list[str]:
    (tree,) = read_trees(Path(folder))
    return [node.message.content for node in tree.nodes]


def test_any_talk_may_follow_any_other(collab: Collab, typed: list[str]) -> None:
    for number, other in enumerate(([], ["task=3"], ["policy.prompt=proactive"], []), start=1):
        typed += ["hello", "/end"]
        ended = collab("chat", *SCRIPTED, *other)
        assert ended.status == 0, ended.err
        own = Path(f"ch/chat-{number:03d}")
        assert sorted(path.name for path in own.iterdir()) == ["config.yaml", "trees.jsonl", "versions.json"]
    assert [OmegaConf.load(f"ch/chat-00{number}/config.yaml").task for number in (1, 2, 3)] == [0, 3, 0]
    assert sorted(path.name for path in Path("ch").iterdir() if path.is_file()) == ["journal.jsonl", "models.json"]
    assert said_in("ch/chat-001") == said_in("ch/chat-004"), "the same words again are answered from the journal"
    assert len(Path("ch/journal.jsonl").read_text().splitlines()) == 1 + 3


def test_a_talk_that_was_killed_or_refused_is_in_nobodys_way(collab: Collab, typed: list[str]) -> None:
    killed = Path("ch/chat-001")
    killed.mkdir(parents=True)
    (killed / "config.yaml").write_text("task: 7\n")
    assert "48 tasks" in collab("chat", *SCRIPTED, "task=99").sentence
    assert not killed.exists()
    typed += ["hello"]
    assert collab("chat", *SCRIPTED).status == 0
    assert said_in("ch/chat-001")[0] == "hello"


def test_a_spent_budget_ends_the_talk_and_what_was_said_is_saved(collab: Collab, typed: list[str]) -> None:
    typed += ["hello", "and more", "never asked for"]
    ended = collab("chat", *SCRIPTED, "budget.max_calls=1")
    assert ended.status == 0, ended.err
    assert ended.out.count("policy: ") == 1 and ended.out.count("the budget is spent (1 of 1 calls)") == 1
    assert typed == ["never asked for"]
    assert said_in("ch/chat-001")[0] == "hello" and len(said_in("ch/chat-001")) == 2
    typed[:] = ["hello", "and more"]
    assert collab("chat", *SCRIPTED, "budget.max_calls=2").status == 0
    assert said_in("ch/chat-002")[:2] == said_in("ch/chat-001") and len(said_in("ch/chat-002")) == 4


def test_where_the_judge_has_nothing_left_the_talk_is_saved_without_a_score(collab: Collab, typed: list[str]) -> None:
    typed += ["hello", "/end"]
    judge = ["judge=llm", "judge.backend=scripted", "judge.model=recipes.dry_run:reply"]
    ended = collab("chat", *SCRIPTED, *judge, "environment=math_chat", "budget.max_calls=1")
    assert ended.status == 0, ended.err
    assert "not scored: the budget is spent (1 of 1 calls)" in ended.out
    assert len(said_in("ch/chat-001")) == 2
    (tree,) = read_trees(Path("ch/chat-001"))
    assert tree.nodes[-1].annotations["score"] == {"total": None, "components": {}}


def test_without_an_input_the_talk_is_over(collab: Collab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # as `collab chat <&-` has it
    ended = collab("chat", *SCRIPTED)
    assert ended.status == 0, ended.err
    assert not Path("ch/chat-001").exists()
