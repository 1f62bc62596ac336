"""What the online methods share: from settings and tasks to a trained folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from collab.environments.domain import Environment
from collab.tasks.task import Task
from collab.training.adapters import save_trained
from collab.training.chat_templates import sampling_chat_template
from collab.training.episode import EpisodeStart
from collab.training.lora import LoraSettings, load_for_training
from collab.training.online_method import OnlineMethod
from collab.training.online_settings import DECIDES_NOTHING, RolloutSettings
from collab.training.rollout_journal import fingerprint
from collab.training.settings import DECIDES_NOTHING as OF_OPTIMIZATION
from collab.training.settings import OptimizationSettings, is_planned_by_length, latest_checkpoint, trainer_arguments
from collab.training.trl_hooks import check_trl
from simulators.chat_models.transformers_model import load_tokenizer
from simulators.conversation import Outcome
from simulators.errors import ConfigurationError

if TYPE_CHECKING:
    from collab.training.conversation_trainer import ConversationSource, ConversationTrainer


Count = Callable[[Outcome, str | None], None]
"""Told how each conversation of a rollout ended, and its error; it may raise to stop the run."""


class RunOptions(TypedDict, total=False):
    """What every `train_*` function takes besides environment, tasks, model, folder and settings: the fields of `OnlineRun`."""

    lora: LoraSettings
    optimization: OptimizationSettings
    adapter: str | None
    eval_tasks: Sequence[Task | EpisodeStart]
    seed: int
    count: Count


def train_online(
    method: type[OnlineMethod],
    environment: Environment,
    tasks: Sequence[Task | EpisodeStart],
    model: str,
    output_dir: Path,
    settings: Any,
    **options: Unpack[RunOptions],
) -> Path:
    """Train a policy by a method in an environment and return the folder of the trained adapter (or model).

    Goes on from the newest checkpoint in `output_dir` where there is one.

    Raises:
        ConfigurationError: for too few tasks, an unknown model, sizes that do not divide, an unsupported TRL.
        TooManyFailures: when nothing but failed conversations comes out of the rollouts.
    """
    run = OnlineRun(
        method.name,
        environment,
        tasks,
        options.get("eval_tasks", ()),
        model,
        options.get("adapter"),
        output_dir,
        options.get("lora") or LoraSettings(),
        options.get("optimization") or OptimizationSettings(),
        options.get("seed", 0),
        options.get("count", _ignore),
    )
    return run.train(method.trainer(run, settings))


def _ignore(outcome: Outcome, error: str | None) -> None:
    """Take no notice."""


@dataclass(slots=True)
class OnlineRun:
    """One run of an online method. `count` is told of every conversation of this process."""

    method: str
    environment: Environment
    tasks: Sequence[Task | EpisodeStart]
    eval_tasks: Sequence[Task | EpisodeStart]
    model: str
    adapter: str | None
    output_dir: Path
    lora: LoraSettings
    optimization: OptimizationSettings
    seed: int
    count: Count = _ignore

    def check_sizes(self, group_size: int, updates_per_rollout: int) -> None:
        """Check what TRL would fail on later, or silently train nothing on.

        Raises:
            ConfigurationError: when the batch does not hold whole groups, or there are fewer tasks than a rollout takes.
        """
        check_trl()
        batch = self.optimization.batch_size
        if batch % group_size:
            raise ConfigurationError(f"batch_size {batch} does not hold whole groups of {group_size}; make it a multiple")
        if batch < 2:
            raise ConfigurationError(f"batch_size is {batch}; online training needs at least 2 conversations a step")
        taken = batch // group_size * updates_per_rollout
        if len(self.tasks) < taken:
            several = f", {updates_per_rollout} of them" if updates_per_rollout > 1 else ""
            raise ConfigurationError(
                f"there are {len(self.tasks)} task(s), and one rollout takes {taken} (batch_size {batch} in groups of "
                f"{group_size}{several}); give more tasks or lower batch_size"
            )

    def source(self, settings: Any, **kind: Any) -> ConversationSource:
        """Return what the trainer plays; `settings` are the method's own, with `.rollout` in them."""
        from collab.training.conversation_trainer import ConversationSource

        return ConversationSource(
            self.environment,
            _starts(self.tasks),
            settings.rollout,
            self.output_dir,
            fingerprint(*self._decisive(settings)),
            self.optimization.max_length,
            self.method,
            self.seed,
            _starts(self.eval_tasks),
            **kind,
        )

    def _decisive(self, settings: Any) -> list[Any]:
        """Return all that decides what is sampled. How long to train does where the learning rate is planned by it."""
        optimization = _without(asdict(self.optimization), OF_OPTIMIZATION)
        if not is_planned_by_length(self.optimization.lr_scheduler, self.optimization.warmup_steps):
            optimization = _without(optimization, ("max_steps", "epochs"))
        resources = self.environment.resources
        played = [model and [model.name, model.weights_version] for model in (resources.user_model, resources.judge_model)]
        reward = [[component.name, weight] for component, weight in self.environment.reward.terms]
        digests = [start.task.digest for start in _starts(self.tasks)]
        run = [
            self.method,
            self.environment.name,
            played,
            asdict(resources.role_play),
            reward,
            self.model,
            self.adapter,
            self.seed,
        ]
        return [*run, _without(asdict(settings), DECIDES_NOTHING), asdict(self.lora), optimization, digests]

    def common(self) -> dict[str, Any]:
        """Return what every trainer of this run is given: model, tokenizer, a new adapter's configuration, callbacks."""
        from collab.training.metrics_log import MetricsLog
        from collab.training.planned_rate import PlannedRate
        from collab.training.progress_bar import ProgressBar

        tokenizer = load_tokenizer(self.model)
        tokenizer.chat_template = sampling_chat_template(tokenizer)
        return {
            "model": load_for_training(self.model, self.adapter, self.lora),
            "tokenizer": tokenizer,
            "peft_config": None if self.adapter else self.lora.peft_config(),
            "callbacks": [MetricsLog(self.output_dir / "metrics.jsonl", self.method), ProgressBar(self.method), PlannedRate()],
        }

    def train(self, trainer: ConversationTrainer) -> Path:
        """Train from the newest checkpoint on, save, and return the folder."""
        from transformers import PrinterCallback

        from collab.training.episode_count import EpisodeCount

        trainer.remove_callback(PrinterCallback)  # the progress bar shows what it would print
        trainer.add_callback(EpisodeCount(trainer, self.count))
        try:
            trainer.train(resume_from_checkpoint=latest_checkpoint(self.output_dir / "checkpoints"))
            trainer.save_beside(self.output_dir)
            return save_trained(trainer, self.model, self.output_dir)
        finally:
            trainer.close()


