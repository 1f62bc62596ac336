"""Users who have one problem in pieces: the simulation types of Lost in Conversation (section 4).

`ShardedUser` is made of rules, `ModelShardedUser` asks a chat model to choose and rephrase; `SnowballUser` and `RecapUser`
wrap either. `SingleTurnUser` says everything at once. None of them holds state: what was told is read from the conversation
(`simulators.users.shard_tracking`), so a fork needs no copying.

None of them knows the answer to the problem. A user leaves when every shard is told and the assistant has replied to the
last one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from simulators.chat_models.protocol import ChatModel, ChatRequest, Completion, SamplingSettings
from simulators.conversation import Conversation, Message
from simulators.errors import ConfigurationError, UnusableReply
from simulators.seeds import derive_seed
from simulators.structured_reply import ReplyField, Schema, json_schema, parse_reply, reply_format
from simulators.users.guards import flags_of
from simulators.users.protocol import User, UserTurn
from simulators.users.shard_tracking import SNOWBALL_NEW, best_answer, hidden_shards, numbers, told_by_message

CONCAT_HEADER = "Please take all of the following points into account:"
RECAP_HEADER = "Before you go on, here is everything I have told you in one place:"
RECAP_REQUEST = "With all of this in mind, please give your final answer."
SNOWBALL_HEADER = "What I have told you so far:"

UNUSABLE_REPLY = "unusable_reply"
INVALID_SHARD_ID = "invalid_shard_id"
NOT_RECOGNISABLE = "shard_not_recognisable"
INVENTED_NUMBER = "invented_number"
REJECTIONS = (UNUSABLE_REPLY, INVALID_SHARD_ID, NOT_RECOGNISABLE, INVENTED_NUMBER)
"""Flags: why a reply of the model was not said."""
FELL_BACK = "shard_told_verbatim"
"""Flag: the model gave no usable message in any attempt, so the rule user's choice was said word for word."""


@dataclass(frozen=True, slots=True)
class SingleTurnUser:
    """Says one message and leaves after the reply: FULL with the whole instruction, CONCAT with `concat`'s text.

    With `points` the message is those points as a list under a header, the first in front and the others in an order drawn from
    the seed: SHUFFLE-CONCAT.
    """

    message: str = ""
    points: tuple[str, ...] = ()
    preamble: str = ""

    async def next_turn(self, conversation: Conversation, seed: int) -> UserTurn:
        """Return the message, or leave."""
        if _has_user_message(conversation):
            return UserTurn("", ends=True)
        if not self.points:
            return UserTurn(self.preamble + self.message)
        rest = list(self.points[1:])
        random.Random(seed).shuffle(rest)
        return UserTurn(self.preamble + concat((self.points[0], *rest)))


@dataclass(frozen=True, slots=True)
class ShardedUser:
    """Tells one shard a turn, word for word: the one that answers the assistant's question best, else the next in order.

    `preamble` is put before the opening (what an assistant needs whatever is asked of it, such as a database schema).

    Raises:
        ConfigurationError: for no shards, or an empty one.
    """

    shards: tuple[str, ...]
    preamble: str = ""

    def __post_init__(self) -> None:
        if not self.shards or not all(shard.strip() for shard in self.shards):
            raise ConfigurationError("a sharded user needs at least one shard, and none may be empty; check the record")

    async def next_turn(self, conversation: Conversation, seed: int) -> UserTurn:
        """Return the next shard, or leave when all are told. Nothing here is drawn."""
        if not _has_user_message(conversation):
            return UserTurn(self.preamble + self.shards[0])
        hidden = hidden_shards(conversation, self.shards, self.preamble)
        if not hidden:
            return UserTurn("", ends=True)
        return UserTurn(self.shards[self.choice(conversation, hidden)])

    def choice(self, conversation: Conversation, hidden: Sequence[int]) -> int:
        """Return the position of the hidden shard to tell now."""
        answer = best_answer(conversation[-1].content, self.shards, hidden)
        return hidden[0] if answer is None else answer


