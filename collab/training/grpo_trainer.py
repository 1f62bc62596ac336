"""The trainer behind `train_grpo`; apart from it because it imports TRL."""

from __future__ import annotations

from typing import Any

from collab.training.conversation_trainer import Batch, ConversationSource, ConversationTrainer
from collab.training.credit import turn_advantages, without_dead_groups
from collab.training.episode import Episode


class GroupTrainer(ConversationTrainer):
    """TRL's loss with (B, T) advantages: each policy token carries the advantage of its turn."""

    _name = "GRPO over conversations"

    def __init__(self, source: ConversationSource, *, credit: str, drop_dead_groups: bool, **common: Any) -> None:
        super().__init__(source, **common)
        self._credit = credit
        self._drop_dead_groups = drop_dead_groups

    def _learn_from(self, batch: Batch, episodes: list[Episode], mode: str) -> Batch:
        values, mine = self._everyones(episodes)
        advantages = turn_advantages(values, self._credit, self.scale_rewards)
        if self._drop_dead_groups:
            advantages = without_dead_groups(values, advantages)
            self._leave_out(batch, [turns is None for turns in advantages[mine]])
        batch["advantages"] = self._per_token(batch, episodes, advantages[mine])
        self._record_groups(values, advantages[mine], episodes, mode)
        return batch
