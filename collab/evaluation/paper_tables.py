"""The tables of the three papers, from plain results.

CollabLLM Table 1 (`collabllm_results`), Table 2 (`clarification_actions`) and Table 5 (`dataset_statistics`); Lost in
Conversation Table 1 (`lost_in_conversation`); Evolving Intent, Single against Evolve (`evolving_intent`); and two of our own:
paired differences (`paired_differences`) and how gains against one simulator carry over to others (`simulator_transfer`).

Scores come in as fractions and token counts as tokens; the tables show per cent and thousands, as the papers do.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from collab.evaluation.statistics import Interval, McNemar, PairedDifference
from collab.evaluation.tables import Column, Direction, PlusMinus, Row, Table, Value, center, scaled


@dataclass(frozen=True, slots=True)
class DomainResult:
    """One method on one domain: task score in [0, 1], assistant tokens a conversation, interactivity (ITR) in [0, 1]."""

    task_score: Value
    tokens: Value
    interactivity: Value


@dataclass(frozen=True, slots=True)
class MethodResult:
    """One row of CollabLLM Table 1: a method on every domain, by the domain's name."""

    method: str
    domains: Mapping[str, DomainResult]
    baseline: bool = False


def collabllm_results(
    results: Sequence[MethodResult], score_names: Mapping[str, str] | None = None, improved: str | None = None
) -> Table:
    """Return CollabLLM Table 1, with the relative improvement of the method `improved` (by default the last) in its last row.

    The improvement is over the best baseline in each column, in per cent, positive where it is for the better. (The paper's own
    row takes Base for ITR on MATH-Chat, where Proactive Base is the better one.) `score_names` gives a domain's task score its
    name: {"math_chat": "ACC"}. Without a judge nobody has an interactivity: then the table goes without that column.

    Raises:
        ValueError: when there are no results, or no method has the name `improved`.
    """
    if not results:
        raise ValueError("no results to put into a table")
    ours = results[-1] if improved is None else next((result for result in results if result.method == improved), None)
    if ours is None:
        raise ValueError(f"no method is called {improved!r}; there are {', '.join(result.method for result in results)}")
    domains = list(dict.fromkeys(name for result in results for name in result.domains))
    judged = [name for name in domains if any(_interactivity(result, name) is not None for result in results)]
    columns = [Column("Method")]
    for domain in domains:
        columns += [
            Column((score_names or {}).get(domain, "score"), 1, better="higher", group=domain),
            Column("tokens (k)", 2, better="lower", group=domain),
        ]
        if domain in judged:
            columns.append(Column("ITR", 1, better="higher", group=domain))
    cells = {result.method: _domain_cells(result, domains, judged) for result in results}
    rows = [Row((result.method, *cells[result.method]), "baseline" if result.baseline else "ours") for result in results]
    baselines = [cells[result.method] for result in results if result.baseline]
    if baselines and not ours.baseline:
        gains = [
            _relative_improvement(cells[ours.method][place], [cell[place] for cell in baselines], columns[place + 1].better)
            for place in range(len(columns) - 1)
        ]
        rows.append(Row((f"Rel. improvement ({ours.method})", *gains), "summary", unit="%", decimals=1))
    return Table(
        "Task score, length and interactivity (CollabLLM Table 1)",
        tuple(columns),
        tuple(rows),
        "Score and ITR in per cent, thousands of assistant tokens a conversation. Relative improvement: over the best baseline.",
    )


def _interactivity(result: MethodResult, domain: str) -> Value:
    found = result.domains.get(domain)
    return found.interactivity if found else None


def _domain_cells(result: MethodResult, domains: Sequence[str], judged: Sequence[str]) -> list[Value]:
    cells: list[Value] = []
    for name in domains:
        found = result.domains.get(name)
        cells += [scaled(found.task_score, 100), scaled(found.tokens, 1e-3)] if found else [None, None]
        if name in judged:
            cells.append(scaled(_interactivity(result, name), 100))
    return cells


def _relative_improvement(ours: Value, baselines: Sequence[Value], better: Direction | None) -> float | None:
    value = center(ours)
    known = [number for cell in baselines if (number := center(cell)) is not None]
    if value is None or not known:
        return None
    best = min(known) if better == "lower" else max(known)
    if best == 0:
        return None  # no relative change over nothing
    change = (value - best) / abs(best) * 100
    return -change if better == "lower" else change


