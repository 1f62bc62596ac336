"""What stands on the command line after the recipe's name, checked before anything is loaded.

Hydra's own errors are meant for its programmers. Here each mistake in an override (a key that is misspelled or taken out, an
unknown choice, a value of the wrong type) becomes one sentence, with the nearest name where there is one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from simulators.errors import ConfigurationError, did_you_mean

_OPEN = ("environment.options", "candidates", "environments", "min_components", "policies", "splits", "users")
"""Mappings whose keys are the user's own."""
_FLAGS_WITH_VALUE = ("--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd")


def conf_dir() -> Path:
    """Return the folder of the Hydra tree: beside the package in a checkout, inside it in an installed wheel."""
    inside = Path(__file__).parent / "conf"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "conf"


def check(config_name: str, arguments: Sequence[str]) -> None:
    """Compose the configuration once by itself.

    Raises:
        ConfigurationError: as `composed` does.
    """
    from hydra import initialize_config_dir

    from recipes import schema

    schema.register()
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        composed(config_name, [each for each in _overrides(arguments) if not each.startswith("hydra")])


def composed(config_name: str, overrides: Sequence[str]) -> Any:
    """Return a recipe's configuration with overrides as one would type them, where Hydra has been started.

    Raises:
        ConfigurationError: when Hydra cannot compose it, or when it would have other keys than the recipe knows.
    """
    from hydra import compose
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    known = list(_keys(OmegaConf.to_container(compose(config_name))))
    try:
        config = compose(config_name, overrides=as_entries(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigurationError(_explain(error, overrides, known)) from None
    keys = list(_keys(OmegaConf.to_container(config)))
    for key in keys:  # Hydra lets a plus add anything at the top, and a tilde take anything out
        if key not in known and not _is_open(key):
            raise ConfigurationError(f"unknown configuration key {key!r}{did_you_mean(key, known)}")
    for key in known:
        if key not in keys and not _is_open(key):
            raise ConfigurationError(f"{key!r} cannot be taken out; only entries of {', '.join(_OPEN)} can")
    return config


def complete(config: Any) -> Any:
    """Return a configuration that has everything it must have.

    Raises:
        ConfigurationError: naming the first key without a value.
    """
    from omegaconf import OmegaConf

    if missing := sorted(OmegaConf.missing_keys(config)):
        raise ConfigurationError(f"{missing[0]} is not set; add {missing[0]}=VALUE to the command")
    return config


def as_entry(override: str) -> str:
    """Write `policies.NAME.KEY=VALUE` as Hydra wants it for a NAME that may be new: `+policies={NAME: {KEY: VALUE}}`."""
    return as_entries([override])[0]


def as_entries(arguments: Sequence[str]) -> list[str]:
    """Write every argument as `as_entry` does, those of one mapping as one: of several a sweep would keep only the last."""
    entries: list[str] = []
    values: dict[str, dict[str, Any]] = {}
    for argument in arguments:
        mapping, path, value = _entry(argument)
        if not path:
            entries.append(argument)
            continue
        if mapping not in values:
            entries.append(mapping)  # its place; the value is not complete yet
        inner = values.setdefault(mapping, {})
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        inner[path[-1]] = value
    return [f"+{entry}={_written(values[entry])}" if entry in values else entry for entry in entries]


def _entry(argument: str) -> tuple[str, list[str], str]:
    """Return the open mapping that an override is about ("": none), where in it, and the value as Hydra reads it in braces."""
    key, equals, value = argument.partition("=")
    for mapping in _OPEN:
        inside = key.lstrip("+").removeprefix(f"{mapping}.")
        if equals and inside != key.lstrip("+"):
            if "=" in value and value[0] not in "\"'[{":  # Hydra takes it in plain text, but not inside braces
                value = "'" + value.replace("'", "\\'") + "'"
            return mapping, inside.split("."), value
    return "", [], ""


def _written(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    return "{" + ", ".join(f"{name}: {_written(each)}" for name, each in value.items()) + "}"


def _overrides(arguments: Sequence[str]) -> list[str]:
    """Return the overrides among the arguments: what is neither a flag nor a flag's value."""
    overrides = []
    flag = ""
    for argument in arguments:
        if not argument.startswith("-") and flag not in _FLAGS_WITH_VALUE:
            overrides.append(argument)
        flag = argument if argument.startswith("-") else ""
    if any(argument in ("--multirun", "-m") for argument in arguments):
        overrides = [override for override in overrides if "," not in override and "range(" not in override]
    return overrides


def _explain(error: Exception, overrides: Sequence[str], known: Sequence[str]) -> str:
    """Say what is wrong with the overrides, naming the nearest key or choice."""
    from omegaconf.errors import ConfigKeyError

    groups = {path.name: sorted(file.stem for file in path.glob("*.yaml")) for path in conf_dir().iterdir() if path.is_dir()}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals and not key.startswith("~"):
            return f"{override!r} is no override; write KEY=VALUE{did_you_mean(key, [*known, *groups])}"
        key = key.lstrip("+~")
        if equals and key in groups and value not in groups[key]:
            return f"unknown {key} {value!r}{did_you_mean(value, groups[key])}; known are {', '.join(groups[key])}"
        if key not in known and key not in groups and not _is_open(key):
            return f"unknown configuration key {key!r}{did_you_mean(key, [*known, *groups])}"
    cause: Any = error.__cause__ or error
    reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
    at, kind = getattr(cause, "full_key", None), getattr(cause, "object_type", None)
    if isinstance(cause, ConfigKeyError) and dataclasses.is_dataclass(kind):
        reason = f"there is no such key{did_you_mean(str(cause.key), [each.name for each in dataclasses.fields(kind)])}"
    return f"{at}: {reason}" if at else reason


def _is_open(key: str) -> bool:
    return key.startswith(tuple(f"{mapping}." for mapping in _OPEN))


def _keys(node: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield f"{prefix}{key}"
            yield from _keys(value, f"{prefix}{key}.")
