"""The Multiturn-aware Reward (MR) of a reply: what its simulated futures are worth on average (CollabLLM equation 1).

    MR(m_j | t_j^h, g) = E over futures t_j^f of R*(t_j^h + m_j + t_j^f | g)

estimated from `num_samples` futures of at most `window_turns` turns each. Futures that failed for reasons the policy did not
cause are left out of the mean and counted: missing is never zero.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from collab.environments.domain import Environment
from collab.rewards.conversation_reward import Score
from collab.tasks.task import Task
from simulators.blocking import run_blocking
from simulators.conversation import Conversation, ConversationTree, Outcome
from simulators.forward_sampling import Future, future_seeds, sample_future
from simulators.policy import Policy


@dataclass(frozen=True, slots=True)
class ScoredFuture:
    """One future with its reward. `reward` is None where the future or its scoring failed; `outcome` then says whose fault."""

    index: int
    future: Future
    outcome: Outcome
    score: Score | None = None
    error: str | None = None

    @property
    def reward(self) -> float | None:
        return self.score.total if self.score is not None else None


Observer = Callable[[ScoredFuture], None]


def ignore(scored: ScoredFuture) -> None:
    """Observe nothing."""


@dataclass(frozen=True, slots=True)
class MREstimate:
    """An estimated MR.

    `mean` and `std_error` (standard deviation of the futures' rewards over the square root of their number) are taken over the
    futures that earned a reward; `mean` is None when none did, `std_error` also when only one did.

    `extra` are futures that were drawn only to decide a ranking (`simulators.adaptive_sampling`). How many there are depends on
    what they brought, so a mean over them is biased: they enter `ranking_mean`, and nothing else.
    """

    futures: tuple[ScoredFuture, ...]
    extra: tuple[ScoredFuture, ...] = ()

    @property
    def rewards(self) -> list[float]:
        return [future.reward for future in self.futures if future.reward is not None]

    @property
    def used(self) -> int:
        return len(self.rewards)

    @property
    def failed(self) -> int:
        return len(self.futures) - self.used

    @property
    def mean(self) -> float | None:
        rewards = self.rewards
        return math.fsum(rewards) / len(rewards) if rewards else None

    @property
    def std_error(self) -> float | None:
        return standard_error(self.rewards)

    @property
    def ranking_mean(self) -> float | None:
        """The mean over every future drawn; it ranks candidates and is not to be reported."""
        rewards = [future.reward for future in (*self.futures, *self.extra) if future.reward is not None]
        return math.fsum(rewards) / len(rewards) if rewards else None

    @property
    def components(self) -> dict[str, float]:
        """The mean of every reward component over the futures that have it."""
        values: dict[str, list[float]] = {}
        for future in self.futures:
            if future.reward is not None and future.score is not None:
                for name, value in future.score.components.items():
                    values.setdefault(name, []).append(value)
        return {name: math.fsum(each) / len(each) for name, each in values.items()}

    def graft(self, tree: ConversationTree, candidate_id: int) -> list[int]:
        """Add the futures to a tree below their candidate and note the estimate on it; return the futures' last nodes."""
        leaves = [future.future.graft(tree, candidate_id) for future in self.futures]
        record = {
            "mean": self.mean,
            "std_error": self.std_error,
            "used": self.used,
            "failed": self.failed,
            "components": self.components,
            "futures": [_future_record(future, leaf) for future, leaf in zip(self.futures, leaves, strict=True)],
        }
        if self.extra:
            more = [future.future.graft(tree, candidate_id) for future in self.extra]
            record["extra_futures"] = [_future_record(future, leaf) for future, leaf in zip(self.extra, more, strict=True)]
            record["ranking_mean"] = self.ranking_mean
        assert all(leaf is not None for leaf in leaves)
        tree.nodes[candidate_id].annotations["mr"] = record
        return [leaf for leaf in leaves if leaf is not None]


def _future_record(future: ScoredFuture, leaf: int | None) -> dict[str, Any]:
    record: dict[str, Any] = {
        "index": future.index,
        "leaf": leaf,
        "outcome": future.outcome.value,
        "reward": future.reward,
        "components": future.score.components if future.score else {},
    }
    if future.error:
        record["error"] = future.error
    return record


def moved_estimate(record: dict[str, Any], by: int) -> dict[str, Any]:
    """Return what `graft` noted at a candidate, for a tree in which every node's number is greater by so much."""
    moved = dict(record)
    for name in ("futures", "extra_futures"):
        if name in record:
            moved[name] = [{**future, "leaf": future["leaf"] + by} for future in record[name]]
    return moved


def standard_error(values: Sequence[float]) -> float | None:
    """Return the standard error of the mean, with the unbiased (n - 1) variance; None below two values."""
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count)


