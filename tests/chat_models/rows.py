"""Rows to draw, as the dispatcher makes them, for tests of what stands behind it."""

from typing import Any

from simulators.chat_models.dispatcher import Request, Row
from simulators.chat_models.protocol import SamplingSettings


def row(sampling: SamplingSettings, seed: int = 0, prompt_ids: list[int] | None = None) -> Row:
    """A row of a request that nobody waits for."""
    answer: Any = None
    return Row(Request(prompt_ids or [0], [], sampling, None, None, answer), seed)
