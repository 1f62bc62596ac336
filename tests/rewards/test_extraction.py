"""Extract(t): the right piece of the right message, never more than was said."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collab.rewards.component import ScoringError
from collab.rewards.extraction import (
    answer,
    by_rule,
    call_list,
    code_defining,
    document,
    fenced_blocks,
    final_reply,
    last_boxed,
    solution_code,
    sql_query,
)
from collab.rewards.llm_extraction import LlmExtraction, cut
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.conversation import Message, Outcome
from simulators.errors import ChatModelError
from tests.rewards.conversations import says


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("It is \\boxed{\\frac{1}{2}}, I think.", "\\frac{1}{2}"),
        ("#### 5\nthanks", "5"),
        ("The final answer is **$5** per day.", "$5** per day"),
        ("The answer to the question is 12.", "12"),
        ("Answer: 3.5. Then 4 more.", "3.5"),
        ("The answer is Tuesday.", "Tuesday"),
        ("The answer is 5. I hope the result is helpful!", "5"),
        ("125 / 25 = 5 hours to fill 125 cans.", "5"),
        ("x = 3 so y is 4", "4"),
        ("Half of it = 3 cups and a whole one 6", "6"),
        ("The total for the apples is $10. The oranges are $15, so she spends $25 altogether.", "$25"),
        ("Step 1: the total is 10. Step 2: 10 - 3 = 7. She has 7 apples left.", "7"),
        ("The total is 25. After the discount she pays $20.", "$20"),
        ("10 and 15 make 25, so the total is 25. Shall I add 5 more?", "25"),
        ("The result is below.\n10 + 15 = 25", "25"),
        ("10 + 15 = 25\nFinal result: **25** apples", "25** apples"),
        ("The answer is 7. That is 3 fewer than the total, which is 10.", "7"),
        ("x = 3, so $y = 4$", "y = 4"),
        ("It costs $5 and $6.", "$6"),
        ("3 of 4 are left.", "4"),
        ("3 of 4 are left. Shall I go on with 5?", "4"),
        ("Is it 5?", None),
        ("I do not know", None),
        ("", None),
    ],
)
def test_answers(reply, expected):
    assert answer(reply) == expected


def test_boxes_must_balance():
    assert last_boxed("\\boxed{1} and \\boxed{2") == "1"
    assert last_boxed("\\boxed{\\boxed{3}}") == "\\boxed{3}"
    assert last_boxed("\\boxed{a \\} b}") == "a \\} b"
    assert last_boxed("\\boxed{}") is None
    assert last_boxed("boxed{4}") is None


@given(st.text(alphabet="abc123 .?\\{}$boxed[]()`\n-*#=", max_size=200))
def test_every_rule_returns_a_piece_of_the_message(text):
    for rule in (answer, sql_query, call_list, document, code_defining("abc"), code_defining(None)):
        found = rule(text)
        assert found is None or found in text


async def test_the_latest_message_with_a_solution_counts():
    extract = by_rule(answer)
    assert await extract(says("answer: 1", "answer: 2", "Bye!")) == "2"
    assert await extract((Message("assistant", "answer: 1"), Message("user", "answer: 9"))) == "1"
    assert await extract(()) is None


def test_final_reply():
    assert final_reply(says("one", "two")) == "two"
    assert final_reply(says("one", "  ")) is None
    assert final_reply((Message("user", "hi"),)) is None


def test_fences():
    text = "a\n```python\nx\n```\nb\n~~~\ny\n```\n~~~\n```SQL title\nz"
    assert fenced_blocks(text) == [("python", "x\n"), ("", "y\n```\n"), ("sql", "z")]


async def test_code():
    define, use = "```python\ndef f():\n    pass\n```", "Use it:\n```python\nf()\n```"
    assert code_defining("f")(define + "\n" + use) == "def f():\n    pass\n"
    assert code_defining("g")(define + "\n" + use) == "f()\n"
    assert code_defining("f")("def f():\n    return 1") == "def f():\n    return 1"
    assert code_defining("f")("```json\n{}\n```") is None
    assert await solution_code("f")(says(define, use)) == "def f():\n    pass\n"
    assert await solution_code("g")(says(define, use)) == "f()\n"
    assert await solution_code("f")(says("no code")) is None


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("```sql\nSELECT 1;\n```\nand\n```python\nx\n```", "SELECT 1;"),
        ("```\nSELECT 2\n```", "SELECT 2"),
        ("The query is:\n\nSELECT a\nFROM b; it works\n\nbye", "SELECT a\nFROM b"),
        ("WITH t AS (SELECT 1) SELECT * FROM t", "WITH t AS (SELECT 1) SELECT * FROM t"),
        ("You should select a table.", None),
    ],
)
def test_queries(reply, expected):
    assert sql_query(reply) == expected


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("Sure: [f(a=1), g(b=[1, 2])] ok?", "[f(a=1), g(b=[1, 2])]"),
        ("[f(a='x]')] and [g()]", "[g()]"),
        ("```\nf(a=1)\n```", "f(a=1)"),
        ("[f(a=1", None),
        ("see [1](link)", None),
    ],
)
def test_call_lists(reply, expected):
    assert call_list(reply) == expected


def test_documents():
    body = "# Title\n\n" + "A long text. " * 20
    assert document(f"Here it is:\n\n---\n{body}\n---\n\nDo you like it?") == body.strip()
    assert document(f"Here:\n```markdown\n{body}\n```\nOk?") == body.strip()
    assert document(body) == body.strip()
    assert document("   ") is None


def pointing(**values):
    return LlmExtraction(ScriptedChatModel(lambda request, rng: json.dumps(values)), "document")


CONVERSATION = says(
    "First draft: Once upon\n a time there was a fox. The end.", "Second: Long ago there was a cat. The end. You like it?"
)


async def test_an_llm_points_at_the_solution():
    extract = pointing(found=True, message=2, first_words="Long ago  there", last_words="cat. The end.")
    assert await extract(CONVERSATION) == "Long ago there was a cat. The end."
    assert await pointing(found=True, message=1, first_words="Once upon a time", last_words="The end.")(CONVERSATION) == (
        "Once upon\n a time there was a fox. The end."
    )


async def test_no_solution_is_the_policys_doing_and_needs_no_model():
    assert await pointing(found=False)(CONVERSATION) is None
    model = ScriptedChatModel(lambda request, rng: "never")
    assert await LlmExtraction(model, "document")((Message("user", "hi"),)) is None
    assert model.calls == 0


@pytest.mark.parametrize(
    "values",
    [
        {"found": True},
        {"found": True, "message": 3, "first_words": "Long ago", "last_words": "The end."},
        {"found": True, "message": 2, "first_words": "Once upon", "last_words": "The end."},
        {"found": True, "message": 2, "first_words": "Long ago", "last_words": "polished by the extractor"},
        {"found": True, "message": 2, "first_words": "", "last_words": ""},
    ],
)
async def test_an_extractor_that_points_nowhere_gives_no_score(values):
    with pytest.raises(ScoringError) as caught:
        await pointing(**values)(CONVERSATION)
    assert caught.value.outcome is Outcome.JUDGE_ERROR


async def test_an_extractor_that_cannot_be_asked():
    def fails(request, rng):
        raise ChatModelError("503")

    with pytest.raises(ScoringError, match="503") as caught:
        await LlmExtraction(ScriptedChatModel(fails), "document")(CONVERSATION)
    assert caught.value.outcome is Outcome.INFRA_ERROR


@given(st.text(max_size=60), st.text(max_size=10), st.text(max_size=10))
def test_a_cut_is_a_piece_of_the_text(text, first, last):
    piece = cut(text, first, last)
    assert piece is None or piece in text


def test_short_answers_may_be_their_own_first_and_last_words():
    assert cut("It is 42, then.", "42", "42") == "42"
    assert cut("It is forty two, then.", "forty two", "two") == "forty two"
