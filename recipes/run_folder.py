"""What every run leaves beside its results: the resolved configuration, versions, seeds, and figures at its end."""

from __future__ import annotations

import json
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from simulators.errors import ConfigurationError, StorageError

_VERSIONED = ("collab", "torch", "transformers", "trl", "peft", "accelerate", "datasets", "vllm", "hydra-core")
_FREE_TO_CHANGE = ("limit", "max_open_tasks", "max_failure_share", "output_dir")
_FREE_TO_CHANGE_IN = ("budget", "policy.max_batch_size", "policy.max_concurrency", "policy.deadline_s", "policy.price")
"""Keys that do not change what is sampled, so a run may be resumed with other values."""


class RunFolder:
    """The output folder of one run.

    A folder that holds a run of another configuration is refused: mixing the two would make a dataset nobody asked for.

    Raises:
        ConfigurationError: naming the first key that differs.
    """

    def __init__(self, config: DictConfig) -> None:
        self.path = Path(config.output_dir)
        self._config = config
        self._started = time.monotonic()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._refuse_other_configuration()
            (self.path / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True))
            (self.path / "versions.json").write_text(json.dumps(versions(), indent=1) + "\n")
        except OSError as error:
            raise StorageError(f"cannot write to output_dir {self.path}: {error.strerror}") from None

    def _refuse_other_configuration(self) -> None:
        path = self.path / "config.yaml"
        if not path.is_file():
            return
        before = _flat(OmegaConf.to_container(OmegaConf.load(path)))
        now = _flat(OmegaConf.to_container(self._config, resolve=True))
        for key in sorted(before.keys() | now.keys()):
            free = key in _FREE_TO_CHANGE or key.startswith(_FREE_TO_CHANGE_IN)
            if not free and before.get(key) != now.get(key):
                raise ConfigurationError(
                    f"{self.path} holds a run with {key}={before.get(key)!r}, and this one has {now.get(key)!r}; choose another "
                    "output_dir, or delete that folder"
                )

    def log_metrics(self, stage: str, **figures: Any) -> None:
        """Append one line to metrics.jsonl."""
        entry = {"stage": stage, "seconds": round(time.monotonic() - self._started, 3), **figures}
        with (self.path / "metrics.jsonl").open("a") as stream:
            stream.write(json.dumps(entry) + "\n")


def versions() -> dict[str, str]:
    """Return the versions of what figures depend on."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in _VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _flat(node: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(node, dict) and node:
        return {key: value for name, child in node.items() for key, value in _flat(child, f"{prefix}{name}.").items()}
    return {prefix.rstrip("."): node}
