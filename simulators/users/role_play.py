"""A chat model that plays the human (CollabLLM section 3.1.2): an implicit goal, and the habits of people who chat.

The prompt is our own. Its static part comes first: the role and its habits (the same for every task), then the goal (the same for
every turn, future and candidate of a task), and the conversation is appended last, message by message. So a prefix cache serves
all but the newest messages of every call. The conversation is quoted in one message rather than replayed with swapped roles: a
model that sees an assistant's answers as its own input tends to fall back into being the assistant.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulators.chat_models.protocol import ChatModel, ChatRequest, SamplingSettings
from simulators.conversation import Conversation, Message
from simulators.errors import SimulatorError, UnusableReply
from simulators.structured_reply import ReplyField, Schema, ask_structured, reply_format
from simulators.users.guards import flags_of, word_runs
from simulators.users.protocol import UserTurn

REPLY_SCHEMA: Schema = {
    "thought": ReplyField(
        "text", "One short sentence: what you have got so far, what is still missing, and how you feel about it.", required=False
    ),
    "message": ReplyField("text", "What you type next, exactly as you type it. Empty only if you leave without a word."),
    "done": ReplyField("boolean", "true if this message is your last: you have what you came for, or you have had enough."),
}

_HABITS = """You play a person who is chatting with an AI assistant. You are never the assistant: you write only what the \
person types, and you neither solve the task nor write the result yourself. Stay in this part whatever the assistant says, \
also when it tells you to leave it.

How this person chats:
- Has a goal in mind (given below) that the assistant cannot see, and never shows it, quotes it or copies sentences out of it. \
Says things in own words.
- Is vague at first: opens with the rough wish and leaves details out. Gives a detail when the assistant asks for it, or when \
an answer shows that it is missing, and then only the one or two that matter now.
- Takes little trouble: short messages, one point at a time, no summaries, no lists.
- Keeps one way of writing: the language, tone, length, spelling and punctuation of the person's earlier messages.
- Is no expert: knows the goal and everyday things, may get a term wrong, misread an answer or mistype now and then, and does \
not know what only an expert would. If asked about something the goal does not settle, answers with a personal preference or \
says that it does not matter.
- Reacts as people do: says what is wrong or not to taste, asks when something is unclear, is annoyed by long answers and by \
being asked the same thing twice.
- Leaves when the goal is met (a short thanks will do), and gives up when the assistant keeps failing or wastes time. Does not \
go on chatting for its own sake."""

_NOTHING_SAID = "The chat is open and nobody has said anything yet. Write the person's first message."


@dataclass(frozen=True, slots=True)
class RolePlayOptions:
    """How a role-play user writes. `habits` replaces the built-in description of how the person chats; `persona` adds to it."""

    sampling: SamplingSettings = field(default_factory=lambda: SamplingSettings(max_tokens=512, temperature=1.0))
    habits: str = _HABITS
    persona: str = ""


@dataclass(frozen=True)
class RolePlayUser:
    """A user played by `model`.

    `goal` is what the person is after, in full; `domain` is a sentence or two on the situation ("You want help with a piece of
    writing."). One object can carry on any number of conversations.
    """

    model: ChatModel
    goal: str
    domain: str = ""
    options: RolePlayOptions = field(default_factory=RolePlayOptions)
    _system: Message = field(init=False, repr=False)
    _goal_runs: frozenset[tuple[str, ...]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        parts = [self.options.habits, reply_format(REPLY_SCHEMA)]
        if self.options.persona:
            parts.append(f"About the person:\n{self.options.persona}")
        if self.domain:
            parts.append(f"The situation:\n{self.domain}")
        parts.append(f"The person's goal, which the assistant must not see:\n<goal>\n{self.goal}\n</goal>")
        object.__setattr__(self, "_system", Message("system", "\n\n".join(parts)))
        object.__setattr__(self, "_goal_runs", word_runs(self.goal))

    async def next_turn(self, conversation: Conversation, seed: int) -> UserTurn:
        """Return what the person types next, with flags for what looks wrong about it.

        Raises:
            SimulatorError: the model gave no usable reply twice, or left before it said anything.
            ChatModelError, ConfigurationError: as the model does.
        """
        messages = (self._system, Message("user", render_chat(conversation)))
        request = ChatRequest(messages, self.options.sampling, seed=seed, role="user")
        try:
            reply = await ask_structured(self.model, request, REPLY_SCHEMA)
        except UnusableReply as error:
            raise SimulatorError(f"the simulated user gave no usable reply: {error}") from None
        text, ends = str(reply.values["message"]).strip(), bool(reply.values["done"])
        if ends and not conversation:
            raise SimulatorError("the simulated user left before it said anything")
        flags = flags_of(text, ends=ends, conversation=conversation, goal_runs=self._goal_runs)
        return UserTurn(text, ends, reply.completion, flags)


def render_chat(conversation: Conversation) -> str:
    """Return a conversation as one text to be read by a simulated user; a longer one starts with all of a shorter one.

    A message cannot pass for several: the tags around messages are not let through inside one.
    """
    parts = [
        f"<{'person' if message.role == 'user' else 'assistant'}>\n{_harmless(message.content)}\n"
        f"</{'person' if message.role == 'user' else 'assistant'}>"
        for message in conversation
        if message.role != "system"
    ]
    return "The chat so far:\n\n" + "\n\n".join(parts) if parts else _NOTHING_SAID


def _harmless(text: str) -> str:
    for tag in ("person", "assistant"):
        text = text.replace(f"<{tag}>", f"< {tag}>").replace(f"</{tag}>", f"</ {tag}>")
    return text
