"""A scheduled user whose words are a model's: what is said is fixed by the script, how it is said reacts to the last reply.

The model sees the update and the assistant's last reply, never the rest of the intent. What it writes is checked for critical
tokens; after two failures the rules' own words are said, and the turn is flagged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from collab.environments.evolving_intent.conversations import framed
from collab.environments.evolving_intent.critical_tokens import lost_meaning
from collab.environments.evolving_intent.personas import Persona
from simulators.chat_models.protocol import ChatModel, ChatRequest, SamplingSettings
from simulators.conversation import Conversation, Message
from simulators.errors import UnusableReply
from simulators.seeds import derive_seed
from simulators.structured_reply import ReplyField, Schema, ask_structured, reply_format
from simulators.users.guards import ROLE_FLIP, flags_of
from simulators.users.protocol import UserTurn

FALLBACK = "rendering_fallback"
"""Flag of a turn that was said in the rules' words because the model's were not usable."""

ATTEMPTS = 2
_QUOTED_CHARACTERS = 2_000

SCHEMA: Schema = {"message": ReplyField("text", "What the person types, exactly as typed.")}

_BRIEF = """You put into words what a person types next in a chat with an AI assistant. You are given the point that the person \
wants to make and the assistant's last reply. Make exactly that point, in the person's own words:
- Keep every number, every name and everything in quotes exactly; add no other number and no other fact.
- A question stays the same question. A correction stays a correction: it must be clear that the earlier value was wrong.
- React to the assistant's reply in at most a few words where a person would; never answer it, never solve anything.
- One short message, no lists, no explanations about what you do."""


@dataclass(frozen=True, slots=True)
class RewordedUser:
    """Says `words` in order, each reworded by `model`, and leaves after the last.

    `persona` colours how the person writes. The opening is reworded too; `preamble` before it and the `recaps` after each turn's
    words ("" for none) are said as they are.
    """

    model: ChatModel
    words: tuple[str, ...]
    persona: Persona | None = None
    preamble: str = ""
    recaps: tuple[str, ...] = ()
    sampling: SamplingSettings = field(default_factory=lambda: SamplingSettings(max_tokens=300, temperature=0.7))

    async def next_turn(self, conversation: Conversation, seed: int) -> UserTurn:
        """Return this turn's message in the model's words, or in the rules' after two failures.

        Raises:
            ChatModelError: the model failed; its failure is never papered over with the rules' words.
        """
        said = sum(message.role == "user" for message in conversation)
        if said >= len(self.words):
            return UserTurn("", ends=True)
        point = self.words[said]
        before, after = "" if said else self.preamble, self.recaps[said] if self.recaps else ""
        for attempt in range(ATTEMPTS):
            request = ChatRequest(
                self._prompt(point, conversation), self.sampling, seed=derive_seed(seed, "words", attempt), role="user"
            )
            try:
                reply = await ask_structured(self.model, request, SCHEMA)
            except UnusableReply:
                continue
            text = str(reply.values["message"]).strip()
            flags = flags_of(text, ends=False, conversation=conversation, goal_runs=frozenset())
            if lost_meaning(point, text) is None and ROLE_FLIP not in flags:
                return UserTurn(framed(text, before, after), completion=reply.completion, flags=flags)
        return UserTurn(framed(point, before, after), flags=(FALLBACK,))

    def _prompt(self, point: str, conversation: Conversation) -> Conversation:
        """Static part first, so that a prefix cache serves it for every turn of every task."""
        parts = [_BRIEF, reply_format(SCHEMA)]
        if self.persona:
            parts.append(f"About the person: {self.persona.brief}.")
        last = conversation[-1].content[-_QUOTED_CHARACTERS:] if conversation else ""
        reply = f"The assistant's last reply:\n<reply>\n{last}\n</reply>" if last else "The chat starts with this message."
        return (
            Message("system", "\n\n".join(parts)),
            Message("user", f"{reply}\n\nThe point to make:\n<point>\n{point}\n</point>"),
        )