@dataclass(frozen=True, slots=True)
class ActionCounts:
    """What a method did with ambiguous and with clear questions: asked back (right for the former) or answered."""

    method: str
    ambiguous: int
    ambiguous_asked: int
    clear: int
    clear_answered: int
    baseline: bool = False

    @property
    def ambiguous_accuracy(self) -> float | None:
        return self.ambiguous_asked / self.ambiguous if self.ambiguous else None

    @property
    def clear_accuracy(self) -> float | None:
        return self.clear_answered / self.clear if self.clear else None

    @property
    def macro_accuracy(self) -> float | None:
        """The mean of the two accuracies."""
        if self.ambiguous_accuracy is None or self.clear_accuracy is None:
            return None
        return (self.ambiguous_accuracy + self.clear_accuracy) / 2

    @property
    def macro_f1(self) -> float | None:
        """The mean F1 of "asks" and "answers"; None where one kind of question is missing."""
        if not self.ambiguous or not self.clear:
            return None
        asks = _f1(self.ambiguous_asked, self.clear - self.clear_answered, self.ambiguous - self.ambiguous_asked)
        answers = _f1(self.clear_answered, self.ambiguous - self.ambiguous_asked, self.clear - self.clear_answered)
        return (asks + answers) / 2


def _f1(hits: int, false_alarms: int, misses: int) -> float:
    return 2 * hits / (2 * hits + false_alarms + misses) if hits else 0.0


def clarification_actions(results: Sequence[ActionCounts]) -> Table:
    """Return CollabLLM Table 2: whether a method asks back when, and only when, a question is ambiguous (Abg-CoQA)."""
    columns = (
        Column("Method"),
        Column("ambiguous", 2, "%", "higher", "action-level accuracy"),
        Column("not ambiguous", 2, "%", "higher", "action-level accuracy"),
        Column("accuracy", 2, "%", "higher", "macro"),
        Column("F1", 2, "%", "higher", "macro"),
        Column("questions", 0),
    )
    rows = [
        Row(
            (
                result.method,
                scaled(result.ambiguous_accuracy, 100),
                scaled(result.clear_accuracy, 100),
                scaled(result.macro_accuracy, 100),
                scaled(result.macro_f1, 100),
                result.ambiguous + result.clear,
            ),
            "baseline" if result.baseline else "ours",
        )
        for result in results
    ]
    note = "Right is to ask back when the question is ambiguous, and to answer when it is not."
    return Table("Clarifying questions (CollabLLM Table 2)", columns, tuple(rows), note)


@dataclass(frozen=True, slots=True)
class DatasetFigures:
    """One dataset: conversations, their turns, and the MR of chosen and of rejected replies as mean ± standard deviation."""

    name: str
    conversations: int
    turns: int
    chosen_mr: PlusMinus | None
    rejected_mr: PlusMinus | None


def dataset_statistics(datasets: Sequence[DatasetFigures]) -> Table:
    """Return CollabLLM Table 5."""
    columns = (
        Column("Dataset"),
        Column("# train", 0),
        Column("# turns", 0),
        Column("average # turns", 2),
        Column("chosen MR", 3),
        Column("rejected MR", 3),
    )
    rows = [
        Row(
            (
                data.name,
                data.conversations,
                data.turns,
                data.turns / data.conversations if data.conversations else None,
                data.chosen_mr,
                data.rejected_mr,
            )
        )
        for data in datasets
    ]
    note = "MR as mean ± standard deviation over replies."
    return Table("Conversational datasets made from MR (CollabLLM Table 5)", columns, tuple(rows), note)


class Metrics(Protocol):
    """P, A and U in points, as `statistics.Reliability` and the environment's own `LostMetrics` have them."""

    @property
    def performance(self) -> Interval: ...

    @property
    def aptitude(self) -> Interval: ...

    @property
    def unreliability(self) -> Interval: ...


@dataclass(frozen=True, slots=True)
class SettingResults:
    """A method on one task of Lost in Conversation: its metrics by setting ("FULL", "CONCAT", "SHARDED", ...)."""

    method: str
    task: str
    settings: Mapping[str, Metrics]


def lost_in_conversation(results: Sequence[SettingResults]) -> Table:
    """Return Lost in Conversation Table 1: P in every setting and relative to FULL, aptitude A and unreliability U."""
    settings = list(dict.fromkeys(name for result in results for name in result.settings))
    columns = [Column("Method"), Column("Task"), *(Column(name, 1, group="P") for name in settings)]
    others = [name for name in settings if name != "FULL"]
    columns += [Column(f"{name} / FULL", 1, "%") for name in others]
    columns += [Column(name, 1, group="A") for name in settings] + [Column(name, 1, group="U") for name in settings]
    rows = []
    for result in results:
        metrics = [result.settings.get(name) for name in settings]
        full = _performance(result, "FULL")
        cells: list[Value] = [result.method, result.task]
        cells += [metric.performance if metric else None for metric in metrics]
        for name in others:
            share = _performance(result, name)
            cells.append(share / full * 100 if share is not None and full else None)
        cells += [metric.aptitude if metric else None for metric in metrics]
        cells += [metric.unreliability if metric else None for metric in metrics]
        rows.append(Row(tuple(cells)))
    return Table(
        "Performance, aptitude and unreliability by setting (Lost in Conversation Table 1)",
        tuple(columns),
        tuple(rows),
        "Points of 0 to 100, averaged over instructions. P: mean over runs; A: 90th percentile; U: 90th - 10th percentile. With "
        "few runs of a binary score U is nearly a step function: mind the intervals.",
    )


