"""Results of an evolving-intent evaluation: the row of the paper's table, every arm against Single, and per-turn tracking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from collab.environments.evolving_intent.arms import EVOLVE, SINGLE
from collab.environments.evolving_intent.conversations import targets_from_record
from collab.environments.evolving_intent.tracking import ReplyVerifier, TrackingFigures, Verdict, track, tracking_figures
from collab.evaluation.comparison import Cell, compare, successes
from collab.evaluation.paper_tables import EvolvingResult
from collab.evaluation.statistics import Interval, bootstrap_interval, compare_by_task, mcnemar
from collab.evaluation.tables import Column, Row, Table, Value, scaled
from collab.tasks.task import Task
from simulators.conversation import ConversationTree

Scores = Mapping[tuple[str, int], float]


def evolving_result(method: str, arms: Mapping[str, Scores]) -> EvolvingResult:
    """Return the table row of one method from its scores by arm; Single and Evolve must be among them.

    The difference is paired by task; in McNemar's test a task is solved where most of its runs are, as in `comparison.compare`.

    Raises:
        ValueError: when an arm is missing or two arms share no task.
    """
    if missing := [name for name in (SINGLE, EVOLVE) if not arms.get(name)]:
        raise ValueError(f"the evaluation of {method} has no scores for {missing[0]}")
    values = {
        name: bootstrap_interval(list(scores.values()), [task for task, _ in scores]) for name, scores in arms.items() if scores
    }
    single, evolve = arms[SINGLE], arms[EVOLVE]
    paired = compare_by_task(single, evolve)
    runs: dict[str, list[tuple[str, int]]] = {}
    for key in sorted(single.keys() & evolve.keys()):
        runs.setdefault(key[0], []).append(key)
    test = mcnemar(*([_mostly_solved(scores, keys) for keys in runs.values()] for scores in (single, evolve)))
    controls = {name: value for name, value in values.items() if name not in (SINGLE, EVOLVE)}
    return EvolvingResult(method, values[SINGLE], values[EVOLVE], controls, paired, test, len(runs))


def _mostly_solved(scores: Scores, runs: Sequence[tuple[str, int]]) -> bool:
    return sum(scores[key] for key in runs) > len(runs) / 2


def solved(cell: Cell) -> Interval | None:
    """Return the share of tasks solved, with its bootstrap interval over tasks; None where nothing could be scored."""
    scores = {key: value for key, value in successes(cell).items() if value is not None}
    return bootstrap_interval(list(scores.values()), [task for task, _ in scores]) if scores else None


def arms_table(cells: Sequence[Cell]) -> Table:
    """Return every arm of every policy against the policy's own Single, task by task; cells are named after their arms."""
    columns = (
        Column("Policy"),
        Column("Arm"),
        Column("solved", 1, "%", "higher"),
        Column("less Single", 1, group="paired by task"),
        Column("lost", 0, group="paired by task"),
        Column("gained", 0, group="paired by task"),
        Column("McNemar p", 4, group="paired by task"),
        Column("conversations", 0),
        Column("unscored", 0),
    )
    players = list(dict.fromkeys((cell.policy, cell.user) for cell in cells))
    single = {(cell.policy, cell.user): cell for cell in cells if cell.environment == SINGLE}
    rows = []
    for cell in sorted(cells, key=lambda cell: players.index((cell.policy, cell.user))):
        who = (cell.policy, cell.user)
        against: tuple[Value, ...] = (None, None, None, None)
        if cell.environment != SINGLE and who in single:
            found = compare(single[who], cell)
            difference = found.success.difference.scaled(100) if found.success else None
            test = (found.test.lost, found.test.gained, found.test.p_value) if found.test else (None, None, None)
            against = (difference, *test)
        share = scaled(solved(cell), 100)
        label = ", ".join(filter(None, who))
        rows.append(Row((label, cell.environment, share, *against, len(cell.conversations), cell.unscored)))
    note = (
        "Per cent of tasks solved on the last turn, with 95% bootstrap intervals over tasks. Lost: solved in Single, not in the "
        "arm; gained: the reverse; a task counts as solved where most of its runs are."
    )
    return Table("Every arm on the same tasks (Evolving Intent)", columns, tuple(rows), note)


async def tracked(trees: Iterable[ConversationTree], verifier: ReplyVerifier) -> TrackingFigures:
    """Return the tracking figures of all conversations in an evaluation's trees.

    Raises:
        ScoringError: as the verifier does.
    """
    found: list[tuple[Sequence[str], Sequence[Verdict]]] = []
    for tree in trees:
        record = tree.metadata["task"]["evolving"]
        task = Task(tree.task_id, tree.metadata["goal"], tree.metadata["reference"], metadata=tree.metadata["task"])
        targets = targets_from_record(record)
        for entry in tree.metadata["conversations"]:
            verdicts = await track(tree.conversation(entry["leaf"]), targets, verifier, task)
            found.append((record["kinds"], verdicts))
    return tracking_figures(found)


def tracking_table(figures: Mapping[str, TrackingFigures]) -> Table:
    """Return the table of per-turn tracking: one row a method and kind of turn."""
    columns = (
        Column("Method"),
        Column("Turn"),
        Column("current", 1, "%", "higher"),
        Column("stale value", 1, "%", "lower"),
        Column("stale question", 1, "%", "lower"),
        Column("premature", 1, "%", "lower"),
        Column("replies", 0),
    )
    rows = [
        Row(
            (
                method,
                kind,
                *(scaled(found.rate(kind, verdict), 100) for verdict in _SHOWN),
                sum(found.counts[kind].values()),
            )
        )
        for method, found in figures.items()
        for kind in found.counts
    ]
    note = (
        "Current and stale: of the turns whose target is known. Premature: an answer although something it rests on was not "
        "told, of those turns."
    )
    return Table("Which intent do the replies answer? (per-turn tracking)", columns, tuple(rows), note)


_SHOWN = (Verdict.CURRENT, Verdict.STALE_VALUE, Verdict.STALE_FUNCTION, Verdict.PREMATURE)