def online_arguments(
    run: OnlineRun,
    rollout: RolloutSettings,
    *,
    group_size: int,
    updates_per_rollout: int,
    iterations: int,
    eval_steps: int,
    **method: Any,
) -> Any:
    """Build TRL's arguments from ours. LoRA dropout is off: the policy that samples and the one that is trained are the same.

    Raises:
        ConfigurationError: when sizes do not divide or TRL does not know an argument.
    """
    from trl import GRPOConfig

    accumulation = run.optimization.accumulation_steps(int(os.environ.get("WORLD_SIZE", "1")))
    turns = rollout.max_turns or run.environment.max_turns
    evaluation: dict[str, Any] = {}
    if run.eval_tasks and eval_steps:
        evaluation = {"eval_strategy": "steps", "eval_steps": eval_steps, "eval_on_start": True}
    arguments = trainer_arguments(
        GRPOConfig,
        run.optimization,
        run.output_dir / "checkpoints",
        run.seed,
        num_generations=max(group_size, 2),
        num_generations_eval=group_size,
        max_completion_length=rollout.max_tokens * turns,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        num_iterations=iterations,
        steps_per_generation=accumulation * updates_per_rollout,
        per_device_eval_batch_size=-(-run.optimization.per_device_batch_size // group_size) * group_size,
        disable_dropout=True,
        log_completions=False,
        **evaluation,
        **method,
    )
    arguments.num_generations = group_size  # TRL refuses 1, which a method with a critic may use
    return arguments


def _without(settings: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Return nested settings without some of them, which are named with dots."""
    own = {key.partition(".")[0]: [each.partition(".")[2] for each in keys if each.startswith(f"{key}.")] for key in settings}
    return {key: _without(value, own[key]) if own[key] else value for key, value in settings.items() if key not in keys}


def _starts(tasks: Sequence[Task | EpisodeStart]) -> list[EpisodeStart]:
    return [task if isinstance(task, EpisodeStart) else EpisodeStart(task) for task in tasks]
