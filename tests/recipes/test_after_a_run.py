"""Recipes that look at a finished run: replay, judge-noise, view; and doctor and chat."""

import builtins
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulators.tree_file import read_trees
from tests.recipes.conftest import Collab
from tests.simulators.fault_server import Body, FaultServer

BUILD = ["environment=errands", "limit=3", "forward_sampling.window_turns=1", "forward_sampling.num_samples=2", "max_turns=2"]


@pytest.fixture
def built(collab: Collab, served: list[str]) -> Path:
    assert collab("build", *BUILD, *served).status == 0
    return Path("outputs/build/errands")


def test_replay_makes_every_tree_again_without_a_call(collab: Collab, built: Path, chat_server: FaultServer) -> None:
    asked = chat_server.answered
    ended = collab("replay", built)
    assert ended.status == 0, ended
    assert "3 trees replayed" in ended.out and ", 0 made" in ended.out and "every tree is as recorded" in ended.out
    assert chat_server.answered == asked


def test_replay_says_which_tree_differs(collab: Collab, built: Path) -> None:
    path = built / "trees.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    tampered = json.loads(lines[1])
    tampered["nodes"][-1]["message"]["content"] += " (changed)"
    path.write_text(lines[0] + json.dumps(tampered) + "\n" + "".join(lines[2:]))
    ended = collab("replay", built)
    assert ended.status == 1
    assert f"1 differ from the record: {tampered['task_id']}" in ended.out


def test_replay_of_a_call_that_is_not_on_record_is_one_sentence(collab: Collab, built: Path) -> None:
    journal = built / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:2]))
    ended = collab("replay", built)
    assert ended.status == 1
    assert "does not hold; replay with the configuration of the recorded run" in ended.sentence


def test_replay_of_an_evaluation(collab: Collab, served: list[str]) -> None:
    assert collab("evaluate", "environment=errands", "limit=2", "runs=2", *served).status == 0
    ended = collab("replay", "outputs/evaluate/errands")
    assert ended.status == 0, ended
    assert "4 trees replayed" in ended.out  # two policies, two tasks


def test_replay_of_no_run_is_refused(collab: Collab, tmp_path: Path) -> None:
    assert "holds no run" in collab("replay", tmp_path).sentence
    assert collab("replay").status == 2


def test_a_build_writes_its_speed_once_and_not_when_it_read_calls_back(collab: Collab, built: Path, served: list[str]) -> None:
    (metrics,) = [json.loads(line) for line in (built / "metrics.jsonl").read_text().splitlines()]
    speed = metrics["speed"]
    assert speed["calls_made"] == metrics["calls"]["policy"]["made"]
    assert 0 < speed["efficiency"] <= 1
    assert speed["binding"] == "chain"
    (built / "trees.jsonl").unlink()
    assert collab("build", *BUILD, *served).status == 0
    assert json.loads((built / "metrics.jsonl").read_text().splitlines()[-1])["speed"] is None


@pytest.fixture
def judged(chat_server: FaultServer) -> list[str]:
    def rate(body: Body) -> str:
        return json.dumps({"reasons": "fine", "rating": 1 + len(body["messages"][-1]["content"]) % 2})

    chat_server.reply = rate
    return ["judge=llm", "judge.model=served", f"judge.urls=[{chat_server.url}]", "judge.api_key_env=null"]


def test_judge_noise_of_a_judge_that_never_wavers_is_zero(collab: Collab, built: Path, judged: list[str]) -> None:
    ended = collab("judge-noise", f"run={built}", "repeats=2", *judged)
    assert ended.status == 0, ended
    (figures,) = [json.loads(line) for line in Path("outputs/judge_noise/interactivity/metrics.jsonl").read_text().splitlines()]
    assert figures["asked"] == 12 and figures["failed"] == 0  # three transcripts, two repeats, both orders
    assert figures["repeat_sd"] == 0
    assert "repeat_sd" in ended.out


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [(["rubric=charm"], "unknown rubric 'charm'"), (["repeats=1"], "noise shows from 2 on"), (["run=nowhere"], "nowhere")],
)
def test_judge_noise_refuses_in_one_sentence(
    collab: Collab, built: Path, judged: list[str], overrides: list[str], reason: str
) -> None:
    ended = collab("judge-noise", f"run={built}", *judged, *overrides)
    assert ended.status == 1
    assert reason in ended.sentence


def test_doctor_says_which_sandbox_is_in_use(collab: Collab) -> None:
    ended = collab("doctor")
    in_use = next(line for line in ended.out.splitlines() if "in use:" in line)
    assert (ended.status == 1) == ("none" in in_use)
    assert "embedded model" in ended.out and "torch" in ended.out


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    typed: Iterator[str] = iter(lines)

    def read(prompt: str = "") -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(builtins, "input", read)
    return lines


def test_chat_holds_a_conversation_and_saves_it(
    collab: Collab, served: list[str], chat_server: FaultServer, typed: list[str]
) -> None:
    chat_server.reply = lambda body: "When is it?"
    typed += ["hello", "", "/end"]
    ended = collab("chat", *served)
    assert ended.status == 0, ended
    assert ended.out.count("policy: ") == 2 and "simulated user: " in ended.out and "R* " in ended.out
    (tree,) = read_trees(Path("outputs/chat/errands/chat-001"))
    assert [node.message.role for node in tree.nodes] == ["user", "assistant", "user", "assistant"]
    assert tree.nodes[0].message.content == "hello"


def test_chat_with_nothing_said_saves_nothing(collab: Collab, served: list[str], typed: list[str]) -> None:
    assert collab("chat", *served).status == 0
    assert not Path("outputs/chat/errands/chat-001").exists()


def test_chat_names_the_tasks_it_has(collab: Collab, served: list[str], typed: list[str]) -> None:
    assert "48 tasks" in collab("chat", *served, "task=99").sentence
