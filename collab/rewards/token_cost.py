"""The price of a conversation in tokens: -min(lambda * TokenCount(t), 1), the first term of CollabLLM equation 4."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from collab.tasks.task import Task
from simulators.conversation import Conversation

PAPER_PENALTY = {"math": 5e-4, "code": 5e-4, "document": 1e-4}
"""Lambda per domain: CollabLLM Table 6."""


@dataclass(frozen=True, slots=True)
class TokenCost:
    """Tokens that the user reads (assistant messages) and writes (user messages), times `token_penalty`, capped at 1, negative.

    `count_tokens` is the policy's tokenizer, or any other that is used throughout. System prompts are neither read nor written
    by the user and do not count. `counted="read"` with `capped=False` is the reference implementation's figure, kept for the
    `upstream` preset: it leaves out what the user writes, and a long conversation can cost more than any answer is worth.
    """

    count_tokens: Callable[[str], int]
    token_penalty: float
    counted: Literal["read_and_written", "read"] = "read_and_written"
    capped: bool = True
    name: str = "token_cost"
    source: str = "CollabLLM equation 4"

    def __post_init__(self) -> None:
        if not self.token_penalty >= 0:
            raise ValueError(f"token_penalty is {self.token_penalty}; it must not be negative")

    @property
    def value_range(self) -> tuple[float, float]:
        return (-1.0 if self.capped else -math.inf, 0.0)

    async def score(self, conversation: Conversation, task: Task) -> float:
        """Return the negative cost; it never fails."""
        roles = {"assistant"} if self.counted == "read" else {"assistant", "user"}
        tokens = sum(self.count_tokens(message.content) for message in conversation if message.role in roles)
        cost = self.token_penalty * tokens
        return -min(cost, 1.0) if self.capped else -cost
