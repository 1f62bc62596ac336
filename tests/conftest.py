"""Fixtures that every test may use."""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def collab_data() -> Path:
    """The folder with real benchmark records (COLLAB_DATA); tests that need it skip with a reason when it is absent."""
    folder = Path(os.environ.get("COLLAB_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"benchmark data not found in {folder}; set COLLAB_DATA to the folder that holds it")
    return folder


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny random chat model and its tokenizer, for whatever loads one by name."""
    from tests.training.tiny_models import save_tiny_model

    return Path(save_tiny_model(tmp_path_factory.mktemp("tiny-model")))
