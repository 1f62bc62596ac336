"""The policy in training as it replies in a rollout: at token level, on exactly the tokens that it was asked with and sampled.

    context_ids  what was put before a reply since the one before it: the prompt, user turns, results of tools, template text
    token_ids    what the policy sampled, its stop token included

Both are kept with every reply, so a path of a conversation is the whole of its tokens, and a fork needs no copy of any state.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from collab.training.turn_tokens import TurnTokens
from simulators.chat_models.chat_template import opens_thought
from simulators.chat_models.protocol import Completion, SamplingSettings
from simulators.chat_models.reply_text import read_reply
from simulators.chat_models.token_sampler import TokenSampler
from simulators.conversation import Message, Usage
from simulators.errors import ConfigurationError, ContextOverflow
from simulators.forward_sampling import Future
from simulators.tools import Toolbox


@dataclass(frozen=True, slots=True)
class TokenPolicy:
    """A `Replier` over the rollout's token sampler. `token_limit` bounds prompt and completion of a conversation together.

    `version` tells which weights the engine holds now; it changes with every optimizer step.
    """

    sampler: TokenSampler
    tokens: TurnTokens
    sampling: SamplingSettings
    token_limit: int
    version: Callable[[], str]
    system_prompt: str | None = None
    name: str = "policy"

    async def reply(self, so_far: Future, seed: int, toolbox: Toolbox | None = None) -> Completion:
        """Return one reply, with all its tokens.

        Raises:
            ContextOverflow: the conversation has reached the token limit, or the engine's.
            ChatModelError, ConfigurationError: as the engine does.
        """
        before, context = self._ids(so_far, toolbox)
        room = self.token_limit - len(before) - len(context)
        if room < 1:
            raise ContextOverflow(f"the conversation reached {self.token_limit} tokens")
        sampling = replace(self.sampling, max_tokens=min(self.sampling.max_tokens, room))
        started = time.perf_counter()
        (reply,) = await self.sampler.sample([*before, *context], sampling, seed)
        if reply.logprobs is None:
            raise ConfigurationError("the engine tells no log-probabilities, and training needs them; use another rollout.engine")
        found = read_reply(reply.text, thought_open=opens_thought(self.tokens, context), tools=toolbox is not None)
        return Completion(
            text=found.text,
            finish_reason=reply.finish_reason,
            token_ids=reply.token_ids,
            logprobs=reply.logprobs,
            usage=Usage(len(before) + len(context), len(reply.token_ids)),
            model=self.name,
            weights_version=self.version(),
            latency_s=time.perf_counter() - started,
            reasoning=found.reasoning,
            tool_calls=found.tool_calls,
            context_ids=tuple(context),
        )

    def without_prefix(self) -> TokenPolicy:
        """Return itself: its replies have no forced start."""
        return self

    def _ids(self, so_far: Future, toolbox: Toolbox | None) -> tuple[list[int], list[int]]:
        """Return the ids up to the last sampled reply, and those that now come before the next."""
        before: list[int] = []
        last: tuple[int, ...] = ()
        said: list[Message] = list(so_far.history)
        for step in so_far.steps:
            completion = step.completion
            if step.author == "policy" and completion and completion.token_ids is not None and completion.context_ids is not None:
                before += [*completion.context_ids, *completion.token_ids]
                last, said = completion.token_ids, []
            else:
                said.append(step.message)
        if before:
            return before, self.tokens.between_replies(last, tuple(said))
        system = (Message("system", self.system_prompt),) if self.system_prompt else ()
        return [], self.tokens.prompt_ids((*system, *said), toolbox.schemas if toolbox else ())
