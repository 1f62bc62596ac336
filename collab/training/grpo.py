"""GRPO over whole conversations (Shao et al. 2024, 2402.03300), with credit for every turn.

TRL's losses are used as they are: GRPO, Dr. GRPO, DAPO and GSPO by `variant`, the others through `trl`. What is ours is where the
advantages come from: a group of conversations with a simulated user, and MR for every turn (`collab.training.credit`).
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
from collab.training.online_settings import VARIANTS, GRPOSettings

if TYPE_CHECKING:
    from collab.training.grpo_trainer import GroupTrainer


def train_grpo(
    environment: Environment,
    tasks: Sequence[Task | EpisodeStart],
    model: str,
    output_dir: Path,
    *,
    settings: GRPOSettings,
    **options: Unpack[RunOptions],
) -> Path:
    """Train a policy by GRPO in an environment and return the folder of the trained adapter (or model).

    `optimization.batch_size` counts the conversations of one optimizer step (with credit `mr_branch` the replies to first turns).

    Raises:
        ConfigurationError, TooManyFailures: as `train_online` does.
    """
    return train_online(GRPO, environment, tasks, model, output_dir, settings, **options)


def build_trainer(run: OnlineRun, settings: GRPOSettings) -> GroupTrainer:
    """Return the trainer of a run, ready to train.

    Raises:
        ConfigurationError: as `train_online` does.
    """
    run.check_sizes(settings.group_size, settings.updates_per_rollout)
    from collab.training.grpo_trainer import GroupTrainer

    arguments = online_arguments(
        run,
        settings.rollout,
        group_size=settings.group_size,
        updates_per_rollout=settings.updates_per_rollout,
        iterations=settings.iterations,
        eval_steps=settings.eval_steps,
        **{"beta": settings.kl_beta, **VARIANTS[settings.variant], **settings.trl},
    )
    source = run.source(
        settings,
        branching=settings.credit == "mr_branch",
        turn_worths=settings.credit == "mr_difference",
        continue_from=settings.continue_from,
        softmax_temperature=settings.softmax_temperature,
    )
    return GroupTrainer(
        source, credit=settings.credit, drop_dead_groups=settings.drop_dead_groups, args=arguments, **run.common()
    )


class GRPO(OnlineMethod):
    """The method as the command line chooses it (`collab.training.online_method`)."""

    name = "grpo"
    Settings = GRPOSettings
    trainer = staticmethod(build_trainer)
