"""`collab evaluate`: the same users for every policy, figures that leave nothing out silently, and going on where it was."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from recipes.evaluate import refuse_other_weights
from simulators.conversation import ConversationTree, Message
from simulators.errors import ConfigurationError
from simulators.policy import Policy
from simulators.tree_file import TreeFile, read_trees
from tests.recipes.conftest import Collab
from tests.recipes.threaded_server import drawn
from tests.simulators.fault_server import Body, FaultServer

FOLDER = Path("outputs/evaluate/math_chat")


@pytest.fixture
def command(served: list[str], problems: Path) -> list[str]:
    return ["evaluate", "environment=math_chat", f"tasks={problems}", "limit=4", "runs=2", *served]


def asks_when_told_to(body: Body) -> str:
    """The proactive prompt makes it ask first; either way it ends in an answer that is right now and then."""
    told_to = body["messages"][0]["role"] == "system" and len(body["messages"]) <= 2
    return "Which numbers do you mean?" if told_to else f"The answer is {4 + drawn(body) % 4}."


def metrics_by_policy() -> dict[str, dict[str, float]]:
    lines = [json.loads(line) for line in (FOLDER / "metrics.jsonl").read_text().splitlines()]
    return {line["policy"]: line for line in lines if "policy" in line}


def test_policies_are_compared_on_the_same_tasks(collab: Collab, command: list[str], chat_server: FaultServer) -> None:
    chat_server.reply = asks_when_told_to
    ended = collab(*command)
    assert ended.status == 0, ended.err
    figures = metrics_by_policy()
    assert list(figures) == ["base", "proactive"]
    for name, line in figures.items():
        trees = list(read_trees(FOLDER / name))
        conversations = [entry for tree in trees for entry in tree.metadata["conversations"]]
        assert len(trees) == 4
        assert (line["conversations"], line["unscored"]) == (len(conversations), 0) == (8, 0)
        assert line["r_star"] == pytest.approx(sum(entry["total"] for entry in conversations) / 8, rel=1e-12)
        accuracy = [entry["components"]["accuracy"] for entry in conversations]
        assert line["accuracy"] == pytest.approx(sum(accuracy) / 8, rel=1e-12)
    assert figures["base"]["asking_turns"] == 0
    assert figures["proactive"]["asking_turns"] > 0
    openings = [{tree.task_id: tree.nodes[0].message for tree in read_trees(FOLDER / name)} for name in figures]
    assert openings[0] == openings[1]
    assert "proactive" in ended.out and "R* against the first" in ended.out
    assert re.search(r"[+-]0\.\d{3} \[[+-]0\.\d{3},\s", ended.out)  # nothing is cut off where there is no terminal


def test_the_same_command_again_asks_nobody(collab: Collab, command: list[str], chat_server: FaultServer) -> None:
    first = collab(*command)
    asked = len(chat_server.requests)
    again = collab(*command)
    assert (again.out, len(chat_server.requests)) == (first.out, asked)
    assert collab(*command, "limit=5").status == 0
    assert asked < len(chat_server.requests) <= asked + asked / 2  # the new task alone


def test_a_single_task_gives_no_interval_and_no_crash(collab: Collab, command: list[str]) -> None:
    ended = collab(*command, "limit=1")
    assert ended.status == 0, ended.err
    assert "R* against the first" in ended.out


def test_what_could_not_be_scored_is_counted_and_left_out(collab: Collab, command: list[str], chat_server: FaultServer) -> None:
    chat_server.plan = lambda number, body: "400 nope" if number == 0 else None
    ended = collab(*command, "max_failure_share=1.0")
    assert ended.status == 0, ended.err
    base, proactive = metrics_by_policy().values()
    assert (base["conversations"], base["unscored"]) == (8, 1)
    assert proactive["unscored"] == 0
    (spoilt,) = read_trees(FOLDER / "base" / "stopped.jsonl")
    assert [entry["outcome"] for entry in spoilt.metadata["conversations"]].count("infra_error") == 1
    again = collab(*command, "max_failure_share=1.0")  # the server is well again
    assert again.status == 0, again.err
    base, _ = metrics_by_policy().values()
    assert (base["conversations"], base["unscored"]) == (8, 0) and not (FOLDER / "base" / "stopped.jsonl").exists()


def test_another_task_under_an_old_name_is_noticed(collab: Collab, command: list[str], tmp_path: Path) -> None:
    first, second = ({"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"} for n in (3, 4))
    tasks = tmp_path / "sums.jsonl"
    tasks.write_text(json.dumps(first) + "\n")
    own = [*command, "environment=math_chat", f"tasks={tasks}", "split=test", "limit=null"]
    assert collab(*own).status == 0
    tasks.write_text(json.dumps(second) + "\n" + json.dumps(first) + "\n")
    ended = collab(*own)
    assert ended.status == 1 and "holds results about another task called math_chat/math_chat-test-00000" in ended.err
    tasks.write_text(json.dumps(first) + "\n" + json.dumps(second) + "\n")
    assert collab(*own).status == 0


def test_own_policies_take_part(collab: Collab, command: list[str], chat_server: FaultServer) -> None:
    ended = collab(*command, "~policies.proactive", "policies.terse.prompt='Be brief, please.'", "limit=1")
    assert ended.status == 0, ended.err
    assert list(metrics_by_policy()) == ["base", "terse"]
    systems = {body["messages"][0]["content"] for body in chat_server.requests if body["messages"][0]["role"] == "system"}
    assert systems == {"Be brief, please."}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["~policies.base", "~policies.proactive"], "evaluate has no policies; name one"),
        (["runs=0"], "runs is 0; an evaluation needs at least one run a task"),
        (["split=dev", "tasks=bundled"], "bundled has no task of split 'dev'"),
        (["max_open_tasks=0"], "max_open_tasks is 0"),
        (["policies.base.promt=none"], "policies.base.promt: there is no such key (did you mean 'prompt'?)"),
    ],
)
def test_what_can_never_work_is_refused(collab: Collab, command: list[str], overrides: list[str], said: str) -> None:
    ended = collab(*command, *overrides)
    assert ended.status != 0
    assert ended.sentence.startswith(f"collab: {said}")


def test_skipped_records_are_reported(collab: Collab, command: list[str], problems: Path) -> None:
    Path("mixed.jsonl").write_text('{"question": "How many?", "answer": "some"}\n' + problems.read_text())
    ended = collab(*command, "tasks=mixed.jsonl", "limit=1", "on_bad_record=skip")
    assert ended.status == 0, ended.err
    assert "skipped: mixed.jsonl, line 1: the answer has no final result" in ended.out


def test_conversations_of_other_weights_are_refused(tmp_path: Path) -> None:
    tree = ConversationTree("a")
    asked = tree.add(None, Message("user", "Hello"), "user")
    tree.add(asked.id, Message("assistant", "Hi"), "policy", weights_version="1")
    with TreeFile(tmp_path / "sft" / "trees.jsonl") as trees:
        refuse_other_weights(trees, Policy(SimpleNamespace(weights_version="2")))  # nothing is stored yet
        trees.append(tree)
        refuse_other_weights(trees, Policy(SimpleNamespace(weights_version="1")))
        with pytest.raises(ConfigurationError, match="sft holds conversations of other weights than trained has now"):
            refuse_other_weights(trees, Policy(SimpleNamespace(weights_version="2"), name="trained"))
