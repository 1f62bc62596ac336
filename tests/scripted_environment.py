"""An environment whose users and rewards are Python functions, so that a test can say exactly what happens."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from collab.environments.domain import Domain, Environment, Resources
from collab.rewards.component import ScoringError
from collab.rewards.conversation_reward import ConversationReward
from collab.tasks.task import Task
from simulators.chat_models.protocol import ChatRequest, SamplingSettings
from simulators.chat_models.scripted import Script, ScriptedChatModel
from simulators.conversation import Conversation, Message
from simulators.errors import ChatModelError
from simulators.policy import Policy
from simulators.users.protocol import UserTurn

Say = Callable[[Conversation, int], UserTurn]
Scorer = Callable[[Conversation], float | None]


@dataclass(frozen=True)
class FunctionUser:
    """Says what `say(conversation, seed)` returns, or fails as it does."""

    say: Say

    async def next_turn(self, conversation: Conversation, seed: int) -> UserTurn:
        return self.say(conversation, seed)


@dataclass(frozen=True)
class FunctionReward:
    """Scores what `scorer(conversation)` returns; None is a judge without a verdict."""

    scorer: Scorer
    name: str = "worth"
    value_range: tuple[float, float] = (-1000.0, 1000.0)
    source: str = "a test"

    async def score(self, conversation: Conversation, task: Task) -> float:
        value = self.scorer(conversation)
        if value is None:
            raise ScoringError("the judge gave no verdict")
        return value


def scripted_environment(say: Say, scorer: Scorer, max_turns: int = 4) -> Environment:
    def no_records(record: Mapping[str, Any], default_id: str) -> Task:
        raise NotImplementedError

    domain = Domain(
        name="scripted",
        summary="",
        task_from_record=no_records,
        columns=(),
        make_user=lambda task, resources: FunctionUser(say),
        make_reward=lambda resources: ConversationReward(((FunctionReward(scorer), 1.0),)),
        max_turns=max_turns,
    )
    return Environment(domain, Resources(count_tokens=count_words))


def scripted_policy(script: Script, name: str = "policy", **sampling: Any) -> Policy:
    return Policy(ScriptedChatModel(script), SamplingSettings(**sampling), name=name)


def count_words(text: str) -> int:
    return len(text.split())


def says(*texts: str) -> Conversation:
    """A conversation that the user opens."""
    return tuple(Message("assistant" if number % 2 else "user", text) for number, text in enumerate(texts))


def assistant_texts(conversation: Conversation) -> list[str]:
    return [message.content for message in conversation if message.role == "assistant"]


def failing(request: ChatRequest, rng: random.Random) -> str:
    raise ChatModelError("the endpoint went away")
