"""Tells whoever watches a run how the conversations of its rollouts ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from collab.training.episode import Episode
from simulators.conversation import Outcome

if TYPE_CHECKING:
    from collab.training.conversation_trainer import ConversationTrainer


class EpisodeCount(TrainerCallback):  # type: ignore[misc]
    """Counts this process's episodes of a rollout once it has been trained on; what it tells may raise, which ends training."""

    def __init__(self, trainer: ConversationTrainer, count: Callable[[Outcome, str | None], None]) -> None:
        self._trainer = trainer
        self._count = count
        self._counted: Sequence[Episode] = ()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Count the latest rollout, unless it fed an earlier step too."""
        episodes = self._trainer.last_episodes
        if episodes is self._counted:
            return
        self._counted = episodes
        for episode in episodes:
            if episode.start_id:  # the others are padding
                self._count(episode.outcome, episode.error)
