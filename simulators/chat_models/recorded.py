"""A chat model that is only known by name: what stands behind the journal in a replay, where no model is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from simulators.chat_models.protocol import ChatRequest, Completion
from simulators.errors import ReplayMiss


@dataclass(frozen=True, slots=True)
class RecordedModel:
    """Has the identity of a model that answered once, and answers nothing itself."""

    name: str
    weights_version: str

    async def complete(self, request: ChatRequest) -> list[Completion]:
        """Refuse: a replay makes no calls.

        Raises:
            ReplayMiss: always.
        """
        raise ReplayMiss(f"a replay makes no calls, and {self.name} was asked for one that is not on record")

    async def aclose(self) -> None:
        """Nothing to release."""
