"""PPO's critic: V(s_t), the return that is expected at a policy token, fitted by regression after every rollout.

The critic has weights of its own (a LoRA adapter on the policy's base model, or another model) and an optimizer of its own, so
its gradients reach its own weights and nothing else. The value of token t is read from the hidden state at t - 1: what is known
before the token is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from collab.training.advantages import Reduce
from collab.training.online_settings import CriticSettings
from simulators.errors import ConfigurationError
from simulators.seeds import derive_seed

ADAPTER = "critic"
"""The name of the critic's LoRA adapter."""

Batch = Mapping[str, torch.Tensor]


class Critic(nn.Module):
    """A scalar head on hidden states; subclasses say whose. Values are float32."""

    def __init__(self, hidden_size: int, device: torch.device) -> None:
        super().__init__()
        self.head = nn.Linear(hidden_size, 1, device=device, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)  # V = 0 at the start: advantages are then the plain returns
        nn.init.zeros_(self.head.bias)

    def hidden(self, ids: torch.Tensor, attention: torch.Tensor) -> torch.Tensor:
        """Return the last hidden states, (B, tokens, hidden)."""
        raise NotImplementedError

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make the critic's weights the ones that compute and learn."""
        yield

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the critic's own weights by name."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the values of all completion tokens, (B, T)."""
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        width = batch["completion_ids"].size(1)
        states = self.hidden(ids, attention)[:, -width - 1 : -1]
        values: torch.Tensor = self.head(states.float()).squeeze(-1)
        return values

    @torch.no_grad()
    def values(self, batch: Batch, batch_size: int) -> torch.Tensor:
        """Return the values as the critic stands, in chunks of `batch_size` rows."""
        count = batch["completion_ids"].size(0)
        with self.active():
            return torch.cat([self(_rows(batch, slice(at, at + batch_size))) for at in range(0, count, batch_size)])


class AdapterCritic(Critic):
    """A LoRA adapter of its own on the policy's base model: costs two small matrices a layer."""

    _policy: Any

    def __init__(self, policy: Any, settings: CriticSettings) -> None:
        from peft import LoraConfig, PeftModel

        if not isinstance(policy, PeftModel):
            raise ConfigurationError(
                "critic.kind adapter needs a policy that is trained with LoRA; set critic.kind to model, or lora.enabled to true"
            )
        super().__init__(policy.config.get_text_config().hidden_size, policy.device)
        policy_adapter = policy.peft_config[policy.active_adapter]
        config = LoraConfig(
            r=settings.rank,
            lora_alpha=settings.alpha,
            lora_dropout=0.0,
            bias="none",
            target_modules=policy_adapter.target_modules,
            task_type="CAUSAL_LM",
        )
        policy.add_adapter(ADAPTER, config)
        object.__setattr__(self, "_policy", policy)  # not a submodule: its weights are not the critic's
        for name, weight in self.trainable().items():
            weight.requires_grad_(name.startswith("head."))  # the adapter learns while it is active, and only then

    def hidden(self, ids: torch.Tensor, attention: torch.Tensor) -> torch.Tensor:
        backbone = self._policy.get_base_model().base_model
        states: torch.Tensor = backbone(input_ids=ids, attention_mask=attention, use_cache=False).last_hidden_state
        return states

    @contextmanager
    def active(self) -> Iterator[None]:
        before = self._policy.active_adapter
        self._policy.set_adapter(ADAPTER)
        try:
            yield
        finally:
            self._policy.set_adapter(before)

    def trainable(self) -> dict[str, nn.Parameter]:
        adapter = {name: weight for name, weight in self._policy.named_parameters() if f".{ADAPTER}." in name}
        return adapter | {f"head.{name}": weight for name, weight in self.head.named_parameters()}


