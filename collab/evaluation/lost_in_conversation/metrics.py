"""Aptitude and unreliability (section 5), and what happens turn by turn.

Per instruction over its N runs: P mean, A90 = 90th percentile, U = p90 - p10, R = 100 - U, in points of 0 to 100; then averaged
over instructions. The percentiles are interpolated linearly. On binary scores at N = 10 that makes U nearly a step function of
the k runs that are right: 0 for k = 0 and 10, 10 for k = 1 and 9, 100 in between; hence the intervals (instructions are
resampled), and the advice to run more than 10.

A conversation that the policy did not bring to an end has no score. It is left out and counted, never taken for 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collab.environments.lost_in_conversation.assessment import AssessedReply, ScoreMode, conversation_score
from collab.environments.lost_in_conversation.schema import TaskKind
from collab.environments.lost_in_conversation.simulations import Simulation
from collab.environments.lost_in_conversation.strategy import Strategy
from collab.evaluation.statistics import Interval, reliability
from simulators.conversation import Outcome


@dataclass(frozen=True, slots=True)
class ConversationRow:
    """One simulated conversation as a row of results.

    `failure` says why there is no score, and whose doing that was (None: there is one). `simulator_flags` count what the user
    simulator did wrong in a conversation that still stands; `sufficient_turn` is the turn at which all shards were told.
    """

    instruction: str
    kind: TaskKind
    simulation: Simulation
    run: int
    outcome: Outcome
    replies: tuple[AssessedReply, ...] = ()
    shards: int = 0
    sufficient_turn: int | None = None
    failure: str | None = None
    simulator_flags: Mapping[str, int] | None = None
    error: str | None = None

    def score(self, mode: ScoreMode) -> float | None:
        """Return the score in 0..1, None where the conversation has none."""
        return None if self.failure else conversation_score(self.replies, mode)

    @property
    def first_attempt_turn(self) -> int | None:
        """The turn of the first answer attempt."""
        return next((reply.turn for reply in self.replies if reply.is_attempt), None)

    @property
    def premature_attempts(self) -> int:
        """Attempts before all shards were told that were not fully right."""
        return sum(
            reply.is_attempt
            and (self.sufficient_turn is None or reply.turn < self.sufficient_turn)
            and (reply.score or 0.0) < 1.0
            for reply in self.replies
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the row as plain data, with the score under every mode."""
        return {
            "instruction": self.instruction,
            "task": str(self.kind),
            "simulation": str(self.simulation),
            "run": self.run,
            "outcome": str(self.outcome),
            "failure": self.failure,
            "error": self.error,
            "turns": len(self.replies),
            "shards": self.shards,
            "sufficient_turn": self.sufficient_turn,
            "first_attempt_turn": self.first_attempt_turn,
            "premature_attempts": self.premature_attempts,
            "scores": {str(mode): self.score(mode) for mode in ScoreMode},
            "strategies": [str(reply.strategy) if reply.strategy else None for reply in self.replies],
            "attempt_scores": [reply.score for reply in self.replies],
            "words": [reply.words for reply in self.replies],
            "simulator_flags": dict(self.simulator_flags or {}),
        }


@dataclass(frozen=True, slots=True)
class LostMetrics:
    """P, A90, U and R with intervals, over `instructions` with `runs` scored conversations; `unscored` conversations had none."""

    performance: Interval
    aptitude: Interval
    unreliability: Interval
    reliability: Interval
    instructions: int
    runs: int
    unscored: int

    def as_dict(self) -> dict[str, Any]:
        """Return plain data: each metric as [estimate, low, high]."""
        named = {"P": self.performance, "A90": self.aptitude, "U": self.unreliability, "R": self.reliability}
        figures: dict[str, Any] = {name: [each.estimate, each.low, each.high] for name, each in named.items()}
        return figures | {"instructions": self.instructions, "runs": self.runs, "unscored": self.unscored}


