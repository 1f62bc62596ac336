"""The papers' tables, with the papers' own numbers where they can be checked."""

import pytest

from collab.environments.evolving_intent.arms import EVOLVE, SINGLE
from collab.evaluation.comparison import Cell, compare
from collab.evaluation.evolving_arms import evolving_result
from collab.evaluation.paper_tables import (
    ActionCounts,
    DatasetFigures,
    DomainResult,
    EvolvingResult,
    MethodResult,
    SettingResults,
    clarification_actions,
    collabllm_results,
    dataset_statistics,
    evolving_intent,
    lost_in_conversation,
    paired_differences,
    simulator_transfer,
)
from collab.evaluation.run import EvaluatedConversation
from collab.evaluation.statistics import compare_by_task, mcnemar, reliability
from collab.evaluation.tables import PlusMinus
from simulators.conversation import Outcome

# CollabLLM Table 1, three of its rows.
PAPER = [
    MethodResult("Base", {"docs": DomainResult(0.322, 2490, 0.46), "code": DomainResult(0.093, 1590, 0.22)}, baseline=True),
    MethodResult(
        "Proactive Base", {"docs": DomainResult(0.35, 2180, 0.62), "code": DomainResult(0.11, 1510, 0.337)}, baseline=True
    ),
    MethodResult("Online DPO", {"docs": DomainResult(0.368, 2000, 0.92), "code": DomainResult(0.13, 1310, 0.52)}),
]


def cells(table, row):
    (found,) = [each for each in table.rows if each.cells[0] == row]
    return found.cells[1:]


def test_relative_improvement_is_the_papers():
    table = collabllm_results(PAPER, {"docs": "BLEU", "code": "PR"})
    assert cells(table, "Online DPO") == pytest.approx((36.8, 2.0, 92.0, 13.0, 1.31, 52.0))
    assert cells(table, "Rel. improvement (Online DPO)") == pytest.approx((5.14, 8.25, 48.4, 18.2, 13.2, 54.3), abs=0.06)
    assert [column.header for column in table.columns] == ["Method", "BLEU", "tokens (k)", "ITR", "PR", "tokens (k)", "ITR"]
    assert "| **36.8** | **2.00** | **92.0** |" in table.markdown()


def test_what_is_missing_has_no_improvement():
    results = [
        MethodResult("Base", {"a": DomainResult(0.0, 100, None)}, baseline=True),
        MethodResult("SFT", {"a": DomainResult(0.5, 50, 0.5), "b": DomainResult(0.5, 50, 0.5)}),
    ]
    assert cells(collabllm_results(results), "Rel. improvement (SFT)") == (None, pytest.approx(50.0), None, None, None, None)
    with pytest.raises(ValueError, match="no method is called 'DPO'; there are Base, SFT"):
        collabllm_results(results, improved="DPO")
    with pytest.raises(ValueError, match="no results"):
        collabllm_results([])


def test_macro_metrics_of_clarifying_questions():
    counts = ActionCounts("CollabLLM", ambiguous=40, ambiguous_asked=20, clear=60, clear_answered=45)
    # asks: 20 hits, 15 false alarms, 20 misses; answers: 45 hits, 20 false alarms, 15 misses
    assert counts.macro_accuracy == pytest.approx((0.5 + 0.75) / 2)
    assert counts.macro_f1 == pytest.approx((40 / 75 + 90 / 125) / 2)
    table = clarification_actions([counts, ActionCounts("none clear", 5, 5, 0, 0)])
    assert cells(table, "CollabLLM")[:3] == pytest.approx((50.0, 75.0, 62.5))
    assert cells(table, "none clear") == (100.0, None, None, None, 5)
    assert ActionCounts("never asks", 10, 0, 10, 10).macro_f1 == pytest.approx((0 + 2 / 3) / 2)


def test_dataset_statistics_print_as_the_papers():
    table = dataset_statistics([DatasetFigures("MATH-Chat", 500, 2527, PlusMinus(0.863, 0.524), PlusMinus(0.547, 0.502))])
    assert "| MATH-Chat | 500 | 2,527 | 5.05 | 0.863 ± 0.524 | 0.547 ± 0.502 |" in table.markdown()
    assert cells(dataset_statistics([DatasetFigures("none", 0, 0, None, None)]), "none")[2:] == (None, None, None)