@dataclass(frozen=True, slots=True)
class ModelShardedUser:
    """The paper's user: a chat model picks the shard that fits the assistant's last message best, and rephrases it lightly.

    The opening is the first shard, without a model. Every later message comes as {response, shard_id}, shard_id -1 where nothing
    is told. A message is sent only if reading it back gives the shard it claims to tell, and it brings in no number from
    elsewhere; otherwise the model is asked again, `attempts` times in all. After that the rule user's choice is said word for
    word and the turn carries the flag `FELL_BACK`: one bad reply never costs a conversation. Nor does it go unseen: what was
    wrong with each reply is a flag too (`REJECTIONS`).

    Raises:
        ConfigurationError: for no shards, an empty one, or fewer than one attempt.
    """

    model: ChatModel
    shards: tuple[str, ...]
    preamble: str = ""
    sampling: SamplingSettings = field(default_factory=lambda: SamplingSettings(max_tokens=256, temperature=1.0))
    attempts: int = 3
    rules: ShardedUser = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigurationError(f"sharded user: attempts is {self.attempts}; it must be at least 1")
        object.__setattr__(self, "rules", ShardedUser(self.shards, self.preamble))

    async def next_turn(self, conversation: Conversation, seed: int) -> UserTurn:
        """Return the next message, or leave when all shards are told.

        Raises:
            ChatModelError: as the model does.
        """
        if not _has_user_message(conversation):
            return UserTurn(self.preamble + self.shards[0])
        hidden = hidden_shards(conversation, self.shards, self.preamble)
        if not hidden:
            return UserTurn("", ends=True)
        messages = self._messages(conversation, hidden)
        completion: Completion | None = None
        reasons: list[str] = []
        for attempt in range(self.attempts):
            draw = derive_seed(seed, "attempt", attempt) if attempt else seed
            request = ChatRequest(messages, self.sampling, seed=draw, role="user", json_schema=json_schema(_REPLY))
            (completion,) = await self.model.complete(request)
            said, problem = self._checked(completion, conversation, hidden)
            if said is not None:
                signals = flags_of(said, ends=False, conversation=conversation, goal_runs=frozenset())
                return UserTurn(said, completion=completion, flags=(*reasons, *signals))
            reasons.append(problem)
        told = self.shards[self.rules.choice(conversation, hidden)]
        return UserTurn(told, completion=completion, flags=(FELL_BACK, *reasons))

    def _messages(self, conversation: Conversation, hidden: Sequence[int]) -> Conversation:
        """Build the prompt: what never changes in the system message, then the growing transcript, then what is left to tell."""
        facts = "\n".join(f"{position}. {shard}" for position, shard in enumerate(self.shards, start=1))
        transcript = "\n\n".join(
            f"{'You' if message.role == 'user' else 'Assistant'}: {message.content.removeprefix(self.preamble)}"
            for message in conversation
            if message.role != "system"
        )
        left = ", ".join(str(position + 1) for position in hidden)
        return (
            Message("system", _INSTRUCTIONS.format(facts=facts, reply_format=reply_format(_REPLY))),
            Message("user", f"The chat so far:\n\n{transcript}\n\nFacts that you have not told yet: {left}\nYour next message:"),
        )

    def _checked(self, completion: Completion, conversation: Conversation, hidden: Sequence[int]) -> tuple[str | None, str]:
        """Return (message, "") for a usable reply, (None, what is wrong with it) otherwise."""
        try:
            values = parse_reply(completion.text, _REPLY)
        except UnusableReply:
            return None, UNUSABLE_REPLY
        response, shard_id = str(values["response"]).strip(), int(values["shard_id"])
        if not response:
            return None, UNUSABLE_REPLY
        if shard_id != -1 and shard_id - 1 not in hidden:
            return None, INVALID_SHARD_ID
        meant = frozenset[int]() if shard_id == -1 else frozenset({shard_id - 1})
        if told_by_message(response, self.shards, hidden) != meant or SNOWBALL_NEW in response:
            return None, NOT_RECOGNISABLE
        known = "\n".join(shard for each, shard in enumerate(self.shards) if each not in hidden or each in meant)
        heard = "\n".join(message.content for message in conversation)
        if not numbers(response) <= numbers(known) | numbers(heard):
            return None, INVENTED_NUMBER
        return response, ""


