"""What every run leaves beside its results: the resolved configuration, versions, seeds, and figures at its end."""

from __future__ import annotations

import itertools
import json
import platform
import re
import time
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from omegaconf import OmegaConf

from collab.training.settings import is_planned_by_length
from recipes.configuration.schema import Recipe
from simulators.errors import ConfigurationError, StorageError
from simulators.whole_file import write_whole

_VERSIONED = ("collab", "torch", "transformers", "trl", "peft", "accelerate", "datasets", "vllm", "hydra-core")
_SECRET_URL = re.compile(r"https?://(?:[^\s/'\",]*@|[^\s'\",]*\?)")
_WRITTEN_BEFORE_RESULTS = ("config.yaml", "versions.json", "models.json", "part.json", "tasks.json")
_LENGTHS = ("optimization.max_steps", "optimization.epochs")


class RunFolder:
    """The output folder of one run: `claim` it, and then write to it."""

    def __init__(self, config: Recipe) -> None:
        self.path = Path(config.output_dir)
        self._config = config
        self._started = time.monotonic()

    def claim(self) -> Self:
        """Take the folder for the run: `refuse_other`, then write configuration and versions down.

        Raises:
            ConfigurationError, StorageError: as `refuse_other` does.
        """
        self.refuse_other()
        self.write_down()
        return self

    def refuse_other(self) -> None:
        """Refuse secrets, and a folder with results of another configuration: mixed they would be a dataset nobody asked for.

        What may differ are the keys that decide nothing (`free` of the configuration's type), and how long to train, where that
        grew.

        Raises:
            ConfigurationError: naming the first key that differs, or that holds a secret.
            StorageError: the disk refuses.
        """
        _refuse_secrets(asdict(self._config))
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot write to output_dir {self.path}: {error.strerror}") from None
        self._refuse_other_configuration(self._config)

    def write_down(self) -> None:
        """Write configuration and versions."""
        config = self._config
        write_whole(self.path / "config.yaml", as_yaml(config).encode())
        write_whole(self.path / "versions.json", f"{json.dumps(versions(), indent=1)}\n".encode())

    def _refuse_other_configuration(self, config: Recipe) -> None:
        path = self.path / "config.yaml"
        if not path.is_file() or not self._has_results():
            return
        try:
            before = OmegaConf.to_container(OmegaConf.load(path))
        except Exception:  # whatever YAML and OmegaConf make of a file that is not theirs
            before = None
        if not isinstance(before, dict):
            raise ConfigurationError(f"{path} is not the configuration of a run; choose another output_dir, or delete that file")
        _refuse_difference(self.path, before, asdict(config), config.free)

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


def as_yaml(config: Recipe) -> str:
    """Return a typed configuration as the text of config.yaml."""
    return OmegaConf.to_yaml(OmegaConf.create(asdict(config)))


def refuse_other(folder: Path, recorded: Path, now: dict[str, Any], free: str) -> None:
    """Refuse a part's folder that holds trees of something else than what the file `recorded` beside them and `now` both say.

    Raises:
        ConfigurationError: naming the first key that differs.
    """
    trees = folder / "trees.jsonl"
    if recorded.is_file() and trees.is_file() and not _is_only_a_header(trees):
        _refuse_difference(folder, json.loads(recorded.read_text()), now, free)


def _refuse_difference(folder: Path, recorded: Any, configured: Any, free: str) -> None:
    before, now = flat(recorded), flat(configured)
    for key in sorted(before.keys() | now.keys()):
        old, new = _comparable(before.get(key)), _comparable(now.get(key))
        if old == new or re.fullmatch(free, key) or (key in _LENGTHS and _grew(key, old, new, now)):
            continue
        raise ConfigurationError(
            f"{folder} holds a run with {key}={old!r}, and this one has {new!r}; choose another output_dir, or delete that folder"
        )


def _comparable(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _grew(key: str, old: Any, new: Any, now: dict[str, Any]) -> bool:
    """Say whether a run is only to be longer than it was, and what that means for a rate that was planned by its length."""
    if not old or not new or 0 < new < old:
        return False
    if is_planned_by_length(now["optimization.lr_scheduler"], now["optimization.warmup_steps"]):
        print(
            f"{key} was {old} and is {new}: the learning rate goes on as a run of the new length would have it "
            f"(lr_scheduler={now['optimization.lr_scheduler']}), so it is not the rate of a run of that length from the start"
        )
    return True


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
