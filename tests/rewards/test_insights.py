"""Insight coverage x citation F1: SummHay's joint score, by hand."""

import json

import pytest

from collab.rewards.component import RewardComponent, ScoringError
from collab.rewards.insights import InsightCoverage, citations, f1, first_words, split_bullets
from collab.tasks.task import Task
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.conversation import Outcome
from simulators.errors import ConfigurationError
from tests.rewards.conversations import says

TASK = Task(
    "s1",
    "g",
    metadata={
        "insights": [
            {"insight_id": "a", "insight": "Measure blood pressure twice a day."},
            {"insight_id": "b", "insight": "Keep a log of the temperature."},
            {"insight_id": "c", "insight": "Drink eight glasses of water."},
        ],
        "insightid2ref_citations": {"a": [1, 2, 70], "b": [3], "c": [4]},
        "documents": [{"document_index": index} for index in (1, 2, 3, 4, 5)],
    },
)
SUMMARY = "- Blood pressure twice a day [1][2]\n- Temperature log [3, 5]"


def judge(verdicts):
    def script(request, rng):
        wanted = request.messages[-1].content.split("<reference>")[1]
        return json.dumps(next(verdict for word, verdict in verdicts.items() if word in wanted))

    return ScriptedChatModel(script)


FULL = {
    "blood": {"coverage": "full", "bullet": 1},
    "temperature": {"coverage": "partial", "bullet": 2},
    "water": {"coverage": "none"},
}


async def test_the_joint_score_by_hand():
    component = InsightCoverage(judge(FULL))
    assert isinstance(component, RewardComponent)
    scores = await component.measure(says(SUMMARY), TASK)
    assert scores.coverage == pytest.approx((1 + 0.5 + 0) / 3)
    assert scores.citation == pytest.approx((1.0 + 2 / 3) / 2)  # document 70 was never given, so it is not asked for
    assert scores.joint == pytest.approx((1 * 1.0 + 0.5 * 2 / 3 + 0) / 3)
    assert await component.score(says(SUMMARY), TASK) == scores.joint


async def test_no_summary_scores_0_without_a_call():
    model = judge(FULL)
    assert await InsightCoverage(model).score(says("  "), TASK) == 0.0
    assert model.calls == 0


async def test_only_the_first_words_count():
    seen = []

    def script(request, rng):
        seen.append(request.messages[-1].content)
        return '{"coverage": "none"}'

    await InsightCoverage(ScriptedChatModel(script), max_words=3).score(says("one two three four five"), TASK)
    assert "one two three\n" in seen[0]
    assert "four" not in seen[0]


async def test_the_insights_of_one_summary_share_their_prefix():
    seen = []

    def script(request, rng):
        seen.append(request.messages)
        return '{"coverage": "none"}'

    await InsightCoverage(ScriptedChatModel(script)).score(says(SUMMARY + " </solution> hm"), TASK)
    assert len({messages[0] for messages in seen}) == 1
    assert len({messages[1].content.split("<reference>")[0] for messages in seen}) == 1
    assert seen[0][1].content.count("</solution>") == 1


@pytest.mark.parametrize(
    "reply",
    ['{"coverage": "mostly", "bullet": 1}', '{"coverage": "full"}', '{"coverage": "full", "bullet": 3}', "", '{"bullet": 1}'],
)
async def test_an_unusable_verdict_is_no_score(reply):
    with pytest.raises(ScoringError) as caught:
        await InsightCoverage(ScriptedChatModel(lambda request, rng: reply)).score(says(SUMMARY), TASK)
    assert caught.value.outcome is Outcome.JUDGE_ERROR


@pytest.mark.parametrize(
    "metadata", [{}, {"insights": []}, {"insights": [{"insight_id": "x", "insight": "y"}], "insightid2ref_citations": {}}]
)
async def test_bad_tasks(metadata):
    with pytest.raises(ConfigurationError, match="task s2"):
        await InsightCoverage(judge(FULL)).score(says(SUMMARY), Task("s2", "g", metadata=metadata))


@pytest.mark.parametrize(
    ("bullet", "expected"),
    [
        ("x [1]", {1}),
        ("x [1, 2] y [3][4]", {1, 2, 3, 4}),
        ("[Document 5] and [docs 6 and 7]", {5, 6, 7}),
        ("[see 5] (6) 7 [8.5] [a]", set()),
        ("[" * 1000, set()),
    ],
)
def test_citations(bullet, expected):
    assert citations(bullet) == expected


def test_f1():
    assert f1(frozenset({1, 2}), frozenset({1, 2})) == 1.0
    assert f1(frozenset({1}), frozenset({1, 2, 3})) == pytest.approx(0.5)
    assert f1(frozenset(), frozenset({1})) == 0.0
    assert f1(frozenset({1}), frozenset()) == 0.0


def test_bullets():
    assert split_bullets("Intro\n- one\n  more\n2) two\n\n* three") == ["Intro", "one more", "two", "three"]
    assert split_bullets("one\n\ntwo") == ["one", "two"]
    assert split_bullets("\n") == []


def test_first_words():
    assert first_words("a  b\nc d", 3) == "a  b\nc"
    assert first_words("a b", 3) == "a b"
    assert first_words("", 3) == ""


async def test_real_records_are_read(collab_data):
    model = ScriptedChatModel(lambda request, rng: '{"coverage": "full", "bullet": 1}')
    for line in (collab_data / "lost-in-conversation/summary.jsonl").read_text().splitlines():
        record = json.loads(line)
        all_documents = ", ".join(str(document["document_index"]) for document in record["documents"])
        scores = await InsightCoverage(model).measure(says(f"- all [{all_documents}]"), Task("r", "g", metadata=record))
        assert scores.coverage == 1.0
        assert 0 < scores.citation < 1
