"""PPO with a critic over whole conversations (Schulman et al. 2017, 1707.06347; CollabLLM section 3.2).

TRL dropped its PPO in 1.13; this one is TRL's clipped GRPO loss with advantages of our own: a critic that is fitted after every
rollout, and GAE over the policy's tokens across user turns. One conversation a task is enough, as the critic is the baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from collab.environments.domain import Environment
from collab.tasks.task import Task
from collab.training.episode import EpisodeStart
from collab.training.online_method import OnlineMethod
from collab.training.online_run import OnlineRun, RunOptions, online_arguments, train_online
from collab.training.online_settings import PPOSettings

if TYPE_CHECKING:
    from collab.training.ppo_trainer import CriticTrainer


def train_ppo(
    environment: Environment,
    tasks: Sequence[Task | EpisodeStart],
    model: str,
    output_dir: Path,
    *,
    settings: PPOSettings,
    **options: Unpack[RunOptions],
) -> Path:
    """Train a policy by PPO in an environment and return the folder of the trained adapter (or model).

    `optimization.batch_size` counts the conversations of one optimizer step. The critic is saved beside the policy, in
    `output_dir/critic`.

    Raises:
        ConfigurationError, TooManyFailures: as `train_online` does.
    """
    return train_online(PPO, environment, tasks, model, output_dir, settings, **options)


def build_trainer(run: OnlineRun, settings: PPOSettings) -> CriticTrainer:
    """Return the trainer of a run, ready to train.

    Raises:
        ConfigurationError: as `train_online` does.
    """
    run.check_sizes(1, settings.updates_per_rollout)
    from collab.training.ppo_trainer import CriticTrainer

    arguments = online_arguments(
        run,
        settings.rollout,
        group_size=1,
        updates_per_rollout=settings.updates_per_rollout,
        iterations=settings.iterations,
        eval_steps=settings.eval_steps,
        **{"beta": settings.kl_beta, "loss_type": "dapo", "epsilon": settings.clip, **settings.trl},
    )
    source = run.source(settings, turn_worths=settings.credit == "mr_difference")
    return CriticTrainer(source, settings=settings, base=run.model, args=arguments, **run.common())


class PPO(OnlineMethod):
    """The method as the command line chooses it (`collab.training.online_method`)."""

    name = "ppo"
    Settings = PPOSettings
    trainer = staticmethod(build_trainer)