@dataclass(frozen=True, slots=True)
class MultiturnReward:
    """Estimates MR by forward sampling with `policy` in an environment.

    `observe` is called with every scored future, for progress and for stopping a run that fails too often (it may raise).

    Paper defaults (Table 6): `window_turns` 2 and `num_samples` 3. Window 0 gives the immediate reward of CollabLLM section
    5.1: the conversation is scored once, as it stands. Where only a whole conversation has a worth (`Domain.plays_to_end`) any
    other window goes on to its end.

    Raises:
        ValueError: for a negative window or fewer than one sample.
    """

    environment: Environment
    policy: Policy
    window_turns: int = 2
    num_samples: int = 3
    seed: int = 0
    observe: Observer = ignore

    def __post_init__(self) -> None:
        if self.window_turns < 0:
            raise ValueError(f"window_turns is {self.window_turns}; it must be 0 (score as it stands) or more")
        if self.num_samples < 1:
            raise ValueError(f"num_samples is {self.num_samples}; MR needs at least one future")

    async def estimate(self, conversation: Conversation, task: Task, candidate_index: int = 0) -> MREstimate:
        """Estimate the MR of the reply that `conversation` ends with.

        `candidate_index` tells candidates of the same history apart: it enters the policy's seeds, never the user's.

        Raises:
            ValueError: when the conversation does not end with a reply.
            ConfigurationError: as the models do; nothing else fails the estimate as a whole.
        """
        if not conversation or conversation[-1].role != "assistant":
            raise ValueError("MR is estimated for a reply; this conversation does not end with one")
        count = self.num_samples if self.window_turns else 1
        futures = await asyncio.gather(
            *(self.scored_future(conversation, task, index, candidate_index) for index in range(count))
        )
        return MREstimate(tuple(futures))

    async def scored_future(
        self, conversation: Conversation, task: Task, future_index: int, candidate_index: int = 0
    ) -> ScoredFuture:
        """Sample one future of a conversation and score it."""
        environment = self.environment
        seeds = future_seeds(self.seed, task.id, future_index, candidate_index)
        window = environment.window(self.window_turns, conversation)
        if not conversation[-1].content.strip() or conversation[-1].tool_calls:
            window = 0  # nobody answers a reply without a word, or one that waits for a tool
        user, toolbox = environment.user_for(task), environment.toolbox_for(task)
        future = await sample_future(conversation, user, self.policy, window, seeds, toolbox)
        scored = await score_future(self.environment, task, future, future_index)
        self.observe(scored)
        return scored

    def estimate_blocking(self, conversation: Conversation, task: Task, candidate_index: int = 0) -> MREstimate:
        """Do what `estimate` does, from plain code."""
        return run_blocking(self.estimate(conversation, task, candidate_index))


async def score_future(environment: Environment, task: Task, future: Future, index: int = 0) -> ScoredFuture:
    """Score a sampled future with the environment's R*, unless its outcome is not the policy's doing.

    A conversation in which the policy never had room for a reply has nothing to score, and a reward that is no number is none.
    """
    if not future.outcome.earns_reward or not future.answered:
        return ScoredFuture(index, future, future.outcome, error=future.error)
    score = await environment.reward.score(future.conversation, task)
    if score.failure is not None:
        return ScoredFuture(index, future, score.failure, score, "; ".join(score.errors.values()))
    if score.total is not None and not math.isfinite(score.total):
        return ScoredFuture(index, future, Outcome.JUDGE_ERROR, error=f"the reward is {score.total}, which is no number")
    return ScoredFuture(index, future, future.outcome, score, future.error)
