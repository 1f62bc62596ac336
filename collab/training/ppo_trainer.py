"""The trainer behind `train_ppo`; apart from it because it imports TRL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from collab.training.advantages import explained_variance, generalized_advantages, whitened
from collab.training.conversation_trainer import Batch, ConversationSource, ConversationTrainer
from collab.training.credit import TurnValues, mr_differences
from collab.training.critic import AdapterCritic, Critic, CriticFitting, ModelCritic
from collab.training.episode import Episode
from collab.training.online_settings import PPOSettings
from simulators.errors import ConfigurationError
from simulators.seeds import derive_seed

_TURNS_REPORTED = 4
"""For how many turns the critic's explained variance is logged turn by turn."""


class CriticTrainer(ConversationTrainer):
    """TRL's clipped loss with GAE advantages; the critic is fitted between the rollout and the policy's update."""

    _name = "PPO over conversations"
    beta: float

    def __init__(self, source: ConversationSource, *, settings: PPOSettings, base: str, **common: Any) -> None:
        super().__init__(source, **common)
        self._settings = settings
        with torch.random.fork_rng():  # TRL has given every rank a seed of its own, and all ranks must hold the same critic
            torch.manual_seed(derive_seed(source.seed, "critic"))
            critic = self._make_critic(base)
        self.fitting = CriticFitting(critic, settings.critic, self._sum_over_ranks, source.seed)

    def _make_critic(self, base: str) -> Critic:
        settings, deepspeed = self._settings.critic, self.accelerator.state.deepspeed_plugin
        if deepspeed is not None and deepspeed.zero_stage == 3:
            raise ConfigurationError("PPO's critic is a whole model on every rank, which ZeRO-3 takes apart; use ZeRO-2 or FSDP")
        if deepspeed is not None and settings.warmup_steps:
            raise ConfigurationError(
                "critic.warmup_steps holds the policy still, and DeepSpeed steps inside its own backward pass; set it to 0"
            )
        if settings.kind == "model":
            return ModelCritic(settings.model or base, settings, self.accelerator.device, self.model.dtype)
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise ConfigurationError(
                "critic.kind adapter lives in the policy's model, which FSDP and DeepSpeed take apart; set critic.kind to model"
            )
        return AdapterCritic(self.model, settings)

    def _sum_over_ranks(self, tensor: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = self.accelerator.reduce(tensor, reduction="sum")
        return total

    def _learn_from(self, batch: Batch, episodes: list[Episode], mode: str) -> Batch:
        settings = self._settings
        mask = self._trained_mask(batch).float()
        old_values = self.fitting.critic.values(batch, settings.critic.batch_size) * mask
        paid = self._rewards(batch, episodes, mode)
        rewards = paid - self._divergence_cost(batch) * mask
        advantages, targets = generalized_advantages(rewards, old_values, mask, settings.gamma, settings.gae_lambda)
        _, returns = generalized_advantages(rewards, old_values, mask, settings.gamma, 1.0)
        self._record_critic(returns, old_values, mask, episodes)
        if mode == "train" and not settings.critic.frozen and self._sum_over_ranks(mask.sum()) > 0:
            loss = self.fitting.fit(batch, targets, old_values, mask, self.state.global_step)
            self._note("critic/loss", loss)
        batch["advantages"] = whitened(advantages, mask, self._sum_over_ranks) if settings.whiten else advantages
        return batch

    def _rewards(self, batch: Batch, episodes: list[Episode], mode: str) -> torch.Tensor:
        """Pay each turn's reward at its last token: (B, T)."""
        values, mine = self._everyones(episodes)
        if self._settings.credit == "mr_difference":
            credit = mr_differences(values)[mine]
        else:
            credit = [_at_the_end(value) for value in values[mine]]
        self._record_groups(values, credit, episodes, mode)
        paid = torch.zeros(batch["completion_ids"].shape, device=batch["completion_ids"].device)
        for row, (episode, turns) in enumerate(zip(episodes, credit, strict=True)):
            for turn, value in zip(episode.turns, turns or (), strict=turns is not None):
                paid[row, turn.end - 1] = value
        return paid

    def _divergence_cost(self, batch: Batch) -> torch.Tensor:
        """Return beta log(policy / reference) of every token, 0 where the divergence is part of the loss instead."""
        if self.beta == 0 or self._settings.kl_in == "loss":
            return torch.zeros((), device=batch["completion_ids"].device)
        policy = batch["old_per_token_logps"] if "old_per_token_logps" in batch else batch["sampling_per_token_logps"]
        divergence = torch.nan_to_num(policy - batch["ref_per_token_logps"], nan=0.0)
        mask = self._trained_mask(batch)
        sums = self._sum_over_ranks(torch.stack([(divergence * mask).sum(), mask.sum().float()]))
        self._note("ppo/kl", (sums[0] / sums[1].clamp(min=1)).item())
        cost: torch.Tensor = self.beta * divergence
        return cost

    def _record_critic(
        self, returns: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, episodes: Sequence[Episode]
    ) -> None:
        """Log how much of the returns' variance the values explained before this fit, in all and turn by turn."""
        turn_of = torch.zeros_like(mask)
        for row, episode in enumerate(episodes):
            for number, turn in enumerate(episode.turns, start=1):
                turn_of[row, turn.start : turn.end] = number
        names = {"critic/explained_variance": mask}
        for number in range(1, _TURNS_REPORTED + 1):
            names[f"critic/explained_variance_turn_{number}"] = mask * (turn_of == number)
        for name, where in names.items():
            explained = explained_variance(returns, values, where, self._sum_over_ranks)
            if explained is not None:
                self._note(name, explained)
        total = self._sum_over_ranks(torch.stack([(values * mask).sum(), (returns * mask).sum(), mask.sum()]))
        self._note("critic/value_mean", (total[0] / total[2].clamp(min=1)).item())
        self._note("critic/return_mean", (total[1] / total[2].clamp(min=1)).item())

    def _loss(self, model: Any, inputs: Batch) -> torch.Tensor:
        """TRL's loss, without its KL term where the divergence is paid as a reward."""
        beta = self.beta
        if self._settings.kl_in == "reward":
            self.beta = 0.0
        try:
            return super()._loss(model, inputs)
        finally:
            self.beta = beta

    def _holds_policy(self) -> bool:
        return int(self.state.global_step) < self._settings.critic.warmup_steps

    def _save_own_state(self, folder: Path) -> None:
        super()._save_own_state(folder)
        if self.accelerator.is_main_process:
            self.fitting.save(folder)

    def load_own_state(self) -> None:
        super().load_own_state()
        if self._resume_from is not None:
            self.fitting.load(Path(self._resume_from))

    def save_beside(self, output_dir: Path) -> None:
        if self.accelerator.is_main_process:
            self.fitting.save(output_dir / "critic")


def _at_the_end(values: TurnValues) -> list[float] | None:
    """Pay the whole reward for the last turn."""
    return None if values.reward is None else [0.0] * (len(values.worths) - 1) + [values.reward]
