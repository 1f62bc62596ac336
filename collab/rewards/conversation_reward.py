"""R*, the worth of a whole conversation (CollabLLM equations 2 to 4).

R*(t | g) = R_ext(t, g) + R_int(t): a weighted sum of components, all of them kept beside the sum. With weights 1 and the
components {extrinsic, token_cost, interactivity} it is the paper's equation term by term.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from collab.rewards.component import RewardComponent, ScoringError
from collab.rewards.loop_turns import turn
from collab.tasks.task import Task
from simulators.conversation import Conversation, Outcome


@dataclass(frozen=True, slots=True)
class Score:
    """R* of one conversation. `total` is None when a component with a weight failed; `failure` then says whose fault it was."""

    total: float | None
    components: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    failure: Outcome | None = None


@dataclass(frozen=True, slots=True)
class ConversationReward:
    """A weighted sum of components. Weight 0 measures a component without rewarding it.

    Raises:
        ValueError: when two components share a name.
    """

    terms: Sequence[tuple[RewardComponent, float]]

    def __post_init__(self) -> None:
        names = [component.name for component, _ in self.terms]
        if len(set(names)) < len(names):
            raise ValueError(f"reward: component names must differ, got {names}")

    async def score(self, conversation: Conversation, task: Task) -> Score:
        """Score one conversation, all components at once; a failed component leaves the others standing."""
        results = await asyncio.gather(*(_attempt(component, conversation, task) for component, _ in self.terms))
        components: dict[str, float] = {}
        errors: dict[str, str] = {}
        failure: Outcome | None = None
        total = 0.0
        for (component, weight), result in zip(self.terms, results, strict=True):
            if isinstance(result, ScoringError):
                errors[component.name] = str(result)
                if weight:
                    failure = failure or result.outcome
            else:
                components[component.name] = result
                total += weight * result
        return Score(None if failure else total, components, errors, failure)


async def _attempt(component: RewardComponent, conversation: Conversation, task: Task) -> float | ScoringError:
    await turn()  # rules compute here and now; a thousand conversations must not do so in one go
    try:
        return await component.score(conversation, task)
    except ScoringError as error:
        return error
