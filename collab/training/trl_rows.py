"""How played conversations pass through TRL: its dataset rows, its rollout function, its reward function, its row order."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from datasets import Dataset
from trl import GRPOTrainer

from collab.training.episode import Episode, EpisodeStart
from simulators.seeds import derive_seed


class PlayingTrainer(Protocol):
    """What `hand_over` needs of the trainer that TRL passes to it."""

    last_episodes: list[Episode]
    handed_over: bool
    processing_class: Any


def dataset_of(starts: Sequence[EpisodeStart]) -> Dataset:
    """One row per start; TRL wants a prompt in it, which the played conversation replaces."""
    prompt = [{"role": "user", "content": ""}]
    return Dataset.from_list([{"prompt": prompt, "start": index} for index in range(len(starts))])


def row_of(episode: Episode) -> dict[str, Any]:
    """One row of TRL's: only its number and its reward matter, the tokens come from the rollout."""
    first = [{"role": "user", "content": message.content} for message in episode.conversation[:1]]
    return {"prompt": first or [{"role": "user", "content": ""}], "reward": episode.reward}


def hand_over(prompts: list[Any], trainer: PlayingTrainer) -> dict[str, Any]:
    """Give TRL the tokens of the conversations that have just been played: its `rollout_func`."""
    trainer.handed_over = True
    end = trainer.processing_class.eos_token_id  # a row without tokens would break TRL's padding; it is masked
    return {
        "prompt_ids": [episode.prompt_ids or [end] for episode in trainer.last_episodes],
        "completion_ids": [episode.completion_ids or [end] for episode in trainer.last_episodes],
        "logprobs": [episode.logprobs or [0.0] for episode in trainer.last_episodes],
        "env_mask": [episode.policy_mask or [0] for episode in trainer.last_episodes],
    }


def conversation_reward(reward: list[float | None], **_: Any) -> list[float | None]:
    """Hand TRL the rewards that the rollout found; None leaves a row out of TRL's figures."""
    return reward


class EpochOrder(torch.utils.data.Sampler[int]):
    """Reseeds TRL's sampler at the start of every epoch; its own generator would start anew on a resume."""

    def __init__(self, sampler: Any, seed: int, epoch: Callable[[], int]) -> None:
        self._sampler = sampler
        self._seed = seed
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self._sampler.shuffle:
            self._sampler.generator.manual_seed(derive_seed(self._seed, "epoch", self._epoch()))
        return iter(self._sampler)

    def __len__(self) -> int:
        return len(self._sampler)


def silence_row_warnings() -> None:
    """TRL prints a whole row for every batch with an unscored one; ours are counted and logged instead."""
    found = logging.getLogger(GRPOTrainer.__module__)
    if not any(isinstance(each, _RowWarnings) for each in found.filters):
        found.addFilter(_RowWarnings())


class _RowWarnings(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return "All reward functions returned None" not in record.getMessage()


@contextmanager
def without_rollout_warning() -> Iterator[None]:
    """TRL warns that `rollout_func` may change, which is why its version is pinned and the hook is tested."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="You are using 'rollout_func'")
        yield
