"""Cells of an evaluation: what counts as a success, what is left out, and how two policies are told apart."""

from typing import Any

import pytest

from collab.evaluation.comparison import Cell, compare, figures, is_binary, successes
from collab.evaluation.evaluation_tables import (
    collabllm_table,
    comparison_table,
    figures_table,
    first_difference,
    groups,
    seeds_table,
    transfer_table,
)
from collab.evaluation.run import EvaluatedConversation
from collab.evaluation.statistics import mcnemar
from simulators.budget import Price
from simulators.conversation import Outcome
from simulators.metering import Spent


def played(task: str, score: float | None, run: int = 0, *, seed: int = 0, tokens: int = 10) -> EvaluatedConversation:
    components = {} if score is None else {"accuracy": score, "token_cost": -0.1}
    outcome = Outcome.INFRA_ERROR if score is None else Outcome.ENDED
    spent = {"policy": Spent(1, 100, 0, tokens, 2.0), "user": Spent(1, 50, 0, 5, 0.5)}
    reward = None if score is None else score - 0.1
    return EvaluatedConversation(
        task, run, outcome, reward, components, (True, False), tokens, {}, seed=seed, spent=spent
    )  # fmt: skip


def cell(policy: str, scores: dict[str, list[float | None]], **more: Any) -> Cell:
    conversations = [played(task, score, run) for task, runs in scores.items() for run, score in enumerate(runs)]
    return Cell(
        **{
            "environment": "errands",
            "user": "",
            "task_score": "accuracy",
            **more,
            "policy": policy,
            "conversations": conversations,
        }
    )


def test_what_has_no_score_is_counted_and_is_in_no_mean() -> None:
    found = figures(cell("base", {"a": [1.0, None], "b": [0.5, 0.0]}))
    assert (found["conversations"], found["unscored"]) == (4, 1)
    assert found["accuracy"] == pytest.approx(0.5)
    assert found["success"] == pytest.approx(1 / 3)
    assert found["r_star"] == pytest.approx(0.4)
    assert (found["all_tokens"], found["seconds"]) == (165, 2.5)
    assert "cost" not in found
    assert figures(cell("base", {"a": [None]})) == {"conversations": 1, "unscored": 1}


def test_a_success_is_what_reaches_the_mark() -> None:
    scores: dict[str, list[float | None]] = {"a": [0.7], "b": [0.3], "c": [None]}
    assert list(successes(cell("base", scores, success_at=0.7)).values()) == [1.0, 0.0, None]
    assert is_binary([cell("base", {"a": [1.0, 0.0, None]})]) and not is_binary([cell("base", scores)])


def test_money_is_that_of_the_roles_that_have_a_price() -> None:
    prices = {"policy": Price(completion=1_000_000.0), "judge": Price(prompt=1.0)}
    assert figures(cell("base", {"a": [1.0]}, prices=prices))["cost"] == pytest.approx(10)
    assert "cost" not in figures(cell("base", {"a": [1.0]}, prices={"judge": Price(prompt=1.0)}))


def test_mcnemar_counts_tasks_and_runs_are_no_pairs_of_their_own() -> None:
    before = cell("base", {"a": [0.0, 0.0, 1.0], "b": [1.0, 1.0, 1.0], "c": [0.0, None, 0.0], "d": [1.0, 0.0]})
    after = cell("sft", {"a": [1.0, 1.0, 0.0], "b": [1.0, 1.0, 0.0], "c": [1.0, 1.0, 1.0], "d": [None, None]})
    found = compare(before, after)
    assert found.test == mcnemar([False, True, False], [True, True, True])  # d has no pair; a half is no majority
    assert found.r_star is not None and (found.r_star.pairs, found.r_star.dropped) == (8, 3)
    assert found.success is not None and found.success.difference.estimate == pytest.approx((7 - 4 - 1 + 0) / 8, abs=0.13)
    nothing = compare(before, cell("sft", {"z": [1.0]}))
    assert (nothing.r_star, nothing.success, nothing.test) == (None, None, None)


def test_tables_hold_what_was_measured_and_a_dash_for_the_rest() -> None:
    base, empty = cell("base", {"a": [1.0, 0.0]}, baseline=True), cell("sft", {"a": [None, None]})
    table = figures_table([base, empty])
    headers = [column.header for column in table.columns]
    assert headers == ["policy", "R*", "success", "tokens", "turns", "asks", "all tokens", "seconds", "n", "unscored"]
    assert table.rows[1].cells[1:] == (*[None] * 7, 2, 2)
    differences = comparison_table([base, empty])
    assert differences is not None and differences.rows[0].cells[1:] == (None, None, None, None, None, 0, 2)
    assert comparison_table([base]) is None
    graded = figures_table([cell("base", {"a": [0.4]})])
    assert [column.header for column in graded.columns][2:4] == ["success", "accuracy"]


def test_table_one_has_the_interactivity_of_those_that_were_judged() -> None:
    table = collabllm_table(
        [cell("base", {"a": [1.0]}, baseline=True), cell("base", {"a": [0.5]}, environment="math", baseline=True)]
    )
    assert table is not None
    assert [(column.group, column.header) for column in table.columns[1:]] == [
        ("errands", "accuracy"),
        ("errands", "tokens (k)"),
        ("math", "accuracy"),
        ("math", "tokens (k)"),
    ]
    assert collabllm_table([cell("base", {"a": [1.0]}, domain="lost_in_conversation")]) is None


def test_seeds_and_users_have_tables_where_there_are_several() -> None:
    conversations = [played(task, score, seed, seed=seed) for seed, score in ((0, 0.0), (1, 1.0)) for task in "ab"]
    several = Cell("errands", "", "base", conversations, "accuracy")
    table = seeds_table([several])
    assert table is not None
    first, second, both = table.rows[0].cells[2:]
    assert (first.mean, second.mean) == pytest.approx((-0.1, 0.9))  # type: ignore[union-attr]
    assert (both.center, both.spread) == pytest.approx((0.4, 0.5**0.5))  # type: ignore[union-attr]
    assert seeds_table([cell("base", {"a": [1.0]})]) is None
    assert transfer_table([cell("base", {"a": [1.0]})]) is None
    matrix = transfer_table(
        [cell("sft", {"a": [score]}, user=user, trained_with="a") for user, score in (("a", 0.9), ("b", 0.4))]
    )
    assert matrix is not None and matrix.rows[0].cells[-1] == pytest.approx(-0.5)


def test_the_conversation_to_look_at_is_where_policies_differ_most() -> None:
    before = cell("base", {"a": [0.5, 0.5], "b": [0.0, None]})
    after = cell("sft", {"a": [0.6, 0.1], "b": [0.2, 1.0]})
    assert first_difference([before, after]) == ("a", 1)
    assert first_difference([before, cell("sft", {"z": [1.0]})]) is None


def test_cells_are_grouped_in_their_order() -> None:
    cells = [cell(policy, {"a": [1.0]}, environment=where) for where in ("x", "y") for policy in ("base", "sft")]
    assert [[(each.environment, each.policy) for each in group] for group in groups(cells)] == [
        [("x", "base"), ("x", "sft")],
        [("y", "base"), ("y", "sft")],
    ]
