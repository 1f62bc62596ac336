"""From a conversation to the token ids that a model is asked with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from simulators.chat_models.reply_text import THOUGHT_OPENS
from simulators.chat_models.tool_text import Tools, for_template, renders_tools
from simulators.conversation import Conversation
from simulators.errors import ConfigurationError, first_lines

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PromptTemplate(Protocol):
    """Turns conversations into prompts: a model's own template (`ChatTemplate`), or that of a policy in training."""

    @property
    def tokenizer(self) -> Any: ...

    def prompt_ids(self, messages: Conversation, tools: Tools = ()) -> list[int]:
        """Return the token ids of a conversation rendered for a reply, with the tools that it may call.

        Raises:
            ConfigurationError: when the chat template fails on it.
        """
        ...

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a piece of text on its own, without special tokens."""
        ...


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A tokenizer's chat template, or another `template` for it. `name` is the model's, for errors alone.

    Reasoning of earlier turns is not rendered. Tools, calls and results are rendered by a template that knows them, and put into
    words for one that does not.
    """

    tokenizer: PreTrainedTokenizerBase
    name: str
    template: str | None = None

    def prompt_ids(self, messages: Conversation, tools: Tools = ()) -> list[int]:
        """Return the token ids of a conversation rendered for a reply.

        Raises:
            ConfigurationError: when the chat template fails on it.
        """
        used = bool(tools) or any(message.role == "tool" for message in messages)
        in_words = used and not renders_tools(self.tokenizer, self.template)
        try:
            text = self.tokenizer.apply_chat_template(
                for_template(messages, in_words=in_words, tools=tools),
                tools=None if in_words else list(tools) or None,
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


def opens_thought(template: PromptTemplate, prompt_ids: Sequence[int]) -> bool:
    """Return whether a rendered prompt ends in an opened thought, so that the reply begins inside of it."""
    return str(template.tokenizer.decode(prompt_ids[-len(THOUGHT_OPENS) - 2 :])).rstrip().endswith(THOUGHT_OPENS)
