"""What every run leaves beside its results: the resolved configuration, versions, seeds, and figures at its end."""

from __future__ import annotations

import itertools
import json
import platform
import re
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from simulators.errors import ConfigurationError, StorageError
from simulators.whole_file import write_whole

_VERSIONED = ("collab", "torch", "transformers", "trl", "peft", "accelerate", "datasets", "vllm", "hydra-core")
_FREE_TO_CHANGE = re.compile(
    r"limit|max_open_tasks|max_failure_share|output_dir|(budget|engine)\..*|push_to|push_private|licence"
    r"|min_gap|min_chosen_mr|min_components.*|pairs_per_turn|length_quantiles|splits.*|deduplicate|public_columns"
    r"|(policy|user|judge)\.(urls|api_key_env|max_batch_size|max_concurrency|deadline_s|price\..*)"
    r"|(policies|environments|users)(\..*)?|seeds|success_at"
)
"""Keys that do not change what is sampled, so a run may be resumed (or its datasets written again) with other values.

Policies, environments, users and seeds may be added to an evaluation; each part of it keeps what it plays (`refuse_other`).
"""
_SECRET_URL = re.compile(r"https?://(?:[^\s/'\",]*@|[^\s'\",]*\?)")
_WRITTEN_BEFORE_RESULTS = ("config.yaml", "versions.json", "models.json", "part.json", "tasks.json")


class RunFolder:
    """The output folder of one run.

    A folder that holds results of another configuration is refused: mixing the two would make a dataset nobody asked for. Keys
    in `stages` are the overrides of other recipes, whose own folders look after themselves.

    Raises:
        ConfigurationError: naming the first key that differs, or that holds a secret.
    """

    def __init__(self, config: DictConfig, stages: Sequence[str] = ()) -> None:
        _refuse_secrets(OmegaConf.to_container(config, resolve=True))
        self.path = Path(config.output_dir)
        self._config = config
        self._stages = stages
        self._started = time.monotonic()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot write to output_dir {self.path}: {error.strerror}") from None
        self._refuse_other_configuration()
        write_whole(self.path / "config.yaml", OmegaConf.to_yaml(config, resolve=True).encode())
        write_whole(self.path / "versions.json", f"{json.dumps(versions(), indent=1)}\n".encode())

    def _refuse_other_configuration(self) -> None:
        path = self.path / "config.yaml"
        if not path.is_file() or not self._has_results():
            return
        try:
            before = OmegaConf.to_container(OmegaConf.load(path))
        except Exception:  # whatever YAML and OmegaConf make of a file that is not theirs
            before = None
        if not isinstance(before, dict):
            raise ConfigurationError(f"{path} is not the configuration of a run; choose another output_dir, or delete that file")
        now = OmegaConf.to_container(self._config, resolve=True)
        _refuse_difference(self.path, self._own(before), self._own(now))

    def _own(self, config: Any) -> Any:
        return {key: value for key, value in config.items() if key not in self._stages}

    def _has_results(self) -> bool:
        """True where an earlier start came so far that something would be mixed with this one's."""
        return any(
            path.is_file() and path.suffix != ".part" and path.name not in _WRITTEN_BEFORE_RESULTS and not _is_only_a_header(path)
            for path in self.path.rglob("*")
        )

    def log_metrics(self, stage: str, **figures: Any) -> None:
        """Append one line to metrics.jsonl.

        Raises:
            StorageError: when the disk refuses.
        """
        entry = {"stage": stage, "seconds": round(time.monotonic() - self._started, 3), **figures}
        try:
            with (self.path / "metrics.jsonl").open("a") as stream:
                stream.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise StorageError(f"cannot write to {self.path / 'metrics.jsonl'}: {error.strerror}") from None


def _refuse_secrets(config: Any) -> None:
    """Refuse a URL with a password or a query in it before the configuration is written down or printed."""
    for key, value in flat(config).items():
        if _SECRET_URL.search(str(value)):
            raise ConfigurationError(
                f"{key} holds a URL with a password or a query in it; put the key into an environment variable and name that in "
                "api_key_env"
            )


def refuse_other(folder: Path, recorded: Path, now: dict[str, Any]) -> None:
    """Refuse a part's folder that holds trees of something else than what the file `recorded` beside them and `now` both say.

    Raises:
        ConfigurationError: naming the first key that differs.
    """
    trees = folder / "trees.jsonl"
    if recorded.is_file() and trees.is_file() and not _is_only_a_header(trees):
        _refuse_difference(folder, json.loads(recorded.read_text()), now)


def _refuse_difference(folder: Path, recorded: Any, configured: Any) -> None:
    before, now = flat(recorded), flat(configured)
    for key in sorted(before.keys() | now.keys()):
        if not _FREE_TO_CHANGE.fullmatch(key) and before.get(key) != now.get(key):
            raise ConfigurationError(
                f"{folder} holds a run with {key}={before.get(key)!r}, and this one has {now.get(key)!r}; choose another "
                "output_dir, or delete that folder"
            )


def versions() -> dict[str, str]:
    """Return the versions of what figures depend on."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in _VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _is_only_a_header(path: Path) -> bool:
    """True for the journal or tree file of a run that ended before its first record."""
    if path.name not in ("journal.jsonl", "trees.jsonl"):
        return False
    with path.open("rb") as stream:
        return len(list(itertools.islice(stream, 2))) < 2


def flat(node: Any, prefix: str = "") -> dict[str, Any]:
    """Return a nested configuration as one mapping with dotted keys."""
    if isinstance(node, dict) and node:
        return {key: value for name, child in node.items() for key, value in flat(child, f"{prefix}{name}.").items()}
    return {prefix.rstrip("."): node}
