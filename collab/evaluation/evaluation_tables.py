"""The tables of an evaluation, from its cells: every figure with its error, what it cost and how long it took; the papers' tables
where the environments are theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from collab.environments.evolving_intent.arms import ARMS, EVOLVE, SINGLE
from collab.evaluation.clarification import action_counts
from collab.evaluation.comparison import Cell, all_tokens, compare, is_binary, rewards, seconds, successes, task_scores
from collab.evaluation.evolving_arms import evolving_result
from collab.evaluation.paper_tables import (
    DomainResult,
    MethodResult,
    SettingResults,
    clarification_actions,
    collabllm_results,
    evolving_intent,
    lost_in_conversation,
    simulator_transfer,
)
from collab.evaluation.run import EvaluatedConversation
from collab.evaluation.statistics import Reliability, mean_and_error, reliability
from collab.evaluation.tables import Column, PlusMinus, Row, Table, Value, center, scaled

LOST, EVOLVING = "lost_in_conversation", "evolving_"
INTERACTIVITY = "interactivity"
_LOWER_IS_BETTER = ("premature", "withheld")
_SHOWN_APART = ("token_cost",)  # it is the tokens once more, times lambda


def figures_table(cells: Sequence[Cell]) -> Table:
    """Return what the policies came to in one environment with one user: quality, length, tokens, seconds and money."""
    first = cells[0]
    apart = {*_SHOWN_APART, *([first.task_score] if is_binary(cells) else [])}
    names = [name for name in dict.fromkeys(name for cell in cells for name in cell.components) if name not in apart]
    priced = any(cell.mean(cell.cost) is not None for cell in cells)
    columns = [Column("policy"), Column("R*", 3, better="higher"), Column("success", 1, "%", better="higher")]
    columns += [Column(name, 3, better="lower" if name in _LOWER_IS_BETTER else "higher") for name in names]
    columns += [Column("tokens", 0, better="lower"), Column("turns", 1), Column("asks", 0, "%"), Column("all tokens", 0)]
    columns += [Column("seconds", 1)] + ([Column("cost", 4)] if priced else [])
    columns += [Column("n", 0), Column("unscored", 0)]
    rows = []
    for cell in cells:
        own: list[Value] = [cell.policy, cell.mean(lambda each: each.reward), scaled(cell.mean(cell.success), 100)]
        own += [cell.mean(partial(_component, name)) for name in names]
        spent = [
            cell.mean(lambda each: float(each.policy_tokens)),
            cell.mean(lambda each: float(each.turns)),
            cell.mean(lambda each: 100 * sum(each.asked) / each.turns if each.turns else None),
            cell.mean(all_tokens),
            cell.mean(seconds),
        ] + ([cell.mean(cell.cost)] if priced else [])
        own += [center(value) for value in spent]  # without their errors: the row must fit on a page
        rows.append(Row((*own, len(cell.conversations), cell.unscored), "baseline" if cell.baseline else "ours"))
    score = f"success: {first.task_score} of at least {first.success_at:g}; " if first.task_score else ""
    note = (
        f"Means over scored conversations, ± standard error with tasks as clusters; {score}tokens: written by the policy; asks: "
        "share of replies that end in a question; all tokens and seconds: of all models, their answers' times (waiting included) "
        "added up; n: conversations."
    )
    return Table(f"Every policy in {first.environment}{_with_user(first)}", tuple(columns), tuple(rows), note)


def _component(name: str, conversation: EvaluatedConversation) -> float | None:
    return conversation.components.get(name)


def comparison_table(cells: Sequence[Cell]) -> Table | None:
    """Return how every policy differs from the first in one environment with one user; None where there is only one."""
    first, *others = cells
    if not others:
        return None
    binary = is_binary(cells)
    columns = [Column("policy"), Column("R*", 3, group="difference")]
    columns += [] if binary else [Column(first.task_score or "task score", 3, group="difference")]
    columns += [
        Column("success", 1, "%", group="difference"),
        Column("gained", 0, group="tasks (McNemar)"),
        Column("lost", 0, group="tasks (McNemar)"),
        Column("p", 4, group="tasks (McNemar)"),
        Column("pairs", 0),
        Column("dropped", 0),
    ]
    rows = []
    for cell in others:
        found, own = compare(first, cell), list[Value]([cell.policy])
        differences = [found.r_star, *([] if binary else [found.task_score])]
        own += [each.difference if each else None for each in differences]
        own.append(found.success.difference.scaled(100) if found.success else None)
        own += [found.test.gained, found.test.lost, found.test.p_value] if found.test else [None, None, None]
        pairs = (found.r_star.pairs, found.r_star.dropped) if found.r_star else (0, len(cell.conversations))
        rows.append(Row((*own, *pairs), "baseline" if cell.baseline else "ours"))
    note = (
        "Paired on task and run, with the 95% bootstrap interval, tasks resampled. McNemar: tasks solved in more than half of "
        "their runs by one policy only, exact and two-sided. Dropped: conversations that one of the two has no score for."
    )
    return Table(f"Against {first.policy}: {first.environment}{_with_user(first)}", tuple(columns), tuple(rows), note)


def collabllm_table(cells: Sequence[Cell]) -> Table | None:
    """Return CollabLLM Table 1 over the environments that have no table of their own; None where there are none."""
    results = []
    elsewhere = _with_own_table(cells)
    for policy in _policies(cells):
        domains = {}
        for cell in cells:
            if cell.policy == policy and cell.environment not in elsewhere:
                judged = cell.mean(partial(_component, INTERACTIVITY))
                domains[cell.environment] = DomainResult(
                    cell.mean(cell.score), cell.mean(lambda each: float(each.policy_tokens)), judged
                )
        if domains:
            baseline = all(cell.baseline for cell in cells if cell.policy == policy)
            results.append(MethodResult(policy, domains, baseline))
    if not results:
        return None
    return collabllm_results(results, {cell.environment: cell.task_score or "score" for cell in cells})


def clarification_table(cells: Sequence[Cell]) -> Table | None:
    """Return CollabLLM Table 2; None where no environment asks ambiguous questions."""
    several = len({cell.environment for cell in cells if action_counts("", cell.conversations)}) > 1
    counts = [
        action_counts(
            f"{cell.policy}, {cell.environment}" if several else cell.policy, cell.conversations, baseline=cell.baseline
        )
        for cell in cells
    ]
    found = [each for each in counts if each is not None]
    return clarification_actions(found) if found else None


def lost_settings(cells: Sequence[Cell]) -> dict[str, dict[str, Reliability]]:
    """Return P, A90 and U of every policy and simulation of Lost in Conversation, for tables and boxes."""
    return {result.method: _reliabilities(result) for result in _lost_results(cells)}


def lost_table(cells: Sequence[Cell]) -> Table | None:
    """Return Lost in Conversation Table 1; None where that environment took no part."""
    results = _lost_results(cells)
    return lost_in_conversation(results) if results else None


def _reliabilities(result: SettingResults) -> dict[str, Reliability]:
    return {name: found for name, found in result.settings.items() if isinstance(found, Reliability)}


def _lost_results(cells: Sequence[Cell]) -> list[SettingResults]:
    settings: dict[tuple[str, str], dict[str, Reliability]] = {}
    for cell in cells:
        runs: dict[str, list[float]] = {}
        for (task, _), score in task_scores(cell).items():
            if score is not None:
                runs.setdefault(task, []).append(score)
        if cell.domain == LOST and runs:
            simulation = str(cell.options.get("simulation", "sharded")).upper()
            settings.setdefault((cell.policy, str(cell.options.get("task", "math"))), {})[simulation] = reliability(runs)
    order = ("FULL", "CONCAT")  # what the others are measured by comes first
    return [
        SettingResults(policy, task, dict(sorted(found.items(), key=lambda item: item[0] not in order)))
        for (policy, task), found in settings.items()
    ]


def evolving_table(cells: Sequence[Cell]) -> Table | None:
    """Return the table of Evolving Intent; None unless an environment of it is there given at once and evolving.

    An environment is the arm that it is named after (`collab.environments.evolving_intent.arms.ARMS`: Single, Evolve, Repeat...).
    """
    results = []
    for policy in _policies(cells):
        arms = {
            arm: {key: value for key, value in successes(cell).items() if value is not None}
            for cell in cells
            if cell.policy == policy and cell.domain.startswith(EVOLVING) and (arm := _arm(cell))
        }
        if arms.get(SINGLE) and arms.get(EVOLVE) and arms[SINGLE].keys() & arms[EVOLVE].keys():
            results.append(evolving_result(policy, arms))
    return evolving_intent(results) if results else None


def _arm(cell: Cell) -> str | None:
    name = cell.environment.replace("_", " ").replace("-", " ").lower()
    return next((arm for arm in ARMS if arm.lower() in (name, name.removeprefix("evolving "))), None)


def transfer_table(cells: Sequence[Cell]) -> Table | None:
    """Return how the policies of one environment do with users they were and were not trained against; None for one user."""
    users = list(dict.fromkeys(cell.user for cell in cells))
    if len(users) < 2:
        return None
    scores: dict[str, dict[str, Value]] = {}
    for cell in cells:
        scores.setdefault(cell.policy, {})[cell.user] = cell.mean(lambda each: each.reward)
    trained_with = {cell.policy: cell.trained_with for cell in cells}
    return simulator_transfer(scores, f"R* in {cells[0].environment}", trained_with=trained_with)


def seeds_table(cells: Sequence[Cell]) -> Table | None:
    """Return R* by seed, and how far the seeds' means lie apart; None for one seed."""
    seeds = list(dict.fromkeys(each.seed for cell in cells for each in cell.conversations))
    if len(seeds) < 2:
        return None
    rows = []
    for cell in cells:
        means = []
        for seed in seeds:
            found = [each for each in cell.scored if each.seed == seed]
            means.append(
                mean_and_error([each.reward or 0.0 for each in found], [each.task_id for each in found]) if found else None
            )
        spread = mean_and_error([each.mean for each in means if each is not None]) if any(means) else None
        deviation = spread.std_error * spread.count**0.5 if spread and spread.std_error is not None else None
        label = f"{cell.environment}{_with_user(cell)}"
        rows.append(Row((label, cell.policy, *means, PlusMinus(spread.mean, deviation) if spread else None)))
    columns = (
        Column("environment"),
        Column("policy"),
        *(Column(f"seed {seed}", 3, group="R*") for seed in seeds),
        Column("over seeds", 3),
    )
    note = "R* ± standard error, tasks as clusters; over seeds: mean ± standard deviation of the seeds' means."
    return Table("R* by seed", columns, tuple(rows), note)


def first_difference(cells: Sequence[Cell]) -> tuple[str, int] | None:
    """Return the (task, run) in which R* of the first and the last policy lie furthest apart; None where nothing is paired."""
    before, after = rewards(cells[0]), rewards(cells[-1])
    gaps = {
        key: abs(other - value)
        for key, value in before.items()
        if value is not None and (other := after.get(key)) is not None
    }  # fmt: skip
    return max(sorted(gaps), key=lambda key: gaps[key]) if gaps else None


def groups(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Return the cells by environment and user, policies side by side, all in their order."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.environment, cell.user), []).append(cell)
    return list(found.values())


def _with_own_table(cells: Sequence[Cell]) -> set[str]:
    """Return the environments that another paper's table shows."""
    lost = {cell.environment for cell in cells if cell.domain == LOST}
    arms = {cell.environment: arm for cell in cells if cell.domain.startswith(EVOLVING) and (arm := _arm(cell))}
    return lost | (set(arms) if {SINGLE, EVOLVE} <= set(arms.values()) else set())


def _policies(cells: Iterable[Cell]) -> list[str]:
    return list(dict.fromkeys(cell.policy for cell in cells))


def _with_user(cell: Cell) -> str:
    return f", {cell.user} user" if cell.user else ""
