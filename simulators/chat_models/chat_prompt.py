"""From a conversation to the token ids that a model in this process is asked with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulators.conversation import Conversation
from simulators.errors import ConfigurationError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def chat_prompt_ids(tokenizer: PreTrainedTokenizerBase, messages: Conversation, model_name: str) -> list[int]:
    """Return the token ids of a conversation rendered for a reply; `model_name` is for the error alone.

    Raises:
        ConfigurationError: when the chat template fails on it.
    """
    try:
        text = tokenizer.apply_chat_template(
            [message.as_dict() for message in messages], tokenize=False, add_generation_prompt=True
        )
    except Exception as error:  # Jinja raises a family of errors, and templates raise their own
        roles = ", ".join(message.role for message in messages)
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigurationError(
            f"the chat template of {model_name} fails on a conversation with roles {roles}: {reason}"
        ) from None
    return list(tokenizer(text, add_special_tokens=False).input_ids)
