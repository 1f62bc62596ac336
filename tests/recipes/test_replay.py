"""Runs in which calls failed or were shared: they are replayed as they were, and their figures say so."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recipes.dry_run import reply
from simulators.chat_models.protocol import ChatRequest
from simulators.errors import ChatModelError, ContextOverflow
from simulators.tree_file import read_trees
from tests.evolving_intent.tasks import PROBLEMS
from tests.recipes.conftest import Collab

RUN = Path("run")
SCRIPTED = ["environment=errands", "policy=scripted", "output_dir=run"]
FAILING = [*SCRIPTED, f"policy.model={__name__}:failing"]
ANSWER = "The answer is 4."

errors: dict[int, ChatModelError] = {}
calls = 0


def failing(request: ChatRequest, rng: random.Random) -> str:
    """Reply as a dry run does; the calls whose numbers are in `errors` fail."""
    global calls
    calls += 1
    if (error := errors.get(calls)) is not None:
        raise error
    return reply(request, rng)


def monotonous(request: ChatRequest, rng: random.Random) -> str:
    """Say the same whatever is asked; judge as a dry run does."""
    return reply(request, rng) if request.role == "judge" else ANSWER


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    global calls
    calls = 0
    errors.clear()
    yield
    errors.clear()


def last_metrics() -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads((RUN / "metrics.jsonl").read_text().splitlines()[-1])
    return metrics


def told_errors() -> list[str]:
    """The error of every future in the run's trees that has one."""
    estimates = [node.annotations["mr"] for tree in read_trees(RUN) for node in tree.nodes if "mr" in node.annotations]
    return [future["error"] for estimate in estimates for future in estimate["futures"] if "error" in future]


def test_one_failed_call_among_many_is_replayed(collab: Collab) -> None:
    errors[60] = ChatModelError("http://a:8000: 500; given up after 3 attempts in 60.0 s")
    assert collab("build", *FAILING, "limit=8").status == 0
    metrics = last_metrics()
    made = metrics["calls"]["policy"]["made"]
    assert (metrics["failed_futures"], metrics["calls"]["policy"]["failed"], calls) == (1, 1, made + 1)
    assert told_errors() == [str(errors[60])]
    ended = collab("replay", RUN)
    assert ended.status == 0, ended
    assert f"8 trees replayed: {made} calls from the journal, 1 failed as recorded, 0 made" in ended.out
    assert "every tree is as recorded" in ended.out
    assert calls == made + 1


def test_what_kind_of_error_it_was_matters(collab: Collab) -> None:
    errors[30] = ContextOverflow("the conversation has 9000 tokens and the model takes 8192")
    assert collab("build", *FAILING, "limit=4").status == 0
    assert last_metrics()["outcomes"]["truncated"] == 1
    assert collab("replay", RUN).status == 0


def test_a_replay_does_not_stop_where_the_run_did_not(collab: Collab) -> None:
    """A replay meets the failures in another order, so that many may come one after the other."""
    errors.update(dict.fromkeys(range(20, 60, 3), ChatModelError("no")))
    assert collab("build", *FAILING, "limit=8", "max_failure_share=0.9").status == 0
    config = RUN / "config.yaml"
    text = config.read_text()
    assert "max_failure_share: 0.9" in text
    config.write_text(text.replace("max_failure_share: 0.9", "max_failure_share: 0.01"))
    ended = collab("replay", RUN)
    assert ended.status == 0, ended


def test_a_task_that_was_tried_again_is_replayed_with_its_answer(collab: Collab) -> None:
    errors.update(dict.fromkeys(range(1, 5), ChatModelError("not yet")))  # every candidate of a first turn
    command = [*FAILING, "limit=2", "max_open_tasks=1", "max_failure_share=1"]
    assert "1 of 2 tasks stopped early" in collab("build", *command).out
    again = collab("build", *command)
    assert again.status == 0 and "stopped early" not in again.out
    ended = collab("replay", RUN)
    assert ended.status == 0, ended
    assert "2 trees replayed" in ended.out and "failed" not in ended.out


def test_an_evaluation_with_a_failed_call_is_replayed(collab: Collab) -> None:
    errors[3] = ChatModelError("no")
    assert collab("evaluate", *FAILING, "limit=3", "runs=2", "max_failure_share=1").status == 0
    ended = collab("replay", RUN)
    assert ended.status == 0, ended
    assert "1 failed as recorded" in ended.out


def test_a_run_that_finished_no_task_is_refused(collab: Collab) -> None:
    errors.update(dict.fromkeys(range(1, 1000), ChatModelError("no")))
    assert collab("build", *FAILING, "limit=2", "max_failure_share=1").status == 1
    ended = collab("replay", RUN)
    assert ended.status == 1
    assert "trees replayed" not in ended.out
    assert ended.sentence == "collab: run has no finished task to replay; start its command again, and replay it then"