def _performance(result: SettingResults, setting: str) -> float | None:
    metrics = result.settings.get(setting)
    return metrics.performance.estimate if metrics else None


@dataclass(frozen=True, slots=True)
class EvolvingResult:
    """A method with its intent given at once (`single`) and evolving (`evolve`), and under controls (`repeat`, recaps).

    `paired` is Evolve - Single on the same tasks, `test` McNemar's on these tasks, whose number is `tasks` (pairs are more where
    a task has several runs). All scores are fractions.
    """

    method: str
    single: Value
    evolve: Value
    controls: Mapping[str, Value] = field(default_factory=dict)
    paired: PairedDifference | None = None
    test: McNemar | None = None
    tasks: int | None = None


def evolving_intent(results: Sequence[EvolvingResult]) -> Table:
    """Return the main table of Evolving Intent: Single, Evolve, the controls, and the paired difference."""
    controls = list(dict.fromkeys(name for result in results for name in result.controls))
    columns = (
        Column("Method"),
        Column("Single", 1, better="higher"),
        Column("Evolve", 1, better="higher"),
        *(Column(name, 1, group="controls") for name in controls),
        Column("Evolve - Single", 1),
        Column("McNemar p", 4),
        Column("tasks", 0),
    )
    rows = []
    for result in results:
        cells: list[Value] = [result.method, scaled(result.single, 100), scaled(result.evolve, 100)]
        cells += [scaled(result.controls.get(name), 100) for name in controls]
        cells.append(result.paired.difference.scaled(100) if result.paired else None)
        cells.append(result.test.p_value if result.test else None)
        cells.append(result.tasks)
        rows.append(Row(tuple(cells)))
    note = (
        "Per cent of tasks solved on the last turn; the difference is paired by task. McNemar: a task counts as solved where "
        "most of its runs are. Controls repeat the request or recap it."
    )
    return Table("Intent given at once and evolving (Evolving Intent)", columns, tuple(rows), note)


def paired_differences(
    differences: Mapping[str, PairedDifference],
    caption: str,
    labels: tuple[str, str] = ("before", "after"),
    decimals: int = 2,
) -> Table:
    """Return one row a metric: its two means, and their difference with its interval."""
    columns = (
        Column("Metric"),
        Column(labels[0], decimals),
        Column(labels[1], decimals),
        Column("difference", decimals),
        Column("pairs", 0),
        Column("dropped", 0),
    )
    rows = [Row((name, d.before, d.after, d.difference, d.pairs, d.dropped)) for name, d in differences.items()]
    level = next(iter(differences.values())).difference.level if differences else 0.95
    note = f"{level:.0%} bootstrap interval of the paired difference, tasks resampled; dropped: conversations without a score."
    return Table(caption, columns, tuple(rows), note)


def simulator_transfer(
    scores: Mapping[str, Mapping[str, Value]],
    metric: str,
    better: Direction = "higher",
    trained_with: Mapping[str, str | None] | None = None,
) -> Table:
    """Return the matrix of training simulator (rows) x evaluation simulator (columns): {trained: {evaluated: score}}.

    The last column is the mean over the *other* simulators minus the score with the one trained against: far below 0 (where
    higher is better), gains are fitted to that simulator and may not carry over to people. Where the rows are policies,
    `trained_with` names the simulator of each (None: it was not trained).
    """
    own = {row: row for row in scores} if trained_with is None else trained_with
    names = list(dict.fromkeys(name for row in scores.values() for name in row))
    first = (Column("trained against"),) if trained_with is None else (Column("policy"), Column("trained against"))
    columns = (
        *first,
        *(Column(name, 2, better=better, group=f"{metric}, evaluated against") for name in names),
        Column("others - own", 2),
    )
    rows = []
    for label, row in scores.items():
        head = (label,) if trained_with is None else (label, own.get(label) or "not trained")
        rows.append(Row((*head, *(row.get(name) for name in names), _carried_over(own.get(label), row))))
    note = "Best value of each column in bold. Others - own: mean with the other simulators, minus that with the one trained on."
    return Table(f"Simulator transfer: {metric}", columns, tuple(rows), note)


def _carried_over(trained: str | None, row: Mapping[str, Value]) -> float | None:
    own = None if trained is None else center(row.get(trained))
    others = [number for name, value in row.items() if name != trained and (number := center(value)) is not None]
    return statistics.fmean(others) - own if own is not None and others else None
