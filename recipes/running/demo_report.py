"""What the demo shows a person: the replies it compares, its tables, and the report that it writes at the end."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from collab.data.export import DatasetStatistics
from collab.data.views import dpo_rows
from collab.evaluation.paper_tables import DatasetFigures, dataset_statistics
from collab.evaluation.plots import before_after, mr_distributions, rewards_by_window
from collab.evaluation.report import Report
from collab.evaluation.reward_windows import ReplyUnderWindows, mean_by_window
from collab.evaluation.run import EvaluatedConversation
from collab.evaluation.statistics import PairedDifference, mean_and_error
from collab.evaluation.tables import Column, PlusMinus, Row, Table
from recipes.configuration.schema import Demo
from simulators.conversation import ConversationTree
from simulators.tree_file import read_trees

REPLIES = {
    "reminder": ("When is your appointment?", "Friday at 3 pm."),
    "invitation": ("When is it?", "Come on Friday!"),
    "label": ("What is the address?", "12 Main Street"),
    "price tag": ("What does it cost?", "50 dollars"),
    "name tag": ("What is the name?", "I am Alex."),
    "booking": ("For how many people?", "A table for 4."),
}
"""For each kind of errand a reply that asks for the missing fact, and one no longer that makes it up."""


def print_statistics(figures: DatasetStatistics) -> None:
    """Print the dataset's figures in the columns of CollabLLM's Table 5."""
    from rich.console import Console
    from rich.table import Table as Printed

    printed = Printed("conversations", "turns", "average turns", "pairs", "chosen MR", "rejected MR")
    printed.add_row(
        str(figures.conversations),
        str(figures.turns),
        f"{figures.turns_per_conversation:.2f}",
        str(figures.pairs),
        _spread(figures.chosen_mr),
        _spread(figures.rejected_mr),
    )
    Console().print(printed)


def write(
    folder: Path,
    config: Demo,
    windows: list[ReplyUnderWindows],
    figures: DatasetStatistics,
    results: dict[str, list[EvaluatedConversation]],
    paired: PairedDifference,
    summary: dict[str, Any],
) -> Path:
    """Write report.md and report.html into the demo's folder; return the page."""
    report = Report("The demo: learning to ask first", "A 135M model learns from simulated futures when to ask and when not to.")
    report.add_facts({
        "R* before": paired.before,
        "R* after": paired.after,
        "difference": paired.difference,
        "minutes": summary["seconds"] / 60,
    })  # fmt: skip
    report.add_heading("What a reply is worth")
    report.add_text(
        "Two replies to openings that lack a fact, one asking for it and one making it up. The immediate reward (window 0) sees "
        "no difference worth having; MR looks at what follows and prefers asking (CollabLLM Figure 6)."
    )
    rewards = {kind: {f"window {window}": value for window, value in by.items()} for kind, by in mean_by_window(windows).items()}
    report.add_figure(rewards_by_window(rewards), "rewards_by_window", "R* of an asking and a guessing reply by window")
    report.add_heading("The dataset")
    trees = list(read_trees(folder / "build"))
    pairs = list(dpo_rows(trees))
    report.add_table(statistics_table(figures))
    if pairs:
        chosen, rejected = [pair["mr_chosen"] for pair in pairs], [pair["mr_rejected"] for pair in pairs]
        report.add_figure(mr_distributions(chosen, rejected), "mr_distributions", "MR of chosen and rejected replies")
    report.add_heading("Before and after, on held-out tasks")
    report.add_table(before_after_table(results))
    report.add_figure(before_after(_metrics(results)), "before_after", "Held-out tasks before and after training")
    for when in ("before", "after"):
        report.add_heading(f"Conversations {when}", level=3)
        for tree in examples(folder / "evaluate" / when):
            entry = tree.metadata["conversations"][0]
            note = f"R* {entry['total']:+.2f}" if entry["total"] is not None else f"not scored ({entry['outcome']})"
            report.add_transcript(tree.conversation(entry["leaf"]), tree.task_id, note)
    report.set_provenance(asdict(config), {"run": config.seed}, seconds=summary["seconds"])
    return report.write(folder)


def examples(folder: Path) -> list[ConversationTree]:
    """Return the first two tasks that lack a fact and the first two that do not, in the order of the tasks."""
    trees = sorted(read_trees(folder), key=lambda tree: tree.task_id)
    lacking = [tree for tree in trees if tree.metadata["task"]["lacking"]]
    complete = [tree for tree in trees if not tree.metadata["task"]["lacking"]]
    return [*lacking[:2], *complete[:2]]


def statistics_table(figures: DatasetStatistics) -> Table:
    """Return the dataset's figures in the columns of CollabLLM's Table 5."""
    spreads = [PlusMinus(*pair) if pair else None for pair in (figures.chosen_mr, figures.rejected_mr)]
    return dataset_statistics([DatasetFigures("errands", figures.conversations, figures.turns, *spreads)])


def before_after_table(results: dict[str, list[EvaluatedConversation]]) -> Table:
    """Return R*, accuracy, asking and tokens, for tasks that need a question and tasks that do not."""
    rows = []
    for when, conversations in results.items():
        for name, lacking in (("question needed", True), ("no question needed", False)):
            group = [each for each in conversations if each.task["lacking"] == lacking and each.reward is not None]
            if group:
                tasks = [each.task_id for each in group]
                columns = (
                    [each.reward or 0.0 for each in group],
                    [each.components["accuracy"] for each in group],
                    [float(bool(each.asked and each.asked[0])) for each in group],
                    [float(each.policy_tokens) for each in group],
                )
                rows.append(Row((f"{when}, {name}", *(mean_and_error(values, tasks) for values in columns))))
    titles = ("policy and tasks", "R*", "accuracy", "first reply asks", "tokens")
    return Table("Held-out conversations", tuple(Column(title) for title in titles), tuple(rows), "Mean and standard error.")


def _metrics(results: dict[str, list[EvaluatedConversation]]) -> dict[str, Any]:
    def estimates(lacking: bool) -> Any:
        sides = []
        for when in ("before", "after"):
            group = [each for each in results[when] if each.task["lacking"] == lacking and each.reward is not None]
            sides.append(mean_and_error([each.reward or 0.0 for each in group], [each.task_id for each in group]))
        return tuple(sides)

    return {"R*, question needed": estimates(True), "R*, none needed": estimates(False)}


def _spread(pair: tuple[float, float] | None) -> str:
    return "-" if pair is None else f"{pair[0]:.3f} ± {pair[1]:.3f}"
