"""The learning rate of a run that is trained further than it was planned."""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class PlannedRate(TrainerCallback):  # type: ignore[misc]
    """Puts a resumed run on the rate that its schedule has for the next step, as long as the run is now to be.

    A checkpoint holds the rate of the next step as it was planned then: 0 at the end of a linear schedule. Where the length has
    not changed the two are equal.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, lr_scheduler: Any = None, **_: Any
    ) -> None:
        """Set the rate, once the checkpoint has been loaded."""
        schedule = getattr(lr_scheduler, "scheduler", lr_scheduler)  # Accelerate wraps it
        if not state.global_step or not isinstance(schedule, LambdaLR):
            return
        rates = [base * at(schedule.last_epoch) for base, at in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)]
        for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        schedule._last_lr = rates
