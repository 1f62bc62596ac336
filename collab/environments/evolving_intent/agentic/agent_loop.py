"""An agent loop as a chat model: the model may use tools before it replies, and everything outside sees one reply a turn.

Policies, evaluation and training take chat models, so a loop put around a model can stand wherever a model can. It holds no
state: what an agent keeps between turns must be in its replies (`workspace`), so conversations can be forked like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from simulators.chat_models.protocol import ChatModel, ChatRequest, Completion
from simulators.conversation import Conversation, Message, Usage
from simulators.seeds import derive_seed

_ACTION = re.compile(r"^ACTION[ \t]+(?P<tool>[a-z_]{1,40})[ \t]*:[ \t]*(?P<argument>.*)", re.MULTILINE | re.DOTALL)
MAX_OBSERVATION_CHARACTERS = 8_000


class Tool(Protocol):
    """Something an agent can do. `usage` is the line that tells the model how."""

    @property
    def usage(self) -> str: ...

    async def use(self, argument: str) -> str:
        """Do it and return what the agent sees; a mistake of the agent is told in the text, not raised."""
        ...


class Toolbox(Protocol):
    """Makes the tools of one turn, from the conversation so far, and puts what they did into the reply."""

    def tools(self, conversation: Conversation) -> Mapping[str, Tool]:
        """Return the tools by name."""
        ...

    def closing(self, tools: Mapping[str, Tool]) -> str:
        """Return what is added to the reply: the state that later turns and the verifier need ("" for none)."""
        ...


@dataclass(frozen=True, slots=True)
class AgentLoop:
    """A chat model that acts: each of its replies may be an action, whose result it sees; the first that is none is the reply.

    `budget` bounds the actions of one turn; an agent that uses it up is cut off, as one that runs out of tokens is.
    """

    model: ChatModel
    toolbox: Toolbox
    budget: int = 100

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def weights_version(self) -> str:
        return self.model.weights_version

    async def complete(self, request: ChatRequest) -> list[Completion]:
        """Return `request.n` replies, each after a loop of its own.

        Raises:
            ChatModelError, ConfigurationError: as the model does.
        """
        return [await self._turn(replace(request, n=1, seed=request.seed + index)) for index in range(request.n)]

    async def aclose(self) -> None:
        """Close the model."""
        await self.model.aclose()

    async def _turn(self, request: ChatRequest) -> Completion:
        tools = self.toolbox.tools(tuple(message for message in request.messages if message.role != "system"))
        messages = _with_instructions(request.messages, tools.values())
        usage = Usage()
        for step in range(self.budget + 1):
            seed = request.seed if step == 0 else derive_seed(request.seed, "step", step)
            (completion,) = await self.model.complete(replace(request, messages=messages, seed=seed))
            usage = _sum(usage, completion.usage)
            action = _ACTION.search(completion.text)
            if action is None:
                return self._reply(completion, tools, usage, completion.finish_reason == "length")
            if step == self.budget:
                break
            observation = await _observe(tools, action["tool"], action["argument"].strip("\n"))
            messages = (*messages, Message("assistant", completion.text), Message("user", f"RESULT\n{observation}"))
        return self._reply(replace(completion, text="(stopped: no actions left)"), tools, usage, cut=True)

    def _reply(self, completion: Completion, tools: Mapping[str, Tool], usage: Usage, cut: bool) -> Completion:
        closing = self.toolbox.closing(tools)
        return Completion(
            text=f"{completion.text}\n\n{closing}" if closing else completion.text,
            finish_reason="length" if cut else "stop",
            usage=usage,
            model=completion.model,
            weights_version=completion.weights_version,
            latency_s=completion.latency_s,
        )


async def _observe(tools: Mapping[str, Tool], name: str, argument: str) -> str:
    if name not in tools:
        return f"There is no tool {name!r}; there are {', '.join(sorted(tools))}."
    return (await tools[name].use(argument))[:MAX_OBSERVATION_CHARACTERS]


def _with_instructions(messages: Conversation, tools: Iterable[Tool]) -> Conversation:
    lines = "\n".join(f"- {tool.usage}" for tool in tools)
    text = (
        "You may act before you reply. To act, write one line and nothing after its argument:\n"
        f"ACTION tool: argument\nThe tools:\n{lines}\n"
        "You then see the result. When you are done, reply to the user without ACTION."
    )
    if messages and messages[0].role == "system":
        return (Message("system", f"{messages[0].content}\n\n{text}"), *messages[1:])
    return (Message("system", text), *messages)


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(
        one.prompt_tokens + other.prompt_tokens,
        one.completion_tokens + other.completion_tokens,
        one.cached_tokens + other.cached_tokens,
    )
