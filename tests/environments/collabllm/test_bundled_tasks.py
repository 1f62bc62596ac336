"""The bundled mini sets: enough tasks, all of them sound, and every reference solution earns full marks."""

import json
from importlib import resources
from typing import Any

import pytest

from collab.environments.domain import Environment, Resources
from collab.environments.loading import load_tasks
from collab.environments.registry import load_domain
from collab.tasks.task import Task
from simulators.conversation import Conversation
from tests.scripted_environment import count_words, says

DOMAINS = ("math_chat", "code_chat", "doc_edit", "abg_coqa")
EXTRINSIC = {"math_chat": "accuracy", "code_chat": "pass_rate", "doc_edit": "bleu", "abg_coqa": "answer_f1"}


def tasks_of(name: str) -> list[Task]:
    domain = load_domain(name)
    return [task for split in ("train", "test") for task in load_tasks("bundled", domain, split=split).tasks]


def perfect(name: str, task: Task) -> Conversation:
    """A conversation that ends with the reference solution."""
    reference = task.reference or ""
    reply = {"math_chat": f"The answer is {reference}.", "code_chat": f"```python\n{reference}```"}.get(name, reference)
    return says("please", reply)


@pytest.mark.parametrize("name", DOMAINS)
def test_there_are_at_least_twenty_tasks_in_two_splits(name: str) -> None:
    domain = load_domain(name)
    train, test = (load_tasks("bundled", domain, split=split).tasks for split in ("train", "test"))
    assert len(train) + len(test) >= 20
    assert len(test) >= 5
    ids = [task.id for task in (*train, *test)]
    assert len(set(ids)) == len(ids)
    assert not {task.goal for task in train} & {task.goal for task in test}
    groups = [{task.metadata.get("group") for task in part} - {None} for part in (train, test)]
    assert not groups[0] & groups[1]


@pytest.mark.parametrize("name", DOMAINS)
async def test_every_reference_solution_is_right(name: str) -> None:
    environment = Environment(load_domain(name), Resources(count_words))
    for task in tasks_of(name):
        score = await environment.reward.score(perfect(name, task), task)
        assert score.components[EXTRINSIC[name]] == pytest.approx(1.0, abs=1e-6), (task.id, score.errors)


@pytest.mark.parametrize("name", DOMAINS)
def test_every_scripted_user_hides_something_or_has_nothing_to_hide(name: str) -> None:
    environment = Environment(load_domain(name), Resources(count_words))
    users: list[Any] = [environment.user_for(task) for task in tasks_of(name)]
    assert sum(bool(user.facts) for user in users) >= len(users) // 2
    for user in users:
        assert user.opening.strip()
        assert not any(fact.statement in user.opening for fact in user.facts)


def test_half_of_the_bundled_questions_are_ambiguous() -> None:
    tasks = tasks_of("abg_coqa")
    assert sum(task.metadata["ambiguous"] for task in tasks) * 2 == len(tasks)


def test_some_of_the_mathematics_is_of_level_five() -> None:
    domain = load_domain("math_chat", {"level": 5})
    text = resources.files("collab.tasks").joinpath("bundled", "math_chat.jsonl").read_text(encoding="utf-8")
    records = [json.loads(line) for line in text.splitlines()]
    wanted = [record for record in records if record.get("level") == "Level 5"]
    assert len(wanted) >= 5
    assert len([record for record in records if "level" in record and domain.selects(record)]) == len(wanted)
