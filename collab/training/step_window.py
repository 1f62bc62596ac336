"""What happens around an optimizer step: what has been gathered since the last one, and the moments that only callbacks see."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class GuardedTrainer(Protocol):
    """What `StepGuard` calls."""

    def load_own_state(self) -> None:
        """Training begins, and everything of TRL's has been restored."""

    def before_optimizer_step(self) -> None:
        """Gradients are complete and clipped."""

    def checkpoint_saved(self) -> None:
        """A checkpoint is complete on the disk."""


class StepWindow:
    """What has happened since the last optimizer step: tokens to train on, seconds of updating and of generating."""

    def __init__(self) -> None:
        self._tokens: torch.Tensor | None = None
        self.updating_s = 0.0
        self.generating_s = 0.0

    def add_tokens(self, count: torch.Tensor) -> None:
        """Count the tokens that a micro-batch trains."""
        count = count.detach().float()
        self._tokens = count if self._tokens is None else self._tokens + count

    def tokens(self, device: torch.device) -> torch.Tensor:
        """Return how many tokens were trained on this rank."""
        return torch.zeros((), device=device) if self._tokens is None else self._tokens


class StepGuard(TrainerCallback):  # type: ignore[misc]
    """Calls the trainer at the moments that only callbacks see."""

    def __init__(self, trainer: GuardedTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Restore what is ours."""
        self._trainer.load_own_state()

    def on_pre_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Let the trainer look at the gradients."""
        self._trainer.before_optimizer_step()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Tell the trainer of the checkpoint."""
        self._trainer.checkpoint_saved()
