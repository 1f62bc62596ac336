"""Splits by task: every conversation about a task is in one split, whatever else is built later.

A task's split follows from a hash of its group alone, so it depends on no other task and on no seed: shards agree without talking
to each other, a dataset that grows moves nothing, and two datasets about the same tasks have the same held-out ones. Shares hold
on average.

The group is the task itself, unless it says otherwise: questions about one story, conversations about one problem.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from simulators.conversation import ConversationTree
from simulators.errors import ConfigurationError
from simulators.seeds import derive_seed

WHOLE = ""
"""The name of the only split where a dataset is not split."""

_SEEDS = 1 << 63


def check_shares(shares: Mapping[str, float]) -> None:
    """Check the shares of splits, by name.

    Raises:
        ConfigurationError: when a share is not positive, or they do not add up to 1.
    """
    for name, share in shares.items():
        if not name.isidentifier():
            raise ConfigurationError(f"splits: {name!r} is no name for a split; use letters, digits and _ (train, validation)")
        if not share > 0:
            raise ConfigurationError(f"splits: the share of {name} is {share}; it must be above 0")
    if shares and not math.isclose(math.fsum(shares.values()), 1.0, abs_tol=1e-6):
        raise ConfigurationError(f"splits: the shares add up to {math.fsum(shares.values()):g}; they must add up to 1")


def split_of(tree: ConversationTree, shares: Mapping[str, float]) -> str:
    """Return the split that a tree belongs to, `WHOLE` where there are no splits."""
    if not shares:
        return WHOLE
    point = derive_seed("split", group_of(tree)) / _SEEDS
    for name, share in shares.items():
        point -= share
        if point < 0:
            return name
    return name


def group_of(tree: ConversationTree) -> str:
    """Return what must not be torn apart: the group that the tree or its task names, else the task."""
    task = tree.metadata.get("task")
    group = tree.metadata.get("group") or (task.get("group") if isinstance(task, Mapping) else None)
    return str(group) if group else tree.task_id
