"""Settings that all trainers share, and how they become TRL arguments."""

from __future__ import annotations

import importlib.util
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulators.errors import ConfigurationError


@dataclass(slots=True)
class OptimizationSettings:
    """How long, in what batches and at what rate to train.

    `batch_size` is the total over devices and accumulation steps, as in CollabLLM's Table 6; `per_device_batch_size` is what one
    device takes at once. `max_steps` -1 trains for `epochs`. `save_steps` 0 saves once an epoch.
    """

    learning_rate: float = 1e-5
    batch_size: int = 64
    per_device_batch_size: int = 4
    epochs: float = 3.0
    max_steps: int = -1
    warmup_steps: float = 0.0
    lr_scheduler: str = "linear"
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    max_length: int = 2048
    gradient_checkpointing: bool = True
    save_steps: int = 0
    logging_steps: int = 1
    report_to: str = "none"

    def accumulation_steps(self, world_size: int) -> int:
        """Return the accumulation steps that make up the total batch.

        Raises:
            ConfigurationError: when the sizes do not divide.
        """
        at_once = self.per_device_batch_size * world_size
        if self.batch_size % at_once:
            raise ConfigurationError(
                f"batch_size {self.batch_size} is not a multiple of per_device_batch_size {self.per_device_batch_size} x "
                f"{world_size} device(s); change one of them"
            )
        return self.batch_size // at_once


DECIDES_NOTHING = ("save_steps", "logging_steps", "report_to")
"""Settings of the optimization that may differ between two starts of one run."""


def is_planned_by_length(lr_scheduler: str, warmup_steps: float) -> bool:
    """Say whether the learning rate of a step depends on how many there will be; then a longer run is another one from the start.

    `warmup_steps` below 1 are a share of them.
    """
    return lr_scheduler not in ("constant", "constant_with_warmup") or 0 < warmup_steps < 1


def trainer_arguments(kind: type, settings: OptimizationSettings, output_dir: Path, seed: int, **extra: Any) -> Any:
    """Build a TRL config of class `kind` (SFTConfig, DPOConfig, ...) from the shared settings and the trainer's own `extra`.

    Raises:
        ConfigurationError: when the installed TRL does not know one of the arguments, or wandb is wanted and not installed.
    """
    import os

    import torch

    if settings.report_to == "wandb" and importlib.util.find_spec("wandb") is None:
        raise ConfigurationError(
            "optimization.report_to is wandb, which is not installed; pip install 'collab[wandb]' or set report_to to none"
        )
    on_cpu = not torch.cuda.is_available()
    arguments = {
        "output_dir": str(output_dir),
        "seed": seed,
        "data_seed": seed,
        "learning_rate": settings.learning_rate,
        "per_device_train_batch_size": settings.per_device_batch_size,
        "gradient_accumulation_steps": settings.accumulation_steps(int(os.environ.get("WORLD_SIZE", "1"))),
        "num_train_epochs": settings.epochs,
        "max_steps": settings.max_steps,
        "warmup_steps": settings.warmup_steps,
        "lr_scheduler_type": settings.lr_scheduler,
        "weight_decay": settings.weight_decay,
        "max_grad_norm": settings.max_grad_norm,
        **({"max_length": settings.max_length} if "max_length" in inspect.signature(kind).parameters else {}),
        "gradient_checkpointing": settings.gradient_checkpointing and not on_cpu,
        "save_strategy": "steps" if settings.save_steps else "epoch",
        "save_steps": settings.save_steps or 500,
        "save_total_limit": 2,
        "logging_steps": settings.logging_steps,
        "report_to": settings.report_to,
        "disable_tqdm": True,
        "use_cpu": on_cpu,
        "bf16": not on_cpu and torch.cuda.is_bf16_supported(),
        **extra,
    }
    known = inspect.signature(kind).parameters
    if unknown := sorted(set(arguments) - set(known)):
        raise ConfigurationError(f"{kind.__name__} of the installed TRL has no argument {', '.join(unknown)}; install trl 1.16")
    return kind(**arguments)


def latest_checkpoint(folder: Path) -> str | None:
    """Return the newest complete checkpoint in a trainer's folder, None when there is none to go on from.

    The trainer's state is written last, so a checkpoint without it was cut off by a kill.
    """
    found = [
        (int(path.name.rpartition("-")[2]), path)
        for path in folder.glob("checkpoint-*")
        if path.name.rpartition("-")[2].isdigit() and (path / "trainer_state.json").is_file()
    ]
    return str(max(found)[1]) if found else None
