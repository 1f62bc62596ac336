"""conversations.jsonl: a few whole conversations of every rollout, as a table to read while a run goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collab.training.credit import Advantages
from collab.training.episode import Episode

COLUMNS = ("step", "mode", "start", "sample", "turn", "outcome", "reward", "worths", "advantages", "components", "conversation")


class ConversationLog:
    """Appends rows to a file, and hands them to wandb as a table when the run reports there; only rank 0 writes."""

    def __init__(self, path: Path, limit: int, *, enabled: bool, wandb: bool) -> None:
        self._path = path
        self._limit = limit
        self._enabled = enabled and limit > 0
        self._wandb = wandb

    def write(self, step: int, mode: str, episodes: Sequence[Episode], advantages: Advantages) -> None:
        """Write down the first conversations of a batch, spread over its starts."""
        if not self._enabled:
            return
        rows = [
            _row(step, mode, episode, credit)
            for episode, credit in _spread(list(zip(episodes, advantages, strict=True)), self._limit)
        ]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as stream:
            stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        if self._wandb:
            self._to_wandb(rows)

    def _to_wandb(self, rows: Sequence[dict[str, Any]]) -> None:
        import wandb

        if wandb.run is not None:
            data = [[row[name] if name in _SCALARS else json.dumps(row[name]) for name in COLUMNS] for row in rows]
            wandb.log({"conversations": wandb.Table(columns=list(COLUMNS), data=data)}, commit=False)


_SCALARS = ("step", "mode", "start", "sample", "turn", "outcome", "reward")


def _spread(rows: list[tuple[Episode, list[float] | None]], limit: int) -> list[tuple[Episode, list[float] | None]]:
    """Take rows evenly over a batch, which holds the samples of one start beside each other."""
    step = max(1, len(rows) // limit)
    return rows[::step][:limit]


def _row(step: int, mode: str, episode: Episode, advantages: list[float] | None) -> dict[str, Any]:
    return {
        "step": step,
        "mode": mode,
        "start": episode.start_id,
        "sample": episode.sample,
        "turn": episode.turn,
        "outcome": episode.outcome.value,
        "reward": episode.reward,
        "worths": episode.worths,
        "advantages": advantages,
        "components": episode.components,
        "error": episode.error,
        "conversation": episode.messages,
    }
