"""Credit for turns: how the rewards of a group of conversations become advantages of their policy turns.

An episode has policy turns m_1..m_K; a group is G episodes of one task (or G replies to one history).

- `outcome` (TRL, GRPO): every turn gets R* less the group's mean.
- `mr_difference`: A_j = MR(t_1:j) - MR(t_1:j-1), where MR(t_1:K) is R* of the finished episode and MR(t_1:0) the mean of
  MR(t_1:1) over the group. It telescopes, sum_j A_j = R* - MR(t_1:0), so as potential-based shaping (Ng et al. 1999) it
  leaves the best policy unchanged.
- `mr_branch`: the rows of a group are G replies to the same history, with their MR as reward; then it is `outcome`.

A missing value is never a zero: an episode without R* has no advantages and is left out of its group's mean, and turns between
which no MR is known share the change over them in equal parts, which keeps the sum.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

_EPSILON = 1e-4
_ZERO = 1e-6  # rounding of a mean, over a spread of _EPSILON, stays far below it
"""Added to what is divided by, as TRL does."""


@dataclass(frozen=True, slots=True)
class TurnValues:
    """What credit is computed from: the episode's group, and MR after each of its policy turns, the last of which is R*."""

    group: Hashable
    worths: tuple[float | None, ...]

    @property
    def reward(self) -> float | None:
        return self.worths[-1] if self.worths else None


Advantages = list[list[float] | None]
"""One advantage per policy turn of each episode; None for an episode that is left out."""


def outcome_advantages(episodes: Sequence[TurnValues], scale: str) -> Advantages:
    """Return R* less the group's mean, for every turn alike; `scale` is group, batch or none (what the spread is taken over)."""
    rewards = _by_group(episodes)
    means = {group: math.fsum(values) / len(values) for group, values in rewards.items() if values}
    deviations = {group: [value - means[group] for value in values] for group, values in rewards.items() if values}
    spreads = {group: _deviation(values) for group, values in rewards.items()}
    if scale == "batch":
        spread = _deviation([value for values in deviations.values() for value in values])
        spreads = dict.fromkeys(spreads, spread)
    result: Advantages = []
    for episode in episodes:
        if (reward := episode.reward) is None:
            result.append(None)
            continue
        advantage = reward - means[episode.group]
        if scale != "none":
            advantage /= spreads[episode.group] + _EPSILON
        result.append([advantage] * len(episode.worths))
    return result


def mr_differences(episodes: Sequence[TurnValues]) -> Advantages:
    """Return A_j = MR(t_1:j) - MR(t_1:j-1) for every turn, as they are (see the module); they sum to R* - MR(t_1:0)."""
    first: dict[Hashable, list[float]] = defaultdict(list)
    for episode in episodes:
        if episode.reward is not None and (worth := episode.worths[0]) is not None:
            first[episode.group].append(worth)
    for group, rewards in _by_group(episodes).items():
        if group not in first:  # no MR of a first turn is known: the mean reward is as good a start
            first[group] = rewards
    return [
        None if episode.reward is None else _differences(math.fsum(start) / len(start), episode.worths)
        for episode in episodes
        for start in [first[episode.group]]
    ]


def _differences(start: float, worths: Sequence[float | None]) -> list[float]:
    result: list[float] = []
    before, waiting = start, 0
    for worth in worths:
        waiting += 1
        if worth is None:
            continue
        result += [(worth - before) / waiting] * waiting
        before, waiting = worth, 0
    return result


def mr_difference_advantages(episodes: Sequence[TurnValues], scale: str) -> Advantages:
    """Return the MR differences over their root mean square, in each group, in the batch, or not at all.

    Every episode weighs the same in the mean square, however many turns it has: else groups with long conversations would be
    scaled by them alone. They are not centred: A_j is a difference from a baseline already, and a second one that depends on
    the number of turns is what biases (verl#7244).
    """
    differences = mr_differences(episodes)
    if scale == "none":
        return differences
    squares: dict[Hashable, list[float]] = defaultdict(list)
    for episode, turns in zip(episodes, differences, strict=True):
        if turns:
            key = episode.group if scale == "group" else None
            squares[key].append(math.fsum(value * value for value in turns) / len(turns))
    sizes = {key: math.sqrt(math.fsum(values) / len(values)) for key, values in squares.items()}
    return [
        None if turns is None else [value / (sizes[episode.group if scale == "group" else None] + _EPSILON) for value in turns]
        for episode, turns in zip(episodes, differences, strict=True)
    ]


def turn_advantages(episodes: Sequence[TurnValues], credit: str, scale: str) -> Advantages:
    """Return the advantages of every policy turn under a kind of credit."""
    return mr_difference_advantages(episodes, scale) if credit == "mr_difference" else outcome_advantages(episodes, scale)


def without_dead_groups(episodes: Sequence[TurnValues], advantages: Advantages) -> Advantages:
    """Leave out the episodes of groups in which every advantage is 0 (DAPO, arXiv 2503.14476, section 3.2).

    They move nothing, but a loss that is a mean over tokens counts theirs, so that the other groups would move less.
    """
    alive = {
        episode.group
        for episode, turns in zip(episodes, advantages, strict=True)
        if turns is not None and any(abs(value) > _ZERO for value in turns)
    }
    return [turns if episode.group in alive else None for episode, turns in zip(episodes, advantages, strict=True)]


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """How many groups there are, how many teach nothing because their rewards are all equal, and how many failed altogether."""

    groups: int
    dead: int
    failed: int


def count_groups(episodes: Sequence[TurnValues]) -> GroupCounts:
    """Count the groups of a batch. A group with one reward left has nothing to compare and is dead too."""
    rewards = _by_group(episodes)
    dead = sum(bool(values) and max(values) - min(values) < 1e-9 for values in rewards.values())
    return GroupCounts(len(rewards), dead, sum(not values for values in rewards.values()))


def _by_group(episodes: Sequence[TurnValues]) -> dict[Hashable, list[float]]:
    rewards: dict[Hashable, list[float]] = {episode.group: [] for episode in episodes}
    for episode in episodes:
        if episode.reward is not None:
            rewards[episode.group].append(episode.reward)
    return rewards


def _deviation(values: Sequence[float]) -> float:
    """Return the standard deviation with n - 1, 0 below two values."""
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
