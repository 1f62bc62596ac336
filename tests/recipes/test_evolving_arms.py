"""`collab evolving-arms`: the same tasks in every arm, and in each exactly those solvers fail that miss what it brings."""

import json
import re
from pathlib import Path

import pytest

from simulators.tree_file import read_trees
from tests.evolving_intent.tasks import PROBLEMS
from tests.recipes import evolving_solvers
from tests.recipes.conftest import Collab

FOLDER = Path("outputs/evolving_arms")
SOLVERS = ("perfect", "deaf_to_revisions", "deaf_to_switches")
REVISED = {"Evolve", "Revision", "Prompt recap", "Oracle recap", "Dump recap"}
SWITCHED = {"Evolve", "Switch", "Prompt recap", "Oracle recap", "Dump recap"}
ARMS = ["Single", "Evolve", "Reveal", "Revision", "Switch", "Repeat", "Prompt recap", "Oracle recap", "Dump recap"]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    problems = tmp_path / "problems.jsonl"
    flat = {
        "id": "flat",
        "question": "Ada has 3 pens. She gets 4 more. How many pens has she?",
        "answer": "3+4=<<3+4=7>>7\n#### 7",
    }
    problems.write_text("".join(json.dumps(problem) + "\n" for problem in (*PROBLEMS, flat)))
    monkeypatch.setenv("EVOLVING_PROBLEMS", str(problems))
    evolving_solvers.conversions.cache_clear()
    policies = [f"policies.{name}.policy.model=tests.recipes.evolving_solvers:{name}" for name in SOLVERS]
    return ["evolving-arms", f"tasks={problems}", "policy=scripted", "~policies.base", *policies]


def solved() -> dict[tuple[str, str], float]:
    lines = [json.loads(line) for line in (FOLDER / "metrics.jsonl").read_text().splitlines()]
    return {(line["policy"], line["environment"]): line["success"] for line in lines if "policy" in line}


def test_solvers_fail_exactly_in_the_arms_that_bring_what_they_miss(collab: Collab, command: list[str]) -> None:
    ended = collab(*command)
    assert ended.status == 0, ended.err
    fails = {"perfect": set(), "deaf_to_revisions": REVISED, "deaf_to_switches": SWITCHED}
    assert solved() == {(name, arm): float(arm not in fails[name]) for name in SOLVERS for arm in ARMS}
    for arm in ARMS:
        assert sorted(tree.task_id for tree in read_trees(FOLDER / arm / "perfect")) == ["bakery", "library", "orchard"]
    assert "1 record(s) do not suit evolving_gsm8k" in ended.out and "2 switches need as many predecessors" in ended.out
    page = (FOLDER / "arms" / "report.md").read_text()
    assert re.search(r"\| deaf\\?_to\\?_switches \| Switch \| .*-100\.0", page) and "per-turn tracking" in page
    assert "| perfect | Evolve |" in ended.out and (FOLDER / "arms" / "figures" / "arms.svg").is_file()


def test_arms_can_be_chosen_and_added(collab: Collab, command: list[str]) -> None:
    assert collab(*command, "arms=[Single,Evolve]", "limit=2").status == 0
    assert {arm for _, arm in solved()} == {"Single", "Evolve"}
    ended = collab(*command, "arms=[Single,Evolve,Repeat]", "limit=3")
    assert ended.status == 0, ended.err
    assert {arm for _, arm in solved()} == {"Single", "Evolve", "Repeat"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["arms=[Single,Evolv]"], "unknown arm 'Evolv' (did you mean 'Evolve'?)"),
        (["arms=[Evolve]"], "Single must be among them"),
        (["environment=math_chat"], "environment math_chat has no arms"),
        (["environments.mine.name=errands"], "environments cannot be set here"),
        (["environment.options.turn=7"], "no option 'turn'"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(collab: Collab, command: list[str], arguments: list[str], said: str) -> None:
    ended = collab(*command, *arguments)
    assert ended.status != 0 and said in ended.sentence
