"""Where text becomes tokens in a multi-turn rollout, and the rule that sampled tokens are never re-made from text.

Tokenising a reply's text again need not give the ids that were sampled, and then the log-probabilities belong to other tokens
(trl#5224). So a conversation's ids only ever grow: prompt, sampled reply, what the template puts between that reply and the
next, sampled reply, ... What stands between may be the user's message or the results of tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from collab.training.chat_templates import THINKING_OFF, training_chat_template
from simulators.chat_models.tool_text import Tools, for_template, renders_tools
from simulators.conversation import Conversation, Message
from simulators.errors import ConfigurationError

_OPENING = (Message("user", "One?"), Message("assistant", "Two."))


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """Turns messages into token ids for one tokenizer and training template.

    `stop_id` is the token that the template closes a reply with; `eos_ids` are all tokens that end a reply when sampled.
    `native_tools`: the model's own template renders tools, which are put into words elsewhere.
    """

    tokenizer: Any
    template: str
    stop_id: int
    eos_ids: frozenset[int]
    native_tools: bool = False

    @classmethod
    def of(cls, tokenizer: Any, model: Any) -> TurnTokens:
        """Make the turn tokens of a tokenizer and the model it belongs to, and check that they round-trip.

        Raises:
            ConfigurationError: when the template cannot be trained with, or its turns do not tokenise on their own.
        """
        template = training_chat_template(tokenizer)
        encoded = tokenizer.apply_chat_template(
            [message.as_dict() for message in _OPENING],
            chat_template=template,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        stop_id = [token for token, mask in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True) if mask][-1]
        configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
        ids = configured if isinstance(configured, list) else [configured]
        eos_ids = frozenset(token for token in [*ids, tokenizer.eos_token_id, stop_id] if token is not None)
        tokens = cls(tokenizer, template, stop_id, eos_ids, renders_tools(tokenizer))
        tokens._check_round_trip()
        return tokens

    def prompt_ids(self, messages: Conversation, tools: Tools = ()) -> list[int]:
        """Return the ids of a conversation rendered for a reply, with the tools that the reply may call.

        Raises:
            ConfigurationError: when the chat template fails on it.
        """
        try:
            text = self._render(messages, tools)
        except Exception as error:  # Jinja raises a family of errors, and templates raise their own
            roles = ", ".join(message.role for message in messages)
            raise ConfigurationError(f"the chat template fails on a conversation with roles {roles}: {error}") from None
        return self.encode(text)

    def between_replies(self, reply_ids: Sequence[int], said: Conversation) -> list[int]:
        """Return the ids that stand between a sampled reply and the next one: none of them is the policy's.

        `said` is the user's message, or the results of the tools that the reply called. The ids start with the stop token where
        the reply was cut off before it (or ended in another end-of-text token, as Gemma may), so that the context reads as the
        template would write it.
        """
        closing = [] if reply_ids and reply_ids[-1] == self.stop_id else [self.stop_id]
        stop = self.tokenizer.decode([self.stop_id])
        return closing + self.encode(self._render((*_OPENING, *said)).split("Two." + stop, 1)[1])

    def text(self, reply_ids: Sequence[int]) -> str:
        """Return the text of a sampled reply, without its end token."""
        ids = reply_ids[:-1] if reply_ids and reply_ids[-1] in self.eos_ids else reply_ids
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a piece of text on its own, without special tokens."""
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def _render(self, messages: Conversation, tools: Tools = ()) -> str:
        """Render by the training template; by the model's own where tools were used, with the tools where they are offered."""
        used = any(message.role == "tool" or message.tool_calls for message in messages)
        if not self.native_tools:
            return self._rendered(for_template(messages, in_words=bool(used or tools), tools=tools), self.template)
        if used:
            return self._rendered(for_template(messages, in_words=False), None, tools or None)
        text = self._rendered(for_template(messages, in_words=False), self.template)
        return self._offer(text, messages, tools) if tools else text

    def _offer(self, text: str, messages: Conversation, tools: Tools) -> str:
        """Put what the own template writes before the first user's words, with tools, in the place of what it is without."""
        first = (*messages[: messages[0].role == "system"], Message("user", "One?"))
        bare, _, _ = self._rendered(for_template(first, in_words=False), self.template).rpartition("One?")
        offered, _, _ = self._rendered(for_template(first, in_words=False), None, tools).rpartition("One?")
        return offered + text[len(bare) :]

    def _rendered(self, messages: list[dict[str, Any]], template: str | None, tools: Tools | None = None) -> str:
        options = THINKING_OFF if template is None else {}
        return str(
            self.tokenizer.apply_chat_template(
                messages, chat_template=template, tools=tools, tokenize=False, add_generation_prompt=True, **options
            )
        )

    def _check_round_trip(self) -> None:
        turns = (Message("user", "One?"), Message("assistant", "Two, and 3."), Message("user", " Why\nso?"))
        reply = [*self.encode(turns[1].content), self.stop_id]
        grown = [*self.prompt_ids(turns[:1]), *reply, *self.between_replies(reply, turns[2:])]
        if grown != self.prompt_ids(turns):
            raise ConfigurationError(
                "the tokenizer gives other ids for a conversation that grows turn by turn than for the whole of it, so log-"
                "probabilities would belong to other tokens; use a tokenizer whose stop token is a special token"
            )
