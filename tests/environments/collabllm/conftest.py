"""What the tests of these environments share: resources without a model, and models whose replies are functions."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from collab.environments.domain import Resources
from simulators.chat_models.protocol import ChatRequest
from simulators.chat_models.scripted import ScriptedChatModel
from tests.scripted_environment import count_words

Answer = Callable[[ChatRequest], str]


def model_that(answer: Answer, name: str = "model") -> ScriptedChatModel:
    """A model that answers `answer(request)`."""

    def script(request: ChatRequest, rng: random.Random) -> str:
        return answer(request)

    return ScriptedChatModel(script, name=name)


def says_as_json(**fields: Any) -> Answer:
    """Answers every request with the same JSON object."""
    return lambda request: json.dumps(fields)


@pytest.fixture
def rules_only() -> Resources:
    return Resources(count_words)
