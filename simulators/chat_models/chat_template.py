"""From a conversation to the token ids that a model is asked with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simulators.chat_models.reply_text import THOUGHT_OPENS
from simulators.conversation import Conversation, Message
from simulators.errors import ConfigurationError, first_lines

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A tokenizer's chat template, or another `template` for it. `name` is the model's, for errors alone.

    Reasoning of earlier turns is not rendered; calls of tools are, with their arguments as objects, as templates expect them.
    """

    tokenizer: PreTrainedTokenizerBase
    name: str
    template: str | None = None

    def prompt_ids(self, messages: Conversation, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Return the token ids of a conversation rendered for a reply.

        Raises:
            ConfigurationError: when the chat template fails on it.
        """
        try:
            text = self.tokenizer.apply_chat_template(
                [_for_template(message) for message in messages],
                tools=list(tools) or None,
                chat_template=self.template,
                tokenize=False,
                add_generation_prompt=True,
            )
        except Exception as error:  # Jinja raises a family of errors, and templates raise their own
            roles = ", ".join(message.role for message in messages)
            said = f"the chat template of {self.name} fails on a conversation with roles {roles}: {first_lines(error)}"
            raise ConfigurationError(said) from None
        return self.encode(str(text))

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a piece of text on its own, without special tokens."""
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def opens_thought(self, prompt_ids: Sequence[int]) -> bool:
        """Return whether a rendered prompt ends in an opened thought, so that the reply begins inside of it."""
        return str(self.tokenizer.decode(prompt_ids[-len(THOUGHT_OPENS) - 2 :])).rstrip().endswith(THOUGHT_OPENS)


def _for_template(message: Message) -> dict[str, Any]:
    data = message.as_dict()
    for call in data.get("tool_calls", ()):
        call["function"]["arguments"] = _parsed(call["function"]["arguments"])
    return data


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
