"""MATH-Chat: records of GSM8K, MATH and MATH-500, the level filter, what the scripted user tells, and who judges accuracy."""

import json
from pathlib import Path
from typing import Any

import pytest

from collab.environments.collabllm.math_chat import domain, task_from_record
from collab.environments.domain import BadRecord, Environment, Resources
from collab.environments.loading import load_tasks
from simulators.errors import ConfigurationError
from tests.environments.collabllm.conftest import model_that, says_as_json
from tests.scripted_environment import count_words, says

MATH_RECORD = {"problem": "Find $x$ with $2x = 4$.", "solution": "So $x = \\boxed{2}$.", "level": "Level 5", "type": "Algebra"}


def told_by(goal: str, rules_only: Resources) -> tuple[str, list[str]]:
    """The opening and the facts of the scripted user of a problem."""
    task = task_from_record({"question": goal, "answer": "#### 1"}, "t")
    user: Any = domain().make_user(task, rules_only)
    return user.opening, [fact.statement for fact in user.facts]


@pytest.mark.parametrize(
    ("record", "reference"),
    [
        ({"question": "3?", "answer": "It is <<1+2=3>>3.\n#### 3"}, "3"),
        (MATH_RECORD, "2"),
        ({"problem": "Half of one?", "solution": "It is $\\frac{1}{2}$.", "answer": "\\frac{1}{2}", "level": 1}, "\\frac{1}{2}"),
        ({"problem": "Twice?", "solution": "First \\boxed{1}, no: \\boxed{\\frac{2}{3}}."}, "\\frac{2}{3}"),
    ],
)
def test_the_final_result_is_found_in_every_kind_of_record(record: dict[str, Any], reference: str) -> None:
    assert task_from_record(record, "t").reference == reference


def test_only_problems_of_the_level_are_tasks(tmp_path: Path) -> None:
    path = tmp_path / "math.jsonl"
    records = [MATH_RECORD, MATH_RECORD | {"level": "Level 4"}, MATH_RECORD | {"level": 5}, MATH_RECORD | {"level": "Level ?"}]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert [task.id for task in load_tasks(str(path), domain(level=5)).tasks] == [
        "math_chat-train-00000",
        "math_chat-train-00002",
    ]
    assert len(load_tasks(str(path), domain()).tasks) == 4


def test_a_record_without_a_level_is_reported_where_one_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "math.jsonl"
    path.write_text(json.dumps({"question": "3?", "answer": "#### 3"}) + "\n")
    with pytest.raises(ConfigurationError, match=r"line 1: option level needs a field 'level'"):
        load_tasks(str(path), domain(level=5))


def test_the_user_opens_with_the_question_wherever_it_stands(rules_only: Resources) -> None:
    opening, facts = told_by("Ada has 3 pens. How many has she? Ben gives her 2 more.", rules_only)
    assert (opening, facts) == ("How many has she?", ["Ada has 3 pens.", "Ben gives her 2 more."])
    opening, facts = told_by("Let $x$ be 2. Find $x^2$. Express it as an integer.", rules_only)
    assert (opening, facts) == ("Find $x^2$.", ["Let $x$ be 2.", "Express it as an integer."])
    assert told_by("Compute 3 + 4.", rules_only) == ("Compute 3 + 4.", [])


def test_an_abbreviation_does_not_end_a_sentence(rules_only: Resources) -> None:
    opening, facts = told_by("Mr. Li buys 3 kg of rice at $2.50. What does he pay?", rules_only)
    assert (opening, facts) == ("What does he pay?", ["Mr. Li buys 3 kg of rice at $2.50."])


@pytest.mark.parametrize("options", [{"level": 0}, {"level": 6}, {"accuracy": "model"}, {"reward": "papr"}])
def test_an_option_that_cannot_be_is_refused(options: dict[str, Any], rules_only: Resources) -> None:
    with pytest.raises(ConfigurationError):
        Environment(domain(**options), rules_only)


async def test_the_reward_is_the_papers_term_by_term() -> None:
    resources = Resources(count_words, judge_model=model_that(says_as_json(rating=5)))
    task = task_from_record({"question": "How many?", "answer": "#### 4"}, "t")
    score = await Environment(domain(), resources).reward.score(says("How many?", "The answer is 4."), task)
    assert score.components == {"accuracy": 1.0, "token_cost": -6 * 5e-4, "interactivity": 1.0}
    assert score.total == pytest.approx(2.0 - 6 * 5e-4)


async def test_an_llm_may_judge_accuracy() -> None:
    def answer(request: Any) -> str:
        return json.dumps({"rating": 0 if "Incorrect" in request.messages[0].content else 5})

    resources = Resources(count_words, judge_model=model_that(answer))
    task = task_from_record({"question": "How many?", "answer": "#### 4"}, "t")
    score = await Environment(domain(accuracy="judge"), resources).reward.score(says("How many?", "The answer is 4."), task)
    assert score.components["accuracy"] == 0.0  # the rules would say 1
    with pytest.raises(ConfigurationError, match="accuracy=judge needs a judge"):
        Environment(domain(accuracy="judge"), Resources(count_words))


async def test_the_upstream_preset_is_there_and_leaves_the_paper_as_it_is() -> None:
    judge = model_that(lambda request: json.dumps({"rating": 1}))
    task = task_from_record({"question": "How many?", "answer": "#### 4"}, "t")
    upstream = await Environment(domain(reward="upstream"), Resources(count_words, judge_model=judge)).reward.score(
        says("How many are there?", "The answer is 4."), task
    )
    assert upstream.components["token_cost"] == -4 * 5e-4  # only what is read counts
    tuned = Environment(domain(), Resources(count_words, token_penalty=0.01))
    paper = Environment(domain(), Resources(count_words))
    costs = [(await each.reward.score(says("a b", "c"), task)).components["token_cost"] for each in (tuned, paper)]
    assert costs == [-0.03, -3 * 5e-4]  # a penalty of one environment does not stick to the preset


def test_a_problem_of_a_hundred_thousand_tokens_is_a_bad_record() -> None:
    with pytest.raises(BadRecord, match=r"field 'question' has 500,000 characters; at most 8,000 are taken"):
        task_from_record({"question": "Why? " * 100_000, "answer": "#### 1"}, "t")
