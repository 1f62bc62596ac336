"""The environment's entry in the registry: `evolving_gsm8k`."""

from __future__ import annotations

from dataclasses import dataclass

from collab.environments.evolving_intent.gsm8k.builder import convert_record
from collab.environments.evolving_intent.intent_domain import IntentDomain, domain_factory
from collab.environments.evolving_intent.rendering import MATH
from collab.rewards.accuracy import MathAccuracy, compare
from collab.rewards.extraction import answer
from collab.tasks.held_out import in_gsm8k_test
from collab.tasks.task import Task


@dataclass(frozen=True, slots=True)
class NumberVerifier:
    """Compares the number that a reply states with a target, as `MathAccuracy` does for plain numbers."""

    async def gives(self, reply: str, target: str, task: Task) -> bool:
        """Return whether the reply's last stated answer equals the target."""
        found = answer(reply)
        return found is not None and compare(target, found) is True

    def answers(self, reply: str) -> bool:
        """Return whether the reply states a number."""
        found = answer(reply)
        return found is not None and any(character.isdigit() for character in found)


GSM8K = IntentDomain(
    name="evolving_gsm8k",
    summary="GSM8K whose user tells the problem bit by bit, corrects values and changes the question before the final one.",
    phrases=MATH,
    convert=convert_record,
    verifier=MathAccuracy,
    reply_verifier=NumberVerifier,
    held_out=in_gsm8k_test,
)


domain = domain_factory(GSM8K)
"""The factory of `evolving_gsm8k`; its options are `domain_of`'s, documented in `docs/evolving_intent.md`."""
