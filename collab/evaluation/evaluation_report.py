"""The report of an evaluation: tables that say what it came to, plots that show it, and conversations to judge it by."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from collab.evaluation import plots
from collab.evaluation.comparison import Cell, all_tokens, rewards
from collab.evaluation.evaluation_tables import (
    clarification_table,
    collabllm_table,
    comparison_table,
    evolving_table,
    figures_table,
    first_difference,
    groups,
    lost_settings,
    lost_table,
    seeds_table,
    transfer_table,
)
from collab.evaluation.report import Report
from collab.evaluation.run import EvaluatedConversation
from collab.evaluation.statistics import Interval, MeanEstimate, bootstrap_interval, mean_and_error
from collab.evaluation.tables import Table, Value
from simulators.conversation import Conversation

Transcript = Callable[[Cell, EvaluatedConversation], Conversation]
"""Finds the messages of a conversation."""


def add_evaluation(report: Report, cells: Sequence[Cell], transcript: Transcript) -> None:
    """Add everything about an evaluation to a report."""
    report.add_facts(_facts(cells))
    for line in warnings(cells):
        report.add_text(f"**Note:** {line}")
    report.add_heading("Results")
    _add_tables(report, cells, collabllm_table)
    panels = {_label(group): {cell.policy: _reward(cell) for cell in group} for group in groups(cells)}
    report.add_figure(plots.window_ablation(panels), "r-star", "R* by environment, with its 95% bootstrap interval over tasks")
    _add_paper_sections(report, cells)
    _add_transfer(report, cells)
    if (table := seeds_table(cells)) is not None:
        report.add_heading("Seeds")
        report.add_table(table)
    report.add_heading("Every figure, with its cost and time")
    for group in groups(cells):
        report.add_heading(_label(group), level=3)
        report.add_table(figures_table(group))
        if (table := comparison_table(group)) is not None:
            report.add_table(table)
    _add_distributions(report, cells)
    _add_conversations(report, cells, transcript)


def warnings(cells: Sequence[Cell]) -> list[str]:
    """Return a sentence for everything that a reader must know before the figures."""
    lines = []
    for cell in cells:
        if cell.unscored:
            outcomes = [each.outcome.value for each in cell.conversations if each.reward is None]
            causes = ", ".join(f"{outcomes.count(name)} {name}" for name in sorted(set(outcomes)))
            where = f"{len(cell.conversations)} conversations of {cell.policy} in {_label([cell])}"
            lines.append(f"{cell.unscored} of {where} have no score and are in no mean ({causes}).")
    return lines


def _facts(cells: Sequence[Cell]) -> dict[str, Value]:
    conversations = [(cell, each) for cell in cells for each in cell.conversations]
    tokens = [all_tokens(each) for _, each in conversations]
    costs = [cost for cell, each in conversations if (cost := cell.cost(each)) is not None]
    facts: dict[str, Value] = {
        "policies": len({cell.policy for cell in cells}),
        "environments": len({cell.environment for cell in cells}),
        "conversations": len(conversations),
        "without a score": sum(cell.unscored for cell in cells),
        "tokens of all models": None if None in tokens else int(sum(each or 0 for each in tokens)),
    }
    return facts | ({"cost": math.fsum(costs)} if costs else {})


def _add_tables(report: Report, cells: Sequence[Cell], make: Callable[[Sequence[Cell]], Table | None]) -> None:
    """Add one table for each user."""
    users = list(dict.fromkeys(cell.user for cell in cells))
    for user in users:
        if (table := make([cell for cell in cells if cell.user == user])) is not None:
            if len(users) > 1:
                table = Table(f"{table.caption}, {user} user", table.columns, table.rows, table.note)
            report.add_table(table)


def _add_paper_sections(report: Report, cells: Sequence[Cell]) -> None:
    users = {cell.user for cell in cells}
    if clarification_table(cells) is not None:
        report.add_heading("Asking back when, and only when, a question is ambiguous")
        _add_tables(report, cells, clarification_table)
    if lost_table(cells) is not None:
        report.add_heading("Told at once, or bit by bit")
        _add_tables(report, cells, lost_table)
        for user in sorted(users):
            found = lost_settings([cell for cell in cells if cell.user == user])
            if found:
                caption = "Aptitude and unreliability by setting"
                name = "reliability" if len(users) == 1 else f"reliability-{_file_name(user)}"
                report.add_figure(plots.reliability_boxes(found), name, caption if len(users) == 1 else f"{caption}, {user} user")
    if evolving_table(cells) is not None:
        report.add_heading("An intent that evolves")
        _add_tables(report, cells, evolving_table)


def _add_transfer(report: Report, cells: Sequence[Cell]) -> None:
    environments = dict.fromkeys(cell.environment for cell in cells)
    tables = [transfer_table([cell for cell in cells if cell.environment == name]) for name in environments]
    if any(tables):
        report.add_heading("Simulator transfer")
        report.add_text(
            "Gains against one simulated user may not carry over to another, and then hardly to people: every policy is played "
            "with every user."
        )
    for table in tables:
        if table is not None:
            report.add_table(table)


def _add_distributions(report: Report, cells: Sequence[Cell]) -> None:
    by_turn = {_label(group): series for group in groups(cells) if (series := _by_turn(group))}
    spread = {_label(group): {cell.policy: _rewards(cell) for cell in group} for group in groups(cells)}
    if not by_turn and not any(any(map(len, values.values())) for values in spread.values()):
        return
    report.add_heading("Distributions")
    if by_turn:
        caption = "Task score after each turn; a conversation that has ended keeps its score (band: standard error)"
        report.add_figure(plots.scores_by_turn(by_turn, "task score"), "score-by-turn", caption)
    if any(any(map(len, values.values())) for values in spread.values()):
        report.add_figure(plots.reward_distributions(spread), "r-star-distributions", "R* of the conversations (dashed: mean)")


def _rewards(cell: Cell) -> list[float]:
    return [value for value in rewards(cell).values() if value is not None]


def _by_turn(cells: Sequence[Cell]) -> dict[str, list[MeanEstimate | None]]:
    """Return the mean task score after every turn, by policy; {} where it was not measured, or nothing has two turns."""
    series: dict[str, list[MeanEstimate | None]] = {}
    longest = max((len(each.by_turn) for cell in cells for each in cell.scored), default=0)
    for cell in cells:
        kept = [(each.task_id, _carried_on(each.by_turn, longest)) for each in cell.scored if each.by_turn]
        series[cell.policy] = []
        for turn in range(longest):
            found = [(task, score) for task, scores in kept if (score := scores[turn]) is not None]
            series[cell.policy].append(_mean(found))
    return series if longest > 1 else {}


def _mean(found: Sequence[tuple[str, float]]) -> MeanEstimate | None:
    return mean_and_error([value for _, value in found], [task for task, _ in found]) if found else None


def _carried_on(scores: Sequence[float | None], length: int) -> list[float | None]:
    return [*scores, *[scores[-1]] * (length - len(scores))]


def _add_conversations(report: Report, cells: Sequence[Cell], transcript: Transcript) -> None:
    report.add_heading("Conversations")
    report.add_text("For each environment the conversation in which R* of the first and the last policy lie furthest apart.")
    for group in groups(cells):
        shown = [group[0], group[-1]] if len(group) > 1 else group
        where = first_difference(group)
        if where is None:
            continue
        report.add_heading(_label(group), level=3)
        for cell in shown:
            for each in cell.conversations:
                if (each.task_id, each.run) == where:
                    note = f"R* {each.reward:+.2f}, {each.outcome.value}" if each.reward is not None else each.outcome.value
                    report.add_transcript(transcript(cell, each), f"{cell.policy}: {each.task_id}, run {each.run}", note)


def _reward(cell: Cell) -> Interval | None:
    found = [(each.task_id, each.reward) for each in cell.scored if each.reward is not None]
    return bootstrap_interval([value for _, value in found], [task for task, _ in found]) if found else None


def _label(group: Sequence[Cell]) -> str:
    first = group[0]
    return f"{first.environment}, {first.user}" if first.user else first.environment


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-") or "user"
