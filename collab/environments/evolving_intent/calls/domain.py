"""The environment's entry in the registry: `evolving_calls`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from collab.environments.evolving_intent.calls.builder import convert_record
from collab.environments.evolving_intent.conversion import Conversion
from collab.environments.evolving_intent.intent_domain import IntentDomain, domain_factory
from collab.environments.evolving_intent.rendering import Phrases
from collab.rewards.calls import CallMatch
from collab.rewards.extraction import call_list
from collab.tasks.task import Task
from simulators.conversation import Message

CALL_PHRASES = Phrases(
    reveal=("One more thing: {}", "I should add this: {}", "You also need to know: {}"),
    reveal_many=("A few more things: {}", "I should add this: {}", "You also need to know: {}"),
    revision=("Sorry, that was wrong. {}", "Wait, I mixed something up. {}", "Correction: {new}, not {old}. {}"),
    switch=("Thanks. Now something else. {}", "OK, next. {}", "Good. What I need now is this. {}"),
    switch_request=("Thanks. Now something else. {}", "OK, next. {}", "Good. What I need now is another thing. {}"),
    repeat=("Could you do that again? {}", "Please check that once more. {}"),
    function_first=True,
)


@dataclass(frozen=True, slots=True)
class CallVerifier:
    """Compares the calls in a reply with a target's expected calls."""

    match: CallMatch = field(default_factory=CallMatch)

    async def gives(self, reply: str, target: str, task: Task) -> bool:
        """Return whether the reply's calls are the expected ones.

        Raises:
            ScoringError: as `CallMatch` does.
        """
        asked = replace(task, metadata={**task.metadata, "reference_answer": json.loads(target)})
        return await self.match.score((Message("assistant", reply),), asked) == 1.0

    def answers(self, reply: str) -> bool:
        """Return whether the reply holds calls."""
        return call_list(reply) is not None


def _metadata(conversion: Conversion) -> Mapping[str, Any]:
    details = conversion.task.details
    return {"reference_answer": details["calls"], "function": details["tools"]}


CALLS = IntentDomain(
    name="evolving_calls",
    summary="Function calling (BFCL) whose user gives parameters bit by bit, corrects them, and wants other tools first.",
    phrases=CALL_PHRASES,
    convert=convert_record,
    verifier=CallMatch,
    reply_verifier=CallVerifier,
    metadata=_metadata,
)

domain = domain_factory(CALLS)
"""The factory of `evolving_calls`; its options are `domain_of`'s."""
