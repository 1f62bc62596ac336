"""A trainer's progress: a bar with loss and reward on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

_LINES = 10
_SHOWN = ("loss", "reward", "eval_loss", "rewards/accuracies")


class ProgressBar(TrainerCallback):  # type: ignore[misc]
    """Takes the place of Transformers' own progress callback, which prints every log as a dictionary; rank 0 only."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._bars: Any = None
        self._bar: Any = None
        self._console: Any = None
        self._latest = ""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Start the bar."""
        if not state.is_world_process_zero:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self._console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._bars.start()
        self._bar = self._bars.add_task(self._what, total=state.max_steps, completed=state.global_step, figures="")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Advance the bar."""
        if self._bars is None:
            return
        self._bars.update(self._bar, completed=state.global_step, figures=self._latest)
        step, total = state.global_step, state.max_steps
        if not self._console.is_terminal and (step == total or step % max(1, total // _LINES) == 0):
            self._console.print(f"{self._what} step {step}/{total} {self._latest}", highlight=False)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Keep the figures that are shown beside the bar."""
        known = {name: value for name, value in (logs or {}).items() if value is not None}
        figures = [f"{name} {float(known[name]):.3g}" for name in _SHOWN if name in known]
        if figures:
            self._latest = ", ".join(figures)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Stop the bar."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