def lost_metrics(scores: Mapping[str, Sequence[float]], unscored: int = 0, *, level: float = 0.95, seed: int = 0) -> LostMetrics:
    """Return the metrics of scores in 0..1, one sequence an instruction.

    Raises:
        ValueError: for no instructions, or one without a finite score.
    """
    found = reliability(scores, level=level, seed=seed)
    kept = found.unreliability
    reversed_ends = (None if kept.high is None else 100 - kept.high, None if kept.low is None else 100 - kept.low)
    return LostMetrics(
        performance=found.performance,
        aptitude=found.aptitude,
        unreliability=kept,
        reliability=Interval(100 - kept.estimate, *reversed_ends, kept.level),
        instructions=len(scores),
        runs=sum(len(values) for values in scores.values()),
        unscored=unscored,
    )


def metrics_by_simulation(
    rows: Iterable[ConversationRow], mode: ScoreMode = ScoreMode.MAX, *, level: float = 0.95, seed: int = 0
) -> dict[str, dict[Simulation, LostMetrics]]:
    """Return the metrics per task and simulation, and under the task "all" over all instructions.

    A cell without a single scored conversation is absent.
    """
    scores: dict[tuple[str, Simulation], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    unscored: dict[tuple[str, Simulation], int] = defaultdict(int)
    for row in rows:
        score = row.score(mode)
        for task in (str(row.kind), "all"):
            if score is None:
                unscored[task, row.simulation] += 1
            else:
                scores[task, row.simulation][row.instruction].append(score)
    result: dict[str, dict[Simulation, LostMetrics]] = defaultdict(dict)
    for (task, simulation), by_instruction in sorted(scores.items(), key=lambda item: item[0][0] == "all"):  # last of all
        missing = unscored[task, simulation]
        result[task][simulation] = lost_metrics(by_instruction, missing, level=level, seed=seed)
    return dict(result)


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """What the replies of one turn number are like.

    `attempt_share` is the share of answer attempts, `attempt_score` their mean score (0..1) and `answer_characters` the mean
    length of the answers in them (the paper's answer bloat), both None without any. `words` is the mean length of all replies.
    """

    turn: int
    replies: int
    attempt_share: float
    attempt_score: float | None
    answer_characters: float | None
    words: float
    strategies: Mapping[Strategy, float]


def figures_by_turn(rows: Iterable[ConversationRow]) -> list[TurnFigures]:
    """Return attempts, lengths and strategies turn by turn, over multi-turn conversations that have a score."""
    by_turn: dict[int, list[AssessedReply]] = defaultdict(list)
    for row in rows:
        if not row.simulation.single_turn and row.failure is None:
            for reply in row.replies:
                by_turn[reply.turn].append(reply)
    figures = []
    for turn, replies in sorted(by_turn.items()):
        scores = [reply.score for reply in replies if reply.score is not None]
        lengths = [len(reply.answer) for reply in replies if reply.answer is not None]
        count = len(replies)
        named = [reply.strategy for reply in replies]
        figures.append(
            TurnFigures(
                turn,
                count,
                len(scores) / count,
                sum(scores) / len(scores) if scores else None,
                sum(lengths) / len(lengths) if lengths else None,
                sum(reply.words for reply in replies) / count,
                {strategy: named.count(strategy) / count for strategy in Strategy},
            )
        )
    return figures


def score_by_first_attempt(
    rows: Iterable[ConversationRow], mode: ScoreMode = ScoreMode.MAX, bins: int = 5
) -> list[tuple[float, int, float | None]]:
    """Return (upper end of the bin, conversations, mean score 0..100) by how early the first attempt came.

    The position of an attempt is its turn over the number of shards, in (0, 1]; later ones fall into the last bin. The paper
    finds 30.9 in the first fifth and 64.4 in the last (appendix).
    """
    found: list[list[float]] = [[] for _ in range(bins)]
    for row in rows:
        score, turn = row.score(mode), row.first_attempt_turn
        if row.simulation.single_turn or score is None or turn is None or not row.shards:
            continue
        found[min(bins - 1, (turn * bins - 1) // row.shards)].append(score * 100)
    return [((index + 1) / bins, len(each), sum(each) / len(each) if each else None) for index, each in enumerate(found)]
