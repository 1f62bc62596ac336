"""The results of simulations: rows, metrics, a table, and files for whoever reads them next."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from collab.environments.lost_in_conversation.assessment import ScoreMode
from collab.environments.lost_in_conversation.simulations import Simulation
from collab.evaluation.lost_in_conversation.metrics import (
    ConversationRow,
    LostMetrics,
    figures_by_turn,
    metrics_by_simulation,
    score_by_first_attempt,
)
from collab.evaluation.tables import Column, Row, Table
from simulators.users.sharded import FELL_BACK
from simulators.whole_file import write_whole

WARN_AT = 0.05
"""A user simulator that misbehaved in a larger share of conversations is named in the first lines of a report."""


@dataclass(frozen=True, slots=True)
class SimulationResults:
    """The rows of a run, with the settings that made them and the model calls they took (per role)."""

    rows: tuple[ConversationRow, ...]
    score_mode: ScoreMode = ScoreMode.MAX
    settings: Mapping[str, Any] = field(default_factory=dict)
    calls: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def metrics(self, mode: ScoreMode | None = None) -> dict[str, dict[Simulation, LostMetrics]]:
        """Return P, A90, U and R per task ("all": every instruction) and simulation."""
        return metrics_by_simulation(self.rows, mode or self.score_mode)

    def failures(self) -> dict[str, int]:
        """Return how many conversations have no score, by cause."""
        return dict(Counter(row.failure for row in self.rows if row.failure))

    def unflagged(self) -> SimulationResults:
        """Return the results without conversations in which the user simulator did something wrong: do the figures change?"""
        return replace(self, rows=tuple(row for row in self.rows if not row.simulator_flags))

    def warnings(self) -> list[str]:
        """Return a sentence for everything that a reader must know before the figures."""
        total = len(self.rows) or 1
        found = []
        for cause, count in sorted(self.failures().items()):
            found.append(f"{count} of {total} conversations have no score: {cause}.")
        faulty = sum(bool((row.simulator_flags or {}).get(FELL_BACK)) for row in self.rows)
        if faulty > WARN_AT * total:
            found.append(f"In {faulty} of {total} conversations the user simulator's model failed and a shard was told verbatim.")
        return found

    def table(self, mode: ScoreMode | None = None) -> Table:
        """Return P, A90, U and R of every task and simulation as a table; "all" only where there are several tasks."""
        mode = mode or self.score_mode
        order = list(Simulation)
        by_task = self.metrics(mode)
        if len(by_task) == 2:
            del by_task["all"]
        rows = []
        for task, by_simulation in by_task.items():
            for simulation in sorted(by_simulation, key=order.index):
                found = by_simulation[simulation]
                cells = (found.performance, found.aptitude, found.unreliability, found.reliability)
                rows.append(Row((task, str(simulation), *cells, found.runs, found.unscored)))
        columns = (
            Column("Task"),
            Column("Simulation"),
            Column("P", 1, better="higher"),
            Column("A90", 1, better="higher"),
            Column("U", 1, better="lower"),
            Column("R", 1, better="higher"),
            Column("Runs", 0),
            Column("Unscored", 0),
        )
        note = f"Points of 0 to 100, score mode {mode}; 95% bootstrap intervals over instructions."
        return Table("Lost in conversation", columns, tuple(rows), note)

    def summary(self) -> dict[str, Any]:
        """Return everything a report needs as plain data."""
        by_task = self.metrics()
        return {
            "warnings": self.warnings(),
            "settings": dict(self.settings),
            "score_mode": str(self.score_mode),
            "metrics": {
                task: {str(simulation): found.as_dict() for simulation, found in each.items()} for task, each in by_task.items()
            },
            "failures": self.failures(),
            "by_turn": [
                {
                    "turn": each.turn,
                    "replies": each.replies,
                    "attempt_share": each.attempt_share,
                    "attempt_score": each.attempt_score,
                    "answer_characters": each.answer_characters,
                    "words": each.words,
                    "strategies": {str(strategy): share for strategy, share in each.strategies.items()},
                }
                for each in figures_by_turn(self.rows)
            ],
            "score_by_first_attempt": [
                {"until": until, "conversations": count, "score": score}
                for until, count, score in score_by_first_attempt(self.rows, self.score_mode)
            ],
            "calls": {role: dict(counts) for role, counts in self.calls.items()},
        }

    def write(self, folder: Path) -> None:
        """Write `rows.jsonl` and `summary.json`.

        Raises:
            StorageError: when the disk refuses.
        """
        lines = "".join(json.dumps(row.as_dict(), ensure_ascii=False) + "\n" for row in self.rows)
        write_whole(folder / "rows.jsonl", lines.encode("utf-8", "surrogatepass"))
        write_whole(folder / "summary.json", json.dumps(self.summary(), ensure_ascii=False, indent=1).encode())
