"""A tiny model in this process, and a record of its forward passes."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch

from simulators.chat_models.transformers_model import TransformersChatModel
from tests.training.tiny_models import tiny_model, tiny_tokenizer


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """The models are so small that more threads only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture
def weights() -> Any:
    return tiny_model(tiny_tokenizer()).eval()


@pytest.fixture
async def model(weights: Any) -> AsyncIterator[TransformersChatModel]:
    made = TransformersChatModel(weights, tiny_tokenizer(), name="tiny")
    yield made
    await made.aclose()


@pytest.fixture
def forwards(weights: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The shape (rows, tokens) of every forward pass."""
    shapes: list[tuple[int, int]] = []
    forward = weights.forward

    def counted(*arguments: Any, **named: Any) -> Any:
        shapes.append(tuple(named["input_ids"].shape))
        return forward(*arguments, **named)

    monkeypatch.setattr(weights, "forward", counted)
    return shapes
