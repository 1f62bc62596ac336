"""R* chosen term by term in a configuration: `[{name: accuracy}, {name: my_rewards:politeness, weight: 0.5, arguments: {...}}]`.

A term is named as a component of the domain's own R* (which then scores as it does there), as a built-in component
(`collab.rewards.presets.COMPONENTS`, with arguments), or as `module:function`: a function that gets `(resources, **arguments)`
and returns a `RewardComponent` (docs/own_reward.md). Weight 0 measures without rewarding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from collab.environments.domain import Domain, Resources
from collab.rewards.component import RewardComponent
from collab.rewards.conversation_reward import ConversationReward
from collab.rewards.presets import COMPONENTS, RewardTools, build_component
from simulators.errors import ConfigurationError, did_you_mean
from simulators.object_reference import checked_arguments, load_object


@dataclass(slots=True)
class RewardTerm:
    """One term of R*: what it is called (see the module), its weight, and the arguments of the component."""

    name: str
    weight: float = 1.0
    arguments: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight):
            raise ConfigurationError(f"reward.terms: the weight of {self.name} is {self.weight}; it must be a finite number")


def with_reward(domain: Domain, terms: Sequence[RewardTerm]) -> Domain:
    """Return a domain whose R* has these terms and no others; none at all leave it its own."""
    if not terms:
        return domain

    def make_reward(resources: Resources) -> ConversationReward:
        weighted = tuple((_component(term, domain, resources), term.weight) for term in terms)
        try:
            return ConversationReward(weighted)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None

    return replace(domain, make_reward=make_reward)


def _component(term: RewardTerm, domain: Domain, resources: Resources) -> RewardComponent:
    """Return the component of a term.

    Raises:
        ConfigurationError: an unknown name (the nearest is named), a wrong argument, or a component that lacks what it needs.
    """
    if ":" in term.name:
        return _of_your_own(term, resources)
    if term.name in COMPONENTS and term.arguments:
        return build_component(term.name, term.arguments, RewardTools(resources.count_tokens, resources.judge_model))
    own = {component.name: component for component, _ in domain.make_reward(resources).terms}
    if term.name in own and term.arguments:
        raise ConfigurationError(f"reward component {term.name} is that of {domain.name}, which takes no arguments here")
    if term.name in own:
        return own[term.name]
    if term.name in COMPONENTS:
        return build_component(term.name, {}, RewardTools(resources.count_tokens, resources.judge_model))
    known = sorted({*own, *COMPONENTS})
    raise ConfigurationError(
        f"unknown reward component {term.name!r}{did_you_mean(term.name, known)}; known are {', '.join(known)} and any "
        "module:function"
    )


def _of_your_own(term: RewardTerm, resources: Resources) -> RewardComponent:
    what = f"reward component {term.name}"
    function = load_object(term.name, "reward component")
    component = function(resources, **checked_arguments(function, term.arguments, what, word="argument", given=1))
    if not isinstance(component, RewardComponent):
        raise ConfigurationError(f"{what} is none: its function returned a {type(component).__name__}")
    return component
