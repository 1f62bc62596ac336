"""Pushing to the Hub: only when asked, only the datasets, and a refusal in one sentence."""

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from collab.data.hub import push_dataset
from simulators.errors import ConfigurationError


class RecordedApi:
    """Stands in for the Hub's client and notes what it is told to do."""

    calls: list[tuple[str, dict[str, Any]]]
    error: Exception | None

    def create_repo(self, repo_id: str, **options: Any) -> str:
        type(self).calls.append(("create", {"repo_id": repo_id, **options}))
        if type(self).error is not None:
            raise type(self).error
        return f"hub/{repo_id}"

    def upload_folder(self, **options: Any) -> None:
        type(self).calls.append(("upload", options))


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> type[RecordedApi]:
    RecordedApi.calls, RecordedApi.error = [], None
    monkeypatch.setattr(huggingface_hub, "HfApi", RecordedApi)
    return RecordedApi


def test_the_datasets_and_their_card_are_pushed(api: type[RecordedApi], tmp_path: Path) -> None:
    assert push_dataset(tmp_path, "acme/sums") == "hub/acme/sums"
    (created, upload) = api.calls
    assert created == ("create", {"repo_id": "acme/sums", "repo_type": "dataset", "private": True, "exist_ok": True})
    assert upload[1]["folder_path"] == str(tmp_path)
    assert upload[1]["allow_patterns"] == ["*.parquet", "README.md"]  # no journal, no trees


def test_it_is_public_only_when_that_is_said(api: type[RecordedApi], tmp_path: Path) -> None:
    push_dataset(tmp_path, "acme/sums", private=False)
    assert api.calls[0][1]["private"] is False


def test_a_refusal_is_one_sentence_and_the_dataset_is_kept(api: type[RecordedApi], tmp_path: Path) -> None:
    api.error = RuntimeError("401 Client Error\nRequest ID: 7")
    with pytest.raises(ConfigurationError) as caught:
        push_dataset(tmp_path, "acme/sums")
    assert str(caught.value).startswith("cannot push to dataset acme/sums: 401 Client Error; it is kept in ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["sums", "a/b/c", "/sums", "acme/", ""])
def test_a_name_that_is_no_id_is_refused_before_anything_is_sent(api: type[RecordedApi], tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="it must be OWNER/NAME"):
        push_dataset(tmp_path, name)
    assert api.calls == []
