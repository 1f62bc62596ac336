"""metrics.jsonl: what a trainer logs, one JSON object a line, whatever else it reports to."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class MetricsLog(TrainerCallback):  # type: ignore[misc]
    """Appends every log of a run to a file, with the step, the epoch and the wall-clock second; only rank 0 writes.

    A resumed run goes on from its checkpoint: lines of later steps, which the killed run had written, are dropped first.
    """

    def __init__(self, path: Path, stage: str) -> None:
        self._path = path
        self._stage = stage
        self._started = time.monotonic()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Drop what a killed run wrote after the checkpoint that this one starts from."""
        if not state.is_world_process_zero or not self._path.is_file():
            return
        lines = self._path.read_text().splitlines(keepends=True)
        kept = [line for line in lines if not self._is_ahead(line, state.global_step)]
        if len(kept) < len(lines):
            self._path.write_text("".join(kept))

    def _is_ahead(self, line: str, step: int) -> bool:
        try:
            entry = json.loads(line)
        except ValueError:
            return True  # torn by the kill
        return bool(entry.get("stage") == self._stage and entry.get("step", 0) > step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Append one line."""
        if not state.is_world_process_zero or not logs:
            return
        entry = {
            "stage": self._stage,
            "step": state.global_step,
            "seconds": round(time.monotonic() - self._started, 3),
            **{key: value for key, value in logs.items() if isinstance(value, int | float)},
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as stream:
            stream.write(json.dumps(entry) + "\n")