def test_lost_in_conversation_relates_every_setting_to_full():
    full = reliability({"a": [1.0] * 10, "b": [1.0] * 8 + [0.0] * 2})
    sharded = reliability({"a": [1.0] * 5 + [0.0] * 5, "b": [0.0] * 10})
    table = lost_in_conversation([SettingResults("gpt", "math", {"FULL": full, "SHARDED": sharded})])
    assert [f"{column.group} {column.header}".strip() for column in table.columns] == [
        "Method", "Task", "P FULL", "P SHARDED", "SHARDED / FULL", "A FULL", "A SHARDED", "U FULL", "U SHARDED",
    ]  # fmt: skip
    row = table.rows[0].cells
    assert (row[2].estimate, row[3].estimate) == (90.0, 25.0)
    assert row[4] == pytest.approx(25 / 90 * 100)
    assert row[8].estimate == 50.0


def test_a_setting_that_was_not_run_is_a_dash():
    sharded = reliability({"a": [0.0, 1.0]})
    table = lost_in_conversation(
        [SettingResults("x", "math", {"FULL": sharded, "RECAP": sharded}), SettingResults("y", "math", {"RECAP": sharded})]
    )
    assert table.rows[1].cells[2] is None and table.rows[1].cells[4] is None


def test_evolving_intent_reports_the_paired_difference_and_mcnemar():
    single, evolve = [True] * 20, [True] * 10 + [False] * 10
    paired = compare_by_task(
        {(str(i), 0): float(right) for i, right in enumerate(single)},
        {(str(i), 0): float(right) for i, right in enumerate(evolve)},
    )
    table = evolving_intent(
        [
            EvolvingResult("GPT 5.1", 0.98, 0.82, {"repeat": 0.975}, paired, mcnemar(single, evolve), 20),
            EvolvingResult("Qwen", 0.9, 0.64),
        ]
    )
    row = cells(table, "GPT 5.1")
    assert row[:3] == pytest.approx((98.0, 82.0, 97.5))
    assert row[3].estimate == pytest.approx(-50.0) and row[3].high < 0
    assert row[4] == pytest.approx(2 / 2**10) and row[5] == 20
    assert cells(table, "Qwen")[2:] == (None, None, None, None)


def test_evolving_intent_counts_tasks_not_runs_and_tests_them_as_the_arms_table_does():
    single = {(task, run): 1.0 for task in "abcdef" for run in range(3)}
    evolve = {key: float(key[0] == "a" or key[1] == 2) for key in single}  # b to f are solved in one run of three
    evolve[("a", 0)] = 0.0  # and a in two
    result = evolving_result("m", {SINGLE: single, EVOLVE: evolve})
    assert cells(evolving_intent([result]), "m")[-1] == 6 and result.paired.pairs == 18
    assert (result.test.lost, result.test.gained) == (5, 0)
    assert result.test == compare(cell_of(single), cell_of(evolve)).test
    del evolve[("b", 2)]  # a conversation without a score: its task is compared on the others
    result = evolving_result("m", {SINGLE: single, EVOLVE: evolve})
    assert (result.tasks, result.test) == (6, compare(cell_of(single), cell_of(evolve)).test)


def cell_of(scores):
    conversations = [
        EvaluatedConversation(task, run, Outcome.ENDED, score, {"accuracy": score}, (False,), 1, {})
        for (task, run), score in scores.items()
    ]
    return Cell("arm", "", "m", conversations, task_score="accuracy")


def test_paired_differences_have_a_row_a_metric():
    result = compare_by_task({("a", 0): 0.0, ("b", 0): 0.5, ("c", 0): None}, {("a", 0): 1.0, ("b", 0): 0.5, ("c", 0): 1.0})
    table = paired_differences({"R*": result}, "Before and after")
    assert cells(table, "R*")[:2] == (0.25, 0.75)
    assert cells(table, "R*")[3:] == (2, 1)
    assert table.note.startswith("95% bootstrap")


def test_the_transfer_matrix_shows_what_does_not_carry_over():
    table = simulator_transfer(
        {"role_play": {"role_play": 0.8, "scripted": 0.5}, "untrained": {"role_play": 0.4, "scripted": None}}, "R*"
    )
    assert cells(table, "role_play") == (0.8, 0.5, pytest.approx(-0.3))
    assert cells(table, "untrained") == (0.4, None, None)
