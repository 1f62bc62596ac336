"""Online DPO: the policy's own replies, best against worst by MR (CollabLLM section 3.2; Guo et al. 2024, 2402.04792).

At every turn of a conversation a group of replies to the same history is sampled from the current policy and each one's MR
estimated by forward sampling with the same policy. Best and worst become a DPO pair (Rafailov et al. 2023, 2305.18290); ties
teach nothing and are skipped. The conversation goes on from the best reply. On stored histories with `rollout.max_turns` 1 this
is the paper's own setting.
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
from collab.training.online_settings import OnlineDPOSettings

if TYPE_CHECKING:
    from collab.training.online_dpo_trainer import PairTrainer


def train_online_dpo(
    environment: Environment,
    tasks: Sequence[Task | EpisodeStart],
    model: str,
    output_dir: Path,
    *,
    settings: OnlineDPOSettings,
    **options: Unpack[RunOptions],
) -> Path:
    """Train a policy by online DPO in an environment and return the folder of the trained adapter (or model).

    The reference is the policy as it starts (the adapter, where one is given). `optimization.batch_size` counts the replies to
    first turns of one optimizer step.

    Raises:
        ConfigurationError, TooManyFailures: as `train_online` does.
    """
    return train_online(OnlineDPO, environment, tasks, model, output_dir, settings, **options)


def build_trainer(run: OnlineRun, settings: OnlineDPOSettings) -> PairTrainer:
    """Return the trainer of a run, ready to train.

    Raises:
        ConfigurationError: as `train_online` does.
    """
    run.check_sizes(settings.group_size, settings.updates_per_rollout)
    from collab.training.online_dpo_trainer import PairTrainer

    arguments = online_arguments(
        run,
        settings.rollout,
        group_size=settings.group_size,
        updates_per_rollout=settings.updates_per_rollout,
        iterations=1,
        eval_steps=settings.eval_steps,
        **{"beta": settings.beta, **settings.trl},
    )
    source = run.source(
        settings,
        branching=True,
        continue_from=settings.continue_from,
        softmax_temperature=settings.softmax_temperature,
    )
    return PairTrainer(source, min_gap=settings.min_gap, args=arguments, **run.common())


class OnlineDPO(OnlineMethod):
    """The method as the command line chooses it (`collab.training.online_method`)."""

    name = "online_dpo"
    Settings = OnlineDPOSettings
    trainer = staticmethod(build_trainer)