def test_calls_shared_within_a_start_do_not_hide_its_speed(collab: Collab) -> None:
    judge = ["judge=llm", "judge.backend=scripted", "judge.model=recipes.dry_run:reply"]
    command = ["environment=math_chat", *SCRIPTED[1:], f"policy.model={__name__}:monotonous", "limit=3", *judge]
    ended = collab("build", *command)
    assert ended.status == 0, ended
    metrics = last_metrics()
    made, reused, shared = (sum(counts[kind] for counts in metrics["calls"].values()) for kind in ("made", "reused", "shared"))
    assert metrics["calls"]["judge"]["shared"] > 0 and reused == 0
    speed = metrics["speed"]
    assert (speed["calls_made"], speed["calls_shared"], speed["calls_reused"]) == (made, shared, 0)
    assert "efficiency" in speed
    assert f"model calls: {made} made, 0 read from the journal, {shared} shared with one of those" in ended.out
    (RUN / "trees.jsonl").unlink()
    again = collab("build", *command)
    assert again.status == 0
    assert f"model calls: 0 made, {made + shared} read from the journal\n" in again.out
    metrics = last_metrics()
    assert metrics["speed"] is None
    assert {counts["shared"] for counts in metrics["calls"].values()} == {0}


def test_an_evolving_run_replays_and_a_lowered_limit_does_no_harm(collab: Collab) -> None:
    arms = ["evaluate", "environment=evolving_gsm8k", "policy=scripted", "runs=1", "output_dir=out"]
    problems = Path("problems.jsonl")
    problems.write_text("".join(json.dumps(record) + "\n" for record in PROBLEMS))
    options = ["environment.options.mixture=null", "environment.options.turns=4", f"tasks={problems}", "split=test"]
    assert collab(*arms, *options, "limit=2").status == 0
    assert collab(*arms, *options, "limit=1").status == 0
    ended = collab("replay", "out")
    assert ended.status == 0 and "every tree is as recorded" in ended.out, ended.out + ended.err


ARMS = ["environment=evolving_gsm8k", "tasks=problems.jsonl", "arms=[Single,Evolve]", "runs=1", "limit=2", *SCRIPTED[1:]]
COMMANDS = {
    "ablation": ["limit=2", "windows=[1]", "num_samples=1", "outcome_samples=1", *SCRIPTED],
    "evolving-arms": ARMS,
    "judge-noise": ["run=built", "repeats=2", "judge.backend=scripted", "judge.model=recipes.dry_run:reply", "output_dir=run"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_that_calls_models_has_a_budget_and_is_replayed(collab: Collab, name: str) -> None:
    Path("problems.jsonl").write_text("".join(json.dumps(record) + "\n" for record in PROBLEMS))
    assert collab("build", *SCRIPTED[:2], "limit=2", "output_dir=built").status == 0
    command = [name, *COMMANDS[name]]
    ended = collab(*command, "budget.max_calls=3")
    assert ended.status == 1
    assert ended.sentence == "collab: the budget is spent (3 of 3 calls); raise it and start the same command again to go on"
    assert collab(*command, "budget.max_calls=null").status == 0
    ended = collab("replay", RUN)
    assert ended.status == 0, ended
    assert ", 0 made" in ended.out and " is as recorded" in ended.out
    moved = Path("elsewhere")
    RUN.rename(moved)
    assert collab("replay", moved).status == 0
    assert not RUN.exists()


def test_a_judge_that_fails_too_often_stops_the_measurement(collab: Collab) -> None:
    assert collab("build", *SCRIPTED[:2], "limit=3", "output_dir=built").status == 0
    Path("mute.py").write_text("def nothing(request, rng):\n    return 'hm'\n")
    command = [*COMMANDS["judge-noise"], "judge.model=mute:nothing", "repeats=9"]
    ended = collab("judge-noise", *command)
    assert ended.status == 1
    assert "of the last 20 conversations failed, more than the 30% allowed; most often judge_error: " in ended.sentence


def test_a_rating_that_comes_out_otherwise_is_named(collab: Collab) -> None:
    assert collab("build", *SCRIPTED[:2], "limit=2", "output_dir=built").status == 0
    assert collab("judge-noise", *COMMANDS["judge-noise"]).status == 0
    ratings = json.loads((RUN / "ratings.json").read_text())
    name = next(iter(ratings))
    ratings[name][0][0] = 0.123
    (RUN / "ratings.json").write_text(json.dumps(ratings))
    ended = collab("replay", RUN)
    assert ended.status == 1 and f"1 differ from the record: {name}" in ended.out


def test_what_is_neither_a_build_nor_an_evaluation_is_refused(collab: Collab) -> None:
    Path("other").mkdir()
    Path("other/config.yaml").write_text("environment: {name: errands}\n")
    ended = collab("replay", "other")
    assert ended.status == 1 and "is neither a build nor an evaluation" in ended.err
