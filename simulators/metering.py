"""What one piece of work asked of the models: calls, tokens and seconds by role, whoever made the calls.

    with metered() as meter:
        await play(conversation)
    meter.spent()["judge"].completion_tokens

The meter follows the tasks that are started inside the block. A call that is read back from the journal counts like one that is
made, so a conversation costs the same however often its run was killed; so does a call that two pieces of work share, for each
of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from simulators.chat_models.protocol import Completion


@dataclass(frozen=True, slots=True)
class Spent:
    """Calls, their tokens, and the seconds that their answers took, added up."""

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(slots=True)
class Meter:
    """The completions of every answered call, by role."""

    _answers: dict[str, list[Sequence[Completion]]] = field(default_factory=dict)

    def add(self, role: str, completions: Sequence[Completion]) -> None:
        """Count one answered call."""
        self._answers.setdefault(role, []).append(completions)

    def spent(self) -> dict[str, Spent]:
        """Return what was spent by role; the order of the calls does not matter."""
        return {role: _sum(self._answers[role]) for role in sorted(self._answers)}


def _sum(answers: Sequence[Sequence[Completion]]) -> Spent:
    usages = [completion.usage for completions in answers for completion in completions]
    return Spent(
        calls=len(answers),
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        seconds=math.fsum(max((each.latency_s for each in completions), default=0.0) for completions in answers),
    )


_running: ContextVar[Meter | None] = ContextVar("meter", default=None)


@contextmanager
def metered() -> Iterator[Meter]:
    """Count every call that is answered inside the block, and in tasks that are started inside it."""
    meter = Meter()
    token = _running.set(meter)
    try:
        yield meter
    finally:
        _running.reset(token)


def note(role: str, completions: Sequence[Completion]) -> None:
    """Count an answered call in the meter that runs, if one does."""
    if (meter := _running.get()) is not None:
        meter.add(role, completions)
