"""Abg-CoQA: what a question may mean, who says so, asking back or answering, and the figures of Table 2."""

import json
from pathlib import Path
from typing import Any

import pytest

from collab.environments.collabllm.abg_coqa import domain, meanings, task_from_record, word_f1
from collab.environments.collabllm.clarifying import asks_back
from collab.environments.domain import BadRecord, Environment, Resources
from collab.environments.loading import load_tasks
from collab.rewards.component import ScoringError
from collab.tasks.task import Task
from simulators.conversation import Message
from simulators.errors import ConfigurationError
from tests.environments.collabllm.conftest import model_that, says_as_json
from tests.scripted_environment import count_words, says

CLARIFICATION = {
    "question": "Do you mean the first book?",
    "answers": [
        {"clr_ans": "Yes.", "org_ans": "red"},
        {"clr_ans": "No, I mean the second book.", "org_ans": "green", "org_ans_2": "Green"},
    ],
}
RECORD: dict[str, Any] = {
    "id": "library|5|2",
    "story": "Angie found a red book. Later she found a green one.",
    "target_turn": {"question": "What colour was it?", "answer": "green"},
    "history_turns": [{"question": "Who is it about?", "answer": "Angie"}],
    "ambiguity": "ambiguous",
    "clarification_turn": CLARIFICATION,
}
CLEAR = RECORD | {"ambiguity": "non_ambiguous", "clarification_turn": {}, "id": "library|6|2"}


def with_meaning(statement: str) -> Task:
    """The task under an id whose user means just that."""
    tasks = (task_from_record(RECORD | {"id": f"library|{number}"}, "t") for number in range(50))
    return next(task for task in tasks if task.metadata["meaning"] == statement)


def test_a_bare_yes_is_put_into_words_and_a_bare_no_says_nothing() -> None:
    found = meanings(CLARIFICATION)
    assert [(each.statement, each.answers) for each in found] == [
        ("I mean the first book.", ("red",)),
        ("I mean the second book.", ("green", "Green")),
    ]
    asked = {
        "question": "Are you asking what it is?",
        "answers": [{"clr_ans": "Yes", "org_ans": "x"}, {"clr_ans": "No", "org_ans": "y"}],
    }
    assert [each.statement for each in meanings(asked)] == ["I am asking what it is."]
    open_question = {
        "question": "Who do you mean?",
        "answers": [{"clr_ans": "no", "org_ans": "x"}, {"clr_ans": "the man", "org_ans": "y"}],
    }
    assert [each.statement for each in meanings(open_question)] == ["The man"]


def test_what_is_meant_depends_on_the_task_alone() -> None:
    drawn = {task_from_record(RECORD | {"id": str(number)}, "t").metadata["meaning"] for number in range(20)}
    assert drawn == {"I mean the first book.", "I mean the second book."}
    assert task_from_record(RECORD, "a") == task_from_record(RECORD, "b")


async def test_the_user_opens_with_story_and_question_and_tells_its_meaning_when_asked() -> None:
    task = with_meaning("I mean the second book.")
    assert (task.reference, task.metadata["references"]) == ("green", ["green", "Green"])
    user = domain().make_user(task, Resources(count_words))
    opening = (await user.next_turn((), 0)).text
    assert "The story:\nAngie found a red book." in opening
    assert "I asked: Who is it about?\nI was told: Angie" in opening
    assert opening.endswith("My question: What colour was it?")
    assert "second" not in opening
    asked = await user.next_turn(says(opening, "Do you mean the first book?"), 0)
    assert (asked.text, asked.ends) == ("I mean the second book.", False)
    assert (await user.next_turn(says(opening, "It was red."), 0)).ends


async def test_a_clear_question_has_nothing_more_to_it() -> None:
    task = task_from_record(CLEAR, "t")
    user = domain().make_user(task, Resources(count_words))
    said = await user.next_turn(says(task.opening or "", "Which one?"), 0)
    assert said.text == "I mean it just as I asked it."


async def test_a_role_play_user_gets_the_meaning_as_its_goal_and_the_same_opening() -> None:
    seen: list[str] = []

    def answer(request: Any) -> str:
        seen.append(request.messages[0].content)
        return json.dumps({"message": "the second one", "done": False})

    task = with_meaning("I mean the second book.")
    user = domain().make_user(task, Resources(count_words, user_model=model_that(answer)))
    assert (await user.next_turn((), 0)).text == task.opening
    assert not seen
    assert (await user.next_turn(says(task.opening or "", "Which?"), 0)).text == "the second one"
    assert "What you mean by it: I mean the second book. Say so only if you are asked." in seen[0]


async def scores(task: Task, *texts: str, **options: str) -> dict[str, float]:
    environment = Environment(domain(**options), Resources(count_words))  # type: ignore[arg-type]
    return (await environment.reward.score(says(*texts), task)).components


async def test_asking_back_is_right_when_ambiguous_and_wrong_when_not() -> None:
    ambiguous, clear = with_meaning("I mean the second book."), task_from_record(CLEAR, "t")
    asked, answered = ("q", "Do you mean the first book?"), ("q", "green")
    found = [(await scores(task, *said))["action_accuracy"] for task in (ambiguous, clear) for said in (asked, answered)]
    assert found == [1.0, 0.0, 0.0, 1.0]


async def test_asking_first_pays_in_the_end() -> None:
    task = with_meaning("I mean the second book.")
    asking = await scores(task, "q", "Do you mean the first book?", "I mean the second book.", "It was green.")
    guessing = await scores(task, "q", "It was red.")
    only_asking = await scores(task, "q", "Which?", "I mean the second book.", "Are you sure?")
    assert asking["answer_f1"] == 0.5
    assert guessing["answer_f1"] == only_asking["answer_f1"] == 0.0


