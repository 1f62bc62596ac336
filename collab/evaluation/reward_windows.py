"""The same replies under different rewards: immediate (window 0) and MR with growing windows (CollabLLM Figures 4 and 6)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collab.environments.domain import Environment
from collab.mr import MREstimate, MultiturnReward
from collab.tasks.task import Task
from simulators.conversation import Message
from simulators.forward_sampling import Future, user_turn
from simulators.policy import Policy


@dataclass(frozen=True, slots=True)
class ReplyUnderWindows:
    """One reply to a task's opening: its MR estimate for each window."""

    task_id: str
    kind: str
    reply: str
    estimates: Mapping[int, MREstimate]


async def rewards_under_windows(
    environment: Environment,
    policy: Policy,
    replies: Sequence[tuple[Task, str, str]],
    *,
    windows: Sequence[int] = (0, 1, 2),
    num_samples: int = 3,
    seed: int = 0,
) -> list[ReplyUnderWindows]:
    """Score given first replies, as (task, kind of reply, text), under every window.

    The replies of one task face the same simulated users, so what differs between them is the reply's doing.
    """

    async def one(task: Task, kind: str, text: str) -> ReplyUnderWindows:
        asked = Future(())
        await user_turn(asked, environment.user_for(task), lambda author, turn: seed)
        conversation = (*asked.conversation, Message("assistant", text))
        rewards = [MultiturnReward(environment, policy, window, num_samples, seed) for window in windows]
        estimates = await asyncio.gather(*(reward.estimate(conversation, task) for reward in rewards))
        return ReplyUnderWindows(task.id, kind, text, dict(zip(windows, estimates, strict=True)))

    return list(await asyncio.gather(*(one(*reply) for reply in replies)))


def mean_by_window(results: Sequence[ReplyUnderWindows], component: str | None = None) -> dict[str, dict[int, float]]:
    """Return {kind: {window: mean over replies}} of R*, or of one of its components; unscored estimates are left out."""
    values: dict[str, dict[int, list[float]]] = {}
    for result in results:
        for window, estimate in result.estimates.items():
            value = estimate.mean if component is None else estimate.components.get(component)
            if value is not None:
                values.setdefault(result.kind, {}).setdefault(window, []).append(value)
    return {kind: {window: sum(each) / len(each) for window, each in by.items()} for kind, by in values.items()}
