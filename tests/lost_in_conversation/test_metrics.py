"""P, A90, U and R: the spec's table, intervals, and the figures turn by turn."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collab.environments.lost_in_conversation.assessment import AssessedReply, ScoreMode, conversation_score
from collab.environments.lost_in_conversation.schema import TaskKind
from collab.environments.lost_in_conversation.simulations import Simulation
from collab.environments.lost_in_conversation.strategy import Strategy
from collab.evaluation.lost_in_conversation.metrics import (
    ConversationRow,
    figures_by_turn,
    lost_metrics,
    metrics_by_simulation,
    score_by_first_attempt,
)
from collab.evaluation.lost_in_conversation.results import SimulationResults
from simulators.conversation import Outcome
from simulators.users.sharded import FELL_BACK

# k of 10 right -> (P, A90, U), with linear interpolation between order statistics
TABLE = {
    0: (0, 0, 0),
    1: (10, 10, 10),
    2: (20, 100, 100),
    3: (30, 100, 100),
    4: (40, 100, 100),
    5: (50, 100, 100),
    6: (60, 100, 100),
    7: (70, 100, 100),
    8: (80, 100, 100),
    9: (90, 100, 10),
    10: (100, 100, 0),
}


@pytest.mark.parametrize("right", range(11))
def test_the_table_of_k_of_10_right(right):
    found = lost_metrics({"one": [1.0] * right + [0.0] * (10 - right)})
    performance, aptitude, unreliability = TABLE[right]
    assert found.performance.estimate == pytest.approx(performance, abs=1e-9)
    assert found.aptitude.estimate == pytest.approx(aptitude, abs=1e-9)
    assert found.unreliability.estimate == pytest.approx(unreliability, abs=1e-9)
    assert found.reliability.estimate == pytest.approx(100 - unreliability, abs=1e-9)


def test_metrics_are_averaged_over_instructions_not_over_runs():
    found = lost_metrics({"many": [1.0] * 30, "few": [0.0] * 2}, unscored=3)
    assert found.performance.estimate == pytest.approx(50)
    assert (found.instructions, found.runs, found.unscored) == (2, 32, 3)


def test_intervals_shrink_with_instructions_and_r_mirrors_u():
    few = lost_metrics({str(number): [1.0] * (number % 11) + [0.0] * (10 - number % 11) for number in range(11)})
    many = lost_metrics({str(number): [1.0] * (number % 11) + [0.0] * (10 - number % 11) for number in range(110)})
    for found in (few, many):
        assert found.unreliability.low < found.unreliability.estimate < found.unreliability.high
        assert found.reliability.low == pytest.approx(100 - found.unreliability.high)
        assert found.reliability.high == pytest.approx(100 - found.unreliability.low)
    assert many.unreliability.high - many.unreliability.low < few.unreliability.high - few.unreliability.low
    assert few.as_dict()["U"] == [few.unreliability.estimate, few.unreliability.low, few.unreliability.high]


def test_one_instruction_has_no_interval():
    found = lost_metrics({"one": [1.0, 0.0]})
    assert found.unreliability.low is None and found.reliability.high is None


def test_no_scores_are_refused():
    with pytest.raises(ValueError, match="no instructions"):
        lost_metrics({})
    with pytest.raises(ValueError, match="missing or not finite"):
        lost_metrics({"one": [math.nan]})


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=12), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_the_metrics_stay_in_their_range(runs):
    found = lost_metrics({str(number): values for number, values in enumerate(runs)})
    assert 0 <= found.performance.estimate <= 100 + 1e-9
    assert found.aptitude.estimate <= 100 + 1e-9 and -1e-9 <= found.unreliability.estimate <= 100 + 1e-9


def reply(turn, score=None, strategy=Strategy.CLARIFICATION, words=10):
    if score is None:
        return AssessedReply(turn, strategy, words)
    return AssessedReply(turn, Strategy.ANSWER_ATTEMPT, words, "1" * turn, score)


@pytest.mark.parametrize(
    ("scores", "maximum", "last", "final"),
    [
        ([None, 0.0, 1.0], 1, 1, 1),
        ([1.0, 0.0], 1, 0, 0),
        ([1.0, None], 1, 1, 0),
        ([None, None], 0, 0, 0),
        ([], 0, 0, 0),
        ([0.4, 0.3, None], 0.4, 0.3, 0),
    ],
)
def test_score_modes(scores, maximum, last, final):
    replies = [reply(turn, score) for turn, score in enumerate(scores, start=1)]
    assert conversation_score(replies, ScoreMode.MAX) == maximum
    assert conversation_score(replies, ScoreMode.LAST) == last
    assert conversation_score(replies, ScoreMode.FINAL_TURN) == final


def row(instruction="i", simulation=Simulation.SHARDED, run=0, scores=(None, 1.0), shards=4, sufficient=4, failure=None, **more):
    replies = tuple(reply(turn, score) for turn, score in enumerate(scores, start=1))
    return ConversationRow(
        instruction, TaskKind.MATH, simulation, run, Outcome.ENDED, replies, shards, sufficient, failure, **more
    )


def test_conversations_without_a_score_are_counted_and_never_averaged():
    rows = [row(run=0), row(run=1, scores=(0.0, 0.0)), row(run=2, failure="simulator"), row("other", failure="judge")]
    found = metrics_by_simulation(rows)["math"][Simulation.SHARDED]
    assert found.performance.estimate == pytest.approx(50)
    assert (found.instructions, found.runs, found.unscored) == (1, 2, 2)
    assert metrics_by_simulation(rows)["all"][Simulation.SHARDED].runs == 2
    assert metrics_by_simulation([row(failure="judge")]) == {}
    assert rows[2].score(ScoreMode.MAX) is None


def test_premature_attempts_are_wrong_answers_before_all_was_told():
    assert row(scores=(0.0, 0.0, None, 1.0)).premature_attempts == 2
    assert row(scores=(0.0, 1.0), sufficient=None).premature_attempts == 1, "a right answer shows that the shards sufficed"
    assert row(scores=(None, None, None, 0.0)).premature_attempts == 0
    assert row(scores=(None, 0.0)).first_attempt_turn == 2
    assert row(scores=(None,)).first_attempt_turn is None


def test_figures_turn_by_turn_leave_single_turn_and_failed_conversations_out():
    rows = [
        row(scores=(None, 0.0, 1.0)),
        row(scores=(0.0, 0.0)),
        row(simulation=Simulation.FULL, scores=(1.0,)),
        row(scores=(1.0,), failure="simulator"),
    ]
    first, second, third = figures_by_turn(rows)
    assert (first.turn, first.replies, first.attempt_share, first.attempt_score) == (1, 2, 0.5, 0.0)
    assert first.strategies[Strategy.CLARIFICATION] == 0.5 and first.words == 10
    assert (second.attempt_share, second.attempt_score) == (1.0, 0.0)
    assert (third.replies, third.attempt_score) == (1, 1.0)
    assert (first.answer_characters, second.answer_characters, third.answer_characters) == (1, 2, 3)
    assert figures_by_turn([row(scores=(None,))])[0].attempt_score is None


def test_scores_by_how_early_the_first_attempt_came():
    rows = [
        row(scores=(0.0,) + (None,) * 4, shards=5),
        row(scores=(None,) * 4 + (1.0,), shards=5),
        row(scores=(None,) * 6 + (1.0,), shards=5),  # after the last shard: the last bin
        row(scores=(None,), shards=5),
        row(scores=(1.0,), simulation=Simulation.CONCAT),
    ]
    bins = score_by_first_attempt(rows)
    assert bins[0] == (0.2, 1, 0.0) and bins[4] == (1.0, 2, 100.0)
    assert [count for _, count, _ in bins] == [1, 0, 0, 0, 2] and bins[1][2] is None
    assert score_by_first_attempt([row(scores=(None, 1.0), shards=4)])[2] == (0.6, 1, 100.0)


def test_results_say_first_what_spoils_them():
    fell_back = [row(run=run, simulator_flags={FELL_BACK: 1}) for run in range(3)]
    results = SimulationResults((*fell_back, row(run=3, failure="simulator_kept_back", error="x")))
    first, second = results.warnings()
    assert first == "1 of 4 conversations have no score: simulator_kept_back."
    assert second.startswith("In 3 of 4 conversations the user simulator's model failed")
    assert results.failures() == {"simulator_kept_back": 1}
    assert SimulationResults((row(),)).warnings() == []
    assert len(results.unflagged().rows) == 1


def test_the_table_lists_every_task_and_simulation(tmp_path):
    results = SimulationResults((row("a"), row("b", scores=(0.0,)), row("a", Simulation.FULL, scores=(1.0,))))
    assert [cells.cells[:2] for cells in results.table().rows] == [("math", "full"), ("math", "sharded")]
    code = replace(row("c"), kind=TaskKind.CODE)
    table = replace(results, rows=(*results.rows, code)).table()
    assert [cells.cells[:2] for cells in table.rows] == [
        ("math", "full"),
        ("math", "sharded"),
        ("code", "sharded"),
        ("all", "full"),
        ("all", "sharded"),
    ]
    assert "score mode max" in table.note and "A90" in table.markdown()
    summary = results.summary()
    assert summary["metrics"]["math"]["sharded"]["P"][0] == pytest.approx(50)
    results.write(tmp_path)
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 3 and (tmp_path / "summary.json").exists()
