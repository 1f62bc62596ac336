"""Where text becomes tokens in a multi-turn rollout, and the rule that sampled tokens are never re-made from text.

Tokenising a reply's text again need not give the ids that were sampled, and then the log-probabilities belong to other tokens
(trl#5224). So a conversation's ids only ever grow: prompt, sampled reply, what the template puts between that reply and the
next, sampled reply, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from collab.training.chat_templates import training_chat_template
from simulators.chat_models.chat_template import ChatTemplate
from simulators.conversation import Conversation, Message
from simulators.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """Turns messages into token ids for one tokenizer and training template.

    `stop_id` is the token that the template closes a reply with; `eos_ids` are all tokens that end a reply when sampled.
    """

    tokenizer: Any
    template: str
    stop_id: int
    eos_ids: frozenset[int]

    @classmethod
    def of(cls, tokenizer: Any, model: Any) -> TurnTokens:
        """Make the turn tokens of a tokenizer and the model it belongs to, and check that they round-trip.

        Raises:
            ConfigurationError: when the template cannot be trained with, or its turns do not tokenise on their own.
        """
        template = training_chat_template(tokenizer)
        encoded = tokenizer.apply_chat_template(
            [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "Two."}],
            chat_template=template,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        stop_id = [token for token, mask in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True) if mask][-1]
        configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
        ids = configured if isinstance(configured, list) else [configured]
        eos_ids = frozenset(token for token in [*ids, tokenizer.eos_token_id, stop_id] if token is not None)
        tokens = cls(tokenizer, template, stop_id, eos_ids)
        tokens._check_round_trip()
        return tokens

    @property
    def chat_template(self) -> ChatTemplate:
        """The template as a chat model takes it."""
        return ChatTemplate(self.tokenizer, "the policy", self.template)

    def prompt_ids(self, messages: Conversation) -> list[int]:
        """Return the ids of a conversation rendered for a reply.

        Raises:
            ConfigurationError: when the chat template fails on it.
        """
        try:
            text = self._render(messages)
        except Exception as error:  # Jinja raises a family of errors, and templates raise their own
            roles = ", ".join(message.role for message in messages)
            raise ConfigurationError(f"the chat template fails on a conversation with roles {roles}: {error}") from None
        return self._ids(text)

    def between_replies(self, reply_ids: Sequence[int], user_text: str) -> list[int]:
        """Return the ids that stand between a sampled reply and the next one: none of them is the policy's.

        They start with the stop token where the reply was cut off before it (or ended in another end-of-text token, as Gemma
        may), so that the context reads as the template would write it.
        """
        closing = [] if reply_ids and reply_ids[-1] == self.stop_id else [self.stop_id]
        return closing + self._ids(self._after_stop(user_text))

    def text(self, reply_ids: Sequence[int]) -> str:
        """Return the text of a sampled reply, without its end token."""
        ids = reply_ids[:-1] if reply_ids and reply_ids[-1] in self.eos_ids else reply_ids
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a piece of text on its own, without special tokens."""
        return self._ids(text)

    def _after_stop(self, user_text: str) -> str:
        """Return the text from right after a reply's stop token up to the cue for the next reply."""
        opening = (Message("user", "One?"), Message("assistant", "Two."))
        stop = self.tokenizer.decode([self.stop_id])
        return self._render((*opening, Message("user", user_text))).split("Two." + stop, 1)[1]

    def _render(self, messages: Conversation) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                [message.as_dict() for message in messages],
                chat_template=self.template,
                tokenize=False,
                add_generation_prompt=True,
            )
        )

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def _check_round_trip(self) -> None:
        turns = (Message("user", "One?"), Message("assistant", "Two, and 3."), Message("user", " Why\nso?"))
        reply = [*self.encode(turns[1].content), self.stop_id]
        grown = [*self.prompt_ids(turns[:1]), *reply, *self.between_replies(reply, turns[2].content)]
        if grown != self.prompt_ids(turns):
            raise ConfigurationError(
                "the tokenizer gives other ids for a conversation that grows turn by turn than for the whole of it, so log-"
                "probabilities would belong to other tokens; use a tokenizer whose stop token is a special token"
            )
