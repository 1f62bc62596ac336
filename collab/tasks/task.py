"""A task: what a user wants, what a right result looks like, and nothing about who tries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """One task of an environment.

    `goal` is what the simulated user is after; the policy never sees it. `reference` is y_g of CollabLLM equation 3, the
    reference solution the extrinsic reward compares with (None where a reward needs none). `opening` is the user's first
    message where the task fixes it. `metadata` holds whatever else the environment's user and reward need, as plain JSON data.
    """

    id: str
    goal: str
    reference: str | None = None
    opening: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """16 hex digits that differ for tasks that differ in anything but their id."""
        content = json.dumps([self.goal, self.reference, self.opening, dict(self.metadata)], sort_keys=True, default=str)
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]
