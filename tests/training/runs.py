"""Small runs for the tests: settings that take a second on a CPU, and samplers that say what a test wants."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from collab.environments.domain import Environment
from collab.tasks.task import Task
from collab.training.lora import LoraSettings
from collab.training.online_run import OnlineRun
from collab.training.online_settings import RolloutSettings
from collab.training.settings import OptimizationSettings
from collab.training.turn_tokens import TurnTokens
from collab.training.weight_sync import SharedWeights
from simulators.chat_models.protocol import SamplingSettings
from simulators.chat_models.token_sampler import SampledReply, SamplingCounts
from tests.training import toy


def rollout(**changes: Any) -> RolloutSettings:
    return RolloutSettings(**{"max_tokens": 5, "window_turns": 1, "num_samples": 2} | changes)


def optimization(**changes: Any) -> OptimizationSettings:
    values = {
        "learning_rate": 1e-2,
        "batch_size": 8,
        "per_device_batch_size": 8,
        "max_steps": 1,
        "max_length": 200,
        "lr_scheduler": "constant",
        "save_steps": 1000,
    }
    return OptimizationSettings(**values | changes)


def online_run(
    folder: Path,
    model: str,
    environment: Environment | None = None,
    tasks: Sequence[Task] | None = None,
    method: str = "grpo",
    adapter: str | None = None,
    eval_tasks: Sequence[Task] = (),
    lora: LoraSettings | None = None,
    **changes: Any,
) -> OnlineRun:
    """A run on the toy environment; by default every policy earns something (`ReplyBytes`)."""
    environment = environment or toy.environment(component=toy.ReplyBytes())
    return OnlineRun(
        method,
        environment,
        tasks or toy.tasks(8),
        eval_tasks,
        model,
        adapter,
        folder,
        lora or LoraSettings(rank=4, alpha=8),
        optimization(**changes),
        seed=3,
    )


class ScriptedSampler:
    """A token sampler that says what `script(prompt text, seed)` says; a text that ends in ... is cut, without a stop token."""

    def __init__(self, tokens: TurnTokens, script: Callable[[str, int], str]) -> None:
        self.counts = SamplingCounts()
        self.prompts: list[list[int]] = []
        self.longest = 0  # tokens that a conversation could have had, as it was asked for
        self._tokens = tokens
        self._script = script

    async def sample(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingSettings,
        seed: int,
        n: int = 1,
        prefix_ids: Sequence[int] = (),
        json_schema: Any = None,
    ) -> list[SampledReply]:
        self.prompts.append(list(prompt_ids))
        self.longest = max(self.longest, len(prompt_ids) + sampling.max_tokens)
        return [self._reply(prompt_ids, seed + index) for index in range(n)]

    def _reply(self, prompt_ids: Sequence[int], seed: int) -> SampledReply:
        text = self._script(self._tokens.tokenizer.decode(prompt_ids), seed)
        cut = text.endswith("...")
        ids = self._tokens.encode(text.removesuffix("..."))
        ids = ids if cut else [*ids, self._tokens.stop_id]
        return SampledReply(tuple(ids), tuple([-1.0] * len(ids)), self._tokens.text(ids), "length" if cut else "stop")

    async def aclose(self) -> None:
        """Nothing to release."""


def scripted(monkeypatch: Any, script: Callable[[str, int], str]) -> None:
    """Make every online trainer sample from a script instead of its model."""
    from collab.training.conversation_trainer import ConversationTrainer

    monkeypatch.setattr(
        ConversationTrainer, "_make_sampler", lambda self, tokens, thread: (ScriptedSampler(tokens, script), SharedWeights())
    )


def gradients(trainer: Any) -> list[torch.Tensor]:
    """Record the gradients of every optimizer step of a trainer, flat."""
    recorded: list[torch.Tensor] = []
    original = trainer.before_optimizer_step

    def record() -> None:
        original()
        grads = [p.grad.flatten().clone() for p in trainer.model.parameters() if p.requires_grad and p.grad is not None]
        recorded.append(torch.cat(grads) if grads else torch.zeros(0))

    trainer.before_optimizer_step = record
    return recorded


def logged(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics.jsonl that belong to a training step."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def weights(trainer: Any) -> torch.Tensor:
    """Return all trainable weights, flat."""
    return torch.cat([p.detach().flatten().clone() for p in trainer.model.parameters() if p.requires_grad])


def wait(coroutine: Any) -> Any:
    return asyncio.run(coroutine)