class ModelCritic(Critic):
    """A model of its own with a LoRA adapter, a whole copy on every rank."""

    def __init__(self, model: str, settings: CriticSettings, device: torch.device, dtype: torch.dtype) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModel

        try:
            backbone = AutoModel.from_pretrained(model, dtype=dtype)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"cannot load a critic from {model}: {str(error).splitlines()[0]}") from None
        super().__init__(backbone.config.get_text_config().hidden_size, device)
        config = LoraConfig(r=settings.rank, lora_alpha=settings.alpha, bias="none", target_modules="all-linear")
        self.backbone = get_peft_model(backbone, config).to(device)

    def hidden(self, ids: torch.Tensor, attention: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.backbone(input_ids=ids, attention_mask=attention, use_cache=False).last_hidden_state
        return states

    def trainable(self) -> dict[str, nn.Parameter]:
        return {name: weight for name, weight in self.named_parameters() if weight.requires_grad}


class CriticFitting:
    """Fits a critic to returns, with AdamW, PPO's value clipping, and gradients summed over ranks.

    Gradients are summed by hand, not by DDP: the loss of a batch is a sum over its tokens on all ranks divided by their number,
    so any number of ranks gives the same step.
    """

    def __init__(self, critic: Critic, settings: CriticSettings, reduce: Reduce, seed: int) -> None:
        self.critic = critic
        self._settings = settings
        self._reduce = reduce
        self._seed = seed
        self.optimizer = torch.optim.AdamW(critic.trainable().values(), lr=settings.learning_rate, weight_decay=0.0)

    def fit(self, batch: Batch, returns: torch.Tensor, old_values: torch.Tensor, mask: torch.Tensor, step: int) -> float:
        """Take `epochs` passes over a rollout and return the mean loss of the last one.

        The loss of a token is max((V - R)^2, (V_clipped - R)^2) / 2 (Schulman et al.'s PPO code), with V_clipped within `clip` of
        the old value. Every rank must hold as many rows.
        """
        settings = self._settings
        count = returns.size(0)
        losses: list[float] = []
        for epoch in range(settings.epochs):
            generator = torch.Generator().manual_seed(derive_seed(self._seed, "critic", step, epoch))
            order = torch.randperm(count, generator=generator).to(returns.device)
            losses = []
            for at in range(0, count, settings.batch_size):
                rows = order[at : at + settings.batch_size]
                losses.append(self._step(_rows(batch, rows), returns[rows], old_values[rows], mask[rows].float()))
        return sum(losses) / len(losses)

    def _step(self, batch: Batch, returns: torch.Tensor, old_values: torch.Tensor, mask: torch.Tensor) -> float:
        tokens = self._reduce(mask.sum()).clamp(min=1)
        with self.critic.active():
            values = self.critic(batch)
            error = (values - returns) ** 2
            if self._settings.clip:
                near = old_values + (values - old_values).clamp(-self._settings.clip, self._settings.clip)
                error = torch.maximum(error, (near - returns) ** 2)
            loss = 0.5 * (error * mask).sum() / tokens
            loss.backward()
        weights = [weight for weight in self.critic.trainable().values() if weight.grad is not None]
        for weight in weights:
            assert weight.grad is not None
            weight.grad = self._reduce(weight.grad)
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(self._reduce(loss.detach()).item())

    def save(self, folder: Path) -> None:
        """Write weights and optimizer state into a folder."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: weight.detach().cpu().clone() for name, weight in self.critic.trainable().items()}
        save_file(weights, folder / "critic.safetensors")
        torch.save(self.optimizer.state_dict(), folder / "critic_optimizer.pt")

    def load(self, folder: Path) -> None:
        """Read back what `save` wrote.

        Raises:
            ConfigurationError: when the folder holds no critic, or another one.
        """
        from safetensors.torch import load_file

        path = folder / "critic.safetensors"
        if not path.is_file():
            raise ConfigurationError(f"{folder} holds no critic; start PPO anew in another output folder")
        saved = load_file(path)
        own = self.critic.trainable()
        if {name: weight.shape for name, weight in saved.items()} != {name: weight.shape for name, weight in own.items()}:
            raise ConfigurationError(f"the critic in {folder} is of another kind or size than critic.kind and rank say")
        with torch.no_grad():
            for name, weight in own.items():
                weight.copy_(saved[name])
        self.optimizer.load_state_dict(torch.load(folder / "critic_optimizer.pt", weights_only=True))


def _rows(batch: Batch, rows: Any) -> dict[str, torch.Tensor]:
    return {name: batch[name][rows] for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")}
