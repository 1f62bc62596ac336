"""Fixtures of the training tests: one tiny model for all of them, one thread, no progress bars."""

import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from transformers.utils import logging as transformers_logging

from tests.training.tiny_models import save_tiny_model

torch.set_num_threads(1)
transformers_logging.disable_progress_bar()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny ChatML model whose padding token is not its stop token."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def padded_with_stop(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny model that pads with its stop token, as SmolLM2 does."""
    return save_tiny_model(tmp_path_factory.mktemp("smollm2"), "smollm2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"
