"""The table of right and wrong answers, and what happens when there is no answer, no reference, or no verdict."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collab.rewards.accuracy import ContainsFact, MathAccuracy, compare, gold_answer
from collab.rewards.component import RewardComponent, ScoringError
from collab.rewards.extraction import answer
from collab.rewards.plain_numbers import read_number, stated_number
from collab.rewards.worker_pool import WorkerPool, shared_worker_pool
from collab.tasks.task import Task
from simulators.conversation import Message, Outcome
from simulators.errors import ConfigurationError
from tests.rewards.conversations import says

RIGHT = [
    # reference, final reply
    ("#### 18", "She makes 9 * 2 = 18 dollars every day.\n#### 18"),
    ("18", "The answer is 18."),
    ("18", "**Final answer: $18**"),
    ("18", "\\boxed{18}"),
    ("18", "So the result is $\\boxed{18\\text{ dollars}}$."),
    ("18", "Therefore x = 18"),
    ("18", "We get 16 - 3 - 4 = 9 eggs, so she earns 18 dollars a day. Do you want me to check 2 other days?"),
    ("100", "It costs $100.00"),
    ("$100.00", "The answer is 100."),
    ("100", "The answer is \\$100.00"),
    ("5", "Answer: 5.0"),
    ("5.0", "Answer: 5"),
    ("5", "Answer: 5."),
    ("1234", "The total is 1,234."),
    ("1,234", "The total is 1234."),
    ("1234567.5", "Answer: $1,234,567.50"),
    ("1000000", "The answer is 1 million dollars."),
    ("-5", "The answer is -5."),
    ("-5", "The answer is \N{MINUS SIGN}5."),
    ("-5", "The answer is -$5.00"),
    ("-5", "\\boxed{-5}"),
    ("50%", "The answer is 50%."),
    ("50", "The answer is 50%."),
    ("50\\%", "The answer is 0.5"),
    ("0.5", "\\boxed{50\\%}"),
    ("50", "That is 50 percent."),
    ("\\frac{1}{2}", "The answer is 1/2."),
    ("\\frac{1}{2}", "\\boxed{0.5}"),
    ("1/2", "\\boxed{\\frac12}"),
    ("0.5", "\\boxed{\\dfrac{1}{2}}"),
    ("\\frac{3}{4}", "\\boxed{\\frac{6}{8}}"),
    ("3.5", "The answer is 3 1/2."),
    ("3\\frac{1}{2}", "The answer is 3.5"),
    ("-\\frac{1}{2}", "\\boxed{-0.5}"),
    ("1/3", "The answer is 0.333333"),
    ("3, 5", "\\boxed{5, 3}"),
    ("3 and 5", "The answer is 5 and 3."),
    ("x = 3 or x = 5", "\\boxed{x=5 \\text{ or } x=3}"),
    ("\\{3, 5\\}", "The answer is 3, 5"),
    ("\\pm 2", "\\boxed{\\{-2, 2\\}}"),
    ("(1, 2)", "\\boxed{(1,2)}"),
    ("x=7", "\\boxed{7}"),
    ("7", "\\boxed{x = 7}"),
    ("5", "The distance is 5 km."),
    ("5", "\\boxed{5\\text{ km/h}}"),
    ("5\\text{ cm}^2", "The answer is 5 cm^2."),
    ("90", "\\boxed{90^\\circ}"),
    ("2\\sqrt{3}", "\\boxed{\\sqrt{12}}"),
    ("\\pi/2", "\\boxed{\\frac{\\pi}{2}}"),
    ("x^2+2x+1", "\\boxed{(x+1)^2}"),
    ("2^{10}", "\\boxed{1024}"),
    ("1500", "\\boxed{1.5\\times10^3}"),
    ("[1,2)", "\\boxed{[1, 2)}"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\boxed{\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}}"),
    ("\\text{Evelyn}", "The answer is Evelyn."),
    ("Tuesday", "\\boxed{\\text{Tuesday}}"),
    ("(A)", "\\boxed{A}"),
    ("2:3", "\\boxed{2:3}"),
    ("She had 5 + 4 = <<5+4=9>>9.\n#### 9", "The answer is 9 apples."),
    ("The area is $\\boxed{\\frac{8}{3}}$.", "$$x = \\frac{8}{3}$$"),
    ("9", "The answer is:\n\n$$x = 9$$"),
    ("9", "First \\boxed{8} was a slip; correctly, \\boxed{9}."),
]

WRONG = [
    ("18", "The answer is 19."),
    ("18", "The answer is 180."),
    ("18", "The answer is 1.8"),
    ("18", "The answer is -18."),
    ("18", "Should I divide 36 by 2 to get 18?"),
    ("18", "I would rather not say."),
    ("18", "The answer is 17 or 18."),
    ("18", "\\boxed{18, 19}"),
    ("18", "It was 18 first, but the answer is 20."),
    ("100", "The answer is 1.00"),
    ("1234", "The answer is 1.234"),
    ("1234", "The answer is 1, 234"),
    ("-5", "The answer is 5."),
    ("5", "The answer is -5"),
    ("50%", "The answer is 5%."),
    ("50\\%", "The answer is 0.05"),
    ("\\frac{1}{2}", "The answer is 2/1."),
    ("\\frac{1}{2}", "\\boxed{0.05}"),
    ("1/3", "The answer is 0.33"),
    ("3.5", "The answer is 3 1/4."),
    ("3, 5", "\\boxed{3}"),
    ("3, 5", "\\boxed{3, 5, 7}"),
    ("3 and 5", "The answer is 3 and 4."),
    ("(1, 2)", "\\boxed{(2,1)}"),
    ("2\\sqrt{3}", "\\boxed{3\\sqrt{2}}"),
    ("x^2+2x+1", "\\boxed{x^2+1}"),
    ("3", "\\boxed{3x}"),
    ("3x", "\\boxed{3}"),
    ("[1,2)", "\\boxed{(1, 2)}"),
    ("\\text{Evelyn}", "The answer is Evylen."),
    ("Tuesday", "The answer is Monday."),
    ("(A)", "\\boxed{B}"),
    ("9", "Since 3 * 3 = 9, the answer is 8."),
    ("5", "\\boxed{"),
    ("5", "\\boxed{\\frac{1}{0}}"),
    ("5", "\\frac{{{"),
    ("12", "\\boxed{12:30}"),
]


@pytest.fixture(scope="module")
def accuracy():
    with WorkerPool(workers=1) as pool:
        yield MathAccuracy(pool=pool, deadline_s=60)


def test_the_table_is_as_large_as_promised():
    assert len({*RIGHT, *WRONG}) == len(RIGHT) + len(WRONG) >= 60


@pytest.mark.parametrize(("reference", "reply"), RIGHT)
async def test_right_answers(accuracy, reference, reply):
    assert await accuracy.score(says(reply), Task("t", "g", reference)) == 1.0


@pytest.mark.parametrize(("reference", "reply"), WRONG)
async def test_wrong_answers(accuracy, reference, reply):
    assert await accuracy.score(says(reply), Task("t", "g", reference)) == 0.0


async def test_the_latest_answer_counts(accuracy):
    task = Task("t", "g", "18")
    assert await accuracy.score(says("The answer is 20.", "I was wrong, the answer is 18."), task) == 1.0
    assert await accuracy.score(says("The answer is 18.", "Wait, the answer is 20."), task) == 0.0
    assert await accuracy.score(says("The answer is 18.", "You're welcome!"), task) == 1.0
    assert await accuracy.score(says(), task) == 0.0
    assert await accuracy.score((Message("user", "Is the answer 18?"),), task) == 0.0


def test_it_is_a_component(accuracy):
    assert isinstance(accuracy, RewardComponent)
    assert isinstance(ContainsFact(), RewardComponent)


@pytest.mark.parametrize("reference", [None, "", "  "])
async def test_a_task_without_reference_is_a_configuration_error(accuracy, reference):
    with pytest.raises(ConfigurationError, match="task t7 has no reference"):
        await accuracy.score(says("5"), Task("t7", "g", reference))
    with pytest.raises(ConfigurationError, match="task t7 has no reference"):
        await ContainsFact().score(says("5"), Task("t7", "g", reference))


async def test_a_hanging_verifier_is_killed_and_is_no_zero():
    with WorkerPool(workers=1) as pool:
        accuracy = MathAccuracy(pool=pool, deadline_s=0.5)
        await MathAccuracy(pool=pool, deadline_s=60).score(says("\\boxed{\\sqrt{4}}"), Task("t", "g", "\\sqrt{9}"))  # warm
        with pytest.raises(ScoringError, match="killed") as caught:
            await accuracy.score(says("\\boxed{9^{9^{9^{9}}}}"), Task("t", "g", "\\sqrt{2}"))
        assert caught.value.outcome is Outcome.JUDGE_ERROR
        again = MathAccuracy(pool=pool, deadline_s=60)
        assert await again.score(says("\\boxed{\\sqrt{8}}"), Task("t", "g", "2\\sqrt{2}")) == 1.0


async def test_a_verifier_that_cannot_start_is_no_zero(monkeypatch):
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with WorkerPool(workers=1) as pool:
        with pytest.raises(ScoringError, match="cannot start") as caught:
            await MathAccuracy(pool=pool).score(says("\\boxed{\\sqrt{8}}"), Task("t", "g", "2\\sqrt{2}"))
        assert caught.value.outcome is Outcome.INFRA_ERROR


async def test_plain_numbers_never_meet_a_worker(monkeypatch):
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with WorkerPool(workers=1) as pool:
        assert await MathAccuracy(pool=pool).score(says("It is $1,800.00."), Task("t", "g", "#### 1800")) == 1.0
        assert await MathAccuracy(pool=pool).score(says("It is $1,801.00."), Task("t", "g", "#### 1800")) == 0.0


async def test_the_shared_pool_is_one_pool():
    assert shared_worker_pool() is shared_worker_pool()
    assert await MathAccuracy(deadline_s=60).score(says("\\boxed{\\sqrt{8}}"), Task("t", "g", "2\\sqrt{2}")) == 1.0


HOSTILE = [
    "\\boxed{" * 20_000,
    "$" * 40_000,
    "\\[" * 20_000,
    "the answer is " * 3000,
    "1," * 20_000,
    "#### " * 8000,
    "{" * 40_000,
]
HOSTILE += [
    "answer of " + "x " * 20_000,
    "9" * 40_000,
    "?" * 40_000,
    "The answer is " + "a" * 39_000,
    f"\\boxed{{{'9' * 39_000}}}",
]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("reply", HOSTILE, ids=lambda reply: reply[:12])
async def test_hostile_replies_are_read_at_once_and_are_wrong(accuracy, reply):
    assert await accuracy.score(says(reply), Task("t", "g", "5")) == 0.0


@pytest.mark.parametrize(
    ("reference", "gold"),
    [("a\n#### 1,000", "1,000"), ("so $\\boxed{\\frac{1}{2}}$.", "\\frac{1}{2}"), (" 42 ", "42"), ("####", "####")],
)
def test_gold_answers(reference, gold):
    assert gold_answer(reference) == gold


def test_all_gsm8k_answers_equal_themselves_and_not_the_next(collab_data):
    lines = (collab_data / "gsm8k/test.jsonl").read_text().splitlines()
    golds = [gold_answer(json.loads(line)["answer"]) for line in lines]
    assert len(golds) == 1319
    assert all(compare(gold, f"${gold}.00" if "." not in gold else gold) for gold in golds)
    assert not any(compare(gold, str(float(gold.replace(",", "")) + 1)) for gold in golds)


@pytest.mark.parametrize(
    ("fact", "reply", "expected"),
    [
        ("Monday at 3 pm", "Reminder: dentist, monday  at\n3 PM!", 1.0),
        ("12 dollars", "It costs 12 dollars.", 1.0),
        ("12", "Price: 12.", 1.0),
        ("12", "Price: $12", 1.0),
        ("12", "Price: 112", 0.0),
        ("12", "Price: 12.5", 0.0),
        ("12", "Price: 12,000", 0.0),
        ("12", "Price: 3.12", 0.0),
        ("12", "At 12, or 12.", 1.0),
        ("Anna", "Annabel", 0.0),
        ("Anna", "Name tag: ANNA", 1.0),
        ("Anna", "Joanna and Anna", 1.0),
        ("Anna", "", 0.0),
    ],
)
async def test_contains_fact(fact, reply, expected):
    assert await ContainsFact().score(says("Anna 12 Monday at 3 pm 12 dollars", reply), Task("t", "g", fact)) == expected


NUMBERS = st.decimals(min_value=-(10**9), max_value=10**9, allow_nan=False, places=2)


@given(NUMBERS)
def test_a_number_equals_itself_in_every_dress(number):
    plain = read_number(str(number))
    assert plain is not None
    for dressed in (
        f"{number:,}",
        f"${number:,}",
        f"{number} dollars",
        f"\\boxed{{{number}}}"[7:-1],
        f"x = {number}",
        f"**{number}**",
    ):
        other = read_number(dressed)
        assert other is not None, dressed
        assert plain.equals(other)
    assert not plain.equals(read_number(str(number + 1)))


@given(st.text(max_size=300))
def test_any_text_can_be_read(text):
    read_number(text)
    stated_number(text)
    compare("5", text)
    compare(text or "x", "5")
    answer(text)
