"""Scripted assistants: what a policy of each kind would do, for any record whose gold answer is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from collab.environments.lost_in_conversation.schema import Instruction
from simulators.chat_models.protocol import ChatRequest
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.conversation import Conversation
from simulators.policy import Policy
from simulators.users.shard_tracking import hidden_shards
from simulators.users.sharded import CONCAT_HEADER

QUESTION = "Is there anything else that I should know?"


class Assistants:
    """Assistants for a set of instructions, given the right and a wrong answer (whole replies) of each.

    They find out what a conversation is about from its first message. One problem may be cut in several ways that open alike;
    those have the same right answer.
    """

    def __init__(
        self, instructions: Sequence[Instruction], right: Callable[[Instruction], str], wrong: Callable[[Instruction], str]
    ) -> None:
        self._about: dict[str, list[Instruction]] = defaultdict(list)
        for instruction in instructions:
            first_line = instruction.shards[0].text.split("\n")[0]
            for opening in {instruction.full, instruction.shards[0].text, f"{CONCAT_HEADER}\n- {first_line}"}:
                self._about[opening].append(instruction)
        self._right, self._wrong = right, wrong

    def instructions_of(self, conversation: Conversation) -> list[Instruction]:
        """Return the instructions that a conversation may be about."""
        opening = conversation[0].content
        if not opening.startswith(CONCAT_HEADER):
            return self._about[opening]
        found = self._about["\n".join(opening.split("\n")[:2])]
        return [each for each in found if opening.startswith(f"{CONCAT_HEADER}\n- {each.shards[0].text}\n")] or found

    def instruction_of(self, conversation: Conversation) -> Instruction:
        return self.instructions_of(conversation)[0]

    def knows_all(self, conversation: Conversation) -> bool:
        opening, found = conversation[0].content, self.instructions_of(conversation)
        if opening.startswith(CONCAT_HEADER) or any(opening == each.full for each in found):
            return True
        return any(not hidden_shards(conversation, each.shard_texts) for each in found)

    def policy(self, reply: Callable[[Conversation], str], name: str) -> Policy:
        def script(request: ChatRequest, rng: object) -> str:
            return reply(tuple(message for message in request.messages if message.role != "system"))

        return Policy(ScriptedChatModel(script, name=name), name=name)

    def perfect(self) -> Policy:
        """Asks until it knows everything, then gives the right answer."""

        def reply(conversation: Conversation) -> str:
            return self._right(self.instruction_of(conversation)) if self.knows_all(conversation) else QUESTION

        return self.policy(reply, "perfect")

    def premature(self) -> Policy:
        """Answers at once, and is right if it knew everything at that point. Later it mends its answer for every second problem
        only, as assistants do who are led astray by their own first answer."""

        def reply(conversation: Conversation) -> str:
            instruction = self.instruction_of(conversation)
            astray = len(conversation) > 1 and sum(instruction.id.encode()) % 2 == 0
            return self._right(instruction) if self.knows_all(conversation) and not astray else self._wrong(instruction)

        return self.policy(reply, "premature")

    def stubborn(self) -> Policy:
        """Answers at once and repeats that answer for ever: right only where everything was said in the first message."""

        def reply(conversation: Conversation) -> str:
            instruction = self.instruction_of(conversation)
            return self._right(instruction) if self.knows_all(conversation[:1]) else self._wrong(instruction)

        return self.policy(reply, "stubborn")


def answers(right: Mapping[str, str], wrong: str) -> tuple[Callable[[Instruction], str], Callable[[Instruction], str]]:
    """Return functions from an instruction to its right and its wrong reply."""
    return (lambda instruction: right[instruction.id]), (lambda instruction: wrong)