async def test_what_counts_is_an_option_and_the_other_is_measured() -> None:
    task = task_from_record(CLEAR, "t")
    for reward, total in (("answer", 1.0 - 2 * 5e-4), ("action", 1.0 - 2 * 5e-4)):
        environment = Environment(domain(reward=reward), Resources(count_words))
        score = await environment.reward.score(says("q", "green"), task)
        assert score.total == pytest.approx(total)
        assert set(score.components) == {"answer_f1", "action_accuracy", "token_cost"}
    wrong = says("q", "red")
    totals = [
        (await Environment(domain(reward=reward), Resources(count_words)).reward.score(wrong, task)).total
        for reward in ("answer", "action")
    ]
    assert totals == [pytest.approx(-1e-3), pytest.approx(1.0 - 1e-3)]
    for options in ({"reward": "f1"}, {"classifier": "llm"}):
        with pytest.raises(ConfigurationError):
            domain(**options)  # type: ignore[arg-type]


async def test_a_judge_may_tell_asking_from_answering() -> None:
    task = with_meaning("I mean the second book.")
    for action, right in (("asks", 1.0), ("answers", 0.0)):
        resources = Resources(count_words, judge_model=model_that(says_as_json(action=action, rating=3)))
        environment = Environment(domain(classifier="model"), resources)
        score = await environment.reward.score(says("q", "Tell me more about the book, would you."), task)
        assert score.components["action_accuracy"] == right
    with pytest.raises(ConfigurationError, match="classifier=model needs a judge"):
        Environment(domain(classifier="model"), Resources(count_words))
    silent = Environment(domain(classifier="model"), Resources(count_words, judge_model=model_that(lambda request: "hm")))
    score = await silent.reward.score(says("q", "Tell me."), task)
    assert "action_accuracy" not in score.components
    assert "action_accuracy" in score.errors


async def test_a_task_without_a_label_has_no_action_to_be_right_about() -> None:
    environment = Environment(domain(), Resources(count_words))
    (component,) = [each for each, _ in environment.reward.terms if each.name == "action_accuracy"]
    with pytest.raises(ScoringError, match="does not say whether its question is ambiguous"):
        await component.score(says("q", "a"), Task("t", "goal", "a", metadata={"references": ["a"]}))
    assert await component.score((Message("user", "q"),), task_from_record(CLEAR, "t")) == 0.0


@pytest.mark.parametrize(
    ("reply", "asks"),
    [
        ("Do you mean the first book or the second?", True),
        ("**Which one do you mean?**", True),
        ("I see two books. Could you please clarify which one you mean.", True),
        ("Which book? Please tell me.", True),
        ("Do you mean the first? Let me know!", True),
        ("It was red.", False),
        ("It was red. Does that help?", False),
        ("Red! Is there anything else you would like to know?", False),
        ("It was red. Would you like me to say more?", False),
        ("What colour was it? It was red.", False),
        ('He said "Why?" and left.', False),
        ("I cannot tell. Let me know if you have other questions.", False),
        ("", False),
    ],
)
def test_a_courtesy_at_the_end_is_no_question_back(reply: str, asks: bool) -> None:
    assert asks_back(reply) is asks


def test_telling_the_action_takes_linear_time() -> None:
    assert asks_back("a" * 300_000 + "? " * 3) in (True, False)
    assert asks_back("?" * 300_000) in (True, False)


@pytest.mark.parametrize(
    ("answer", "reference", "f1"),
    [("The green one!", "green", 2 / 3), ("green", "green", 1.0), ("a", "the", 1.0), ("red", "green", 0.0), ("", "green", 0.0)],
)
def test_word_f1_ignores_articles_case_and_punctuation(answer: str, reference: str, f1: float) -> None:
    assert word_f1(answer, reference) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"story": " "}, "field 'story' must be a text that is not empty"),
        ({"story": "word " * 100_000}, "field 'story' has 500,000 characters; at most 12,000 are taken"),
        ({"target_turn": "green"}, "field 'target_turn' must be an object"),
        ({"target_turn": {"question": 3}}, "field 'question' must be a text"),
        ({"ambiguity": "maybe"}, "field 'ambiguity' must be one of ambiguous, non_ambiguous, not 'maybe'"),
        ({"clarification_turn": {}}, "field 'question' must be a text"),
        ({"clarification_turn": {"question": "Who?", "answers": []}}, "field 'clarification_turn' has no 'answers'"),
        ({"clarification_turn": {"question": "Who?", "answers": ["x"]}}, "field 'answers' must be a list of objects"),
        (
            {"clarification_turn": {"question": "Who?", "answers": [{"clr_ans": "No", "org_ans": "x"}]}},
            "has no meaning with an answer",
        ),
        ({"history_turns": "none"}, "field 'history_turns' must be a list of objects"),
    ],
)
def test_a_bad_record_says_what_is_wrong(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRecord) as caught:
        task_from_record(RECORD | change, "t")
    assert said in str(caught.value)


@pytest.mark.parametrize(("file", "count", "ambiguous"), [("coqa_abg_test.json", 627, 76), ("coqa_abg_val.json", 645, 75)])
def test_every_real_question_is_a_task(collab_data: Path, file: str, count: int, ambiguous: int) -> None:
    tasks = load_tasks(str(collab_data / "abg-coqa" / file), domain()).tasks
    assert (len(tasks), sum(task.metadata["ambiguous"] for task in tasks)) == (count, ambiguous)
    assert all(bool(task.metadata["meaning"]) == task.metadata["ambiguous"] for task in tasks)
    assert len({task.metadata["group"] for task in tasks}) < count  # questions about one story belong together