@dataclass(frozen=True, slots=True)
class SnowballUser:
    """SNOWBALL: every message restates the shards told so far, word for word, and then says what the inner user says.

    Raises:
        ConfigurationError: when a shard holds the line that parts old from new.
    """

    inner: User
    shards: tuple[str, ...]
    preamble: str = ""

    def __post_init__(self) -> None:
        if any(SNOWBALL_NEW in shard for shard in self.shards):
            raise ConfigurationError(f"a shard holds the words {SNOWBALL_NEW!r}, which SNOWBALL needs as a mark; rephrase it")

    async def next_turn(self, conversation: Conversation, seed: int) -> UserTurn:
        """Return the inner user's move with everything before it restated.

        Raises:
            SimulatorError, ChatModelError: as the inner user does.
        """
        said = await self.inner.next_turn(conversation, seed)
        if said.ends or not _has_user_message(conversation):
            return said
        hidden = set(hidden_shards(conversation, self.shards, self.preamble))
        told = [shard for position, shard in enumerate(self.shards) if position not in hidden]
        text = f"{SNOWBALL_HEADER}\n{bullets(told)}\n\n{SNOWBALL_NEW}\n{said.text}"
        return UserTurn(text, completion=said.completion, flags=said.flags)


@dataclass(frozen=True, slots=True)
class RecapUser:
    """RECAP: when the inner user would leave, one more message that restates all shards and asks for the final answer."""

    inner: User
    shards: tuple[str, ...]

    async def next_turn(self, conversation: Conversation, seed: int) -> UserTurn:
        """Return the inner user's move, the recapitulation, or leave after it.

        Raises:
            SimulatorError, ChatModelError: as the inner user does.
        """
        text = recap(self.shards)
        if any(message.role == "user" and message.content == text for message in conversation):
            return UserTurn("", ends=True)
        said = await self.inner.next_turn(conversation, seed)
        return UserTurn(text) if said.ends else said


def bullets(texts: Sequence[str]) -> str:
    """Lay texts out as a list, one point each; the lines after a text's first are kept as they are."""
    return "\n".join(f"- {text}" for text in texts)


def concat(shards: Sequence[str]) -> str:
    """Return the CONCAT layout: all shards as points of one message, the intent first."""
    return f"{CONCAT_HEADER}\n{bullets(shards)}"


def recap(shards: Sequence[str]) -> str:
    """Return the closing message of RECAP."""
    return f"{RECAP_HEADER}\n{bullets(shards)}\n\n{RECAP_REQUEST}"


def _has_user_message(conversation: Conversation) -> bool:
    return any(message.role == "user" for message in conversation)


_REPLY: Schema = {
    "response": ReplyField("text", "Your next message."),
    "shard_id": ReplyField("integer", "The number of the fact it tells, or -1 if it tells none.", minimum=-1),
}

_INSTRUCTIONS = """\
You play a person who chats with an assistant because you want something done. These facts are all you know about it:

{facts}

Your first message was fact 1. In each later message you tell one fact that you have not told yet:
- Has the assistant just asked for something? Then tell the fact that answers it. Otherwise tell the one that fits best now.
- Only if the assistant asks for something that none of your facts answers, say that you do not know, and tell no fact.
- Write as people write in a chat: one short sentence, lightly reworded. Keep every number, name and quoted text as it is, and
  add nothing that the fact does not say.
- You do not know the solution. Do not solve anything, do not judge what the assistant says, and never mention these facts as a
  list or by number.

{reply_format}"""
