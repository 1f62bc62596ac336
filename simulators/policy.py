"""A policy: a chat model together with how it is asked, which is what gets trained, sampled and compared."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from simulators.chat_models.protocol import ChatModel, ChatRequest, Completion, SamplingSettings
from simulators.conversation import Message
from simulators.forward_sampling import Future
from simulators.tools import Toolbox


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

    async def reply(self, so_far: Future, seed: int, toolbox: Toolbox | None = None) -> Completion:
        """Return a reply to a conversation; a forced start is for a turn's first message, not for what follows on tools.

        Raises:
            ChatModelError, ConfigurationError: as the model does.
        """
        messages = so_far.conversation
        prefix = self.reply_prefix if messages[-1].role == "user" else ""
        if self.system_prompt:
            messages = (Message("system", self.system_prompt), *messages)
        tools = toolbox.schemas if toolbox else ()
        request = ChatRequest(messages, self.sampling, seed=seed, reply_prefix=prefix, tools=tools)
        (completion,) = await self.model.complete(request)
        return completion

    def without_prefix(self) -> Policy:
        """Return the same policy, free to start its replies as it likes; futures are played with this one."""
        return replace(self, reply_prefix="") if self.reply_prefix else self
