"""A policy: a chat model together with how it is asked, which is what gets trained, sampled and compared."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from simulators.chat_models.protocol import ChatModel, ChatRequest, Completion, SamplingSettings
from simulators.conversation import Conversation, Message


@dataclass(frozen=True, slots=True)
class Policy:
    """A chat model with a system prompt, sampling settings and (for weak models) a forced start of its next reply.

    `name` is what reports and trees call it. The system prompt is not part of the conversation: it is put before it at every
    call, and the conversations that are stored and trained on do not hold it.
    """

    model: ChatModel
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    system_prompt: str | None = None
    reply_prefix: str = ""
    name: str = "policy"

    async def reply(self, conversation: Conversation, seed: int, n: int = 1) -> list[Completion]:
        """Sample `n` replies to a conversation that ends with a user message.

        Raises:
            ChatModelError, ConfigurationError: as the model does.
        """
        messages = conversation
        if self.system_prompt:
            messages = (Message("system", self.system_prompt), *conversation)
        request = ChatRequest(messages, self.sampling, n=n, seed=seed, reply_prefix=self.reply_prefix)
        return await self.model.complete(request)

    def without_prefix(self) -> Policy:
        """Return the same policy, free to start its replies as it likes; futures are played with this one."""
        return replace(self, reply_prefix="") if self.reply_prefix else self
