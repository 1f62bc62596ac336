"""What stands on the command line after the recipe's name, checked before anything is loaded.

Hydra's own errors are meant for its programmers. Here each mistake in an override (a key that is misspelled or taken out, an
unknown choice, a value of the wrong type) becomes one sentence, with the nearest name where there is one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from simulators.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from omegaconf import DictConfig

Config = TypeVar("Config")

_OPEN = (
    "environment.options", "user.options", "method.trl", "candidates", "environments", "min_components", "policies", "splits",
    "users",
)  # fmt: skip
"""Mappings whose keys are the user's own."""
_FLAGS_WITH_VALUE = ("--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd")


def name_of(kind: type) -> str:
    """Return the name of the configuration in `conf/` that a schema types."""
    from recipes.configuration.schema import SCHEMAS

    return next(name for name, schema in SCHEMAS.items() if schema is kind)


def check(config_name: str, arguments: Sequence[str]) -> None:
    """Compose the configuration once by itself.

    Raises:
        ConfigurationError: as `composed` does.
    """
    from hydra import initialize_config_dir

    from recipes.configuration import choices

    choices.register()
    given = [each for each in _overrides(arguments) if not each.startswith("hydra")]
    choices.register_own(given)
    with initialize_config_dir(version_base="1.3", config_dir=str(choices.conf_dir())):
        composed(config_name, given)


def composed(config_name: str, overrides: Sequence[str]) -> DictConfig:
    """Return a recipe's configuration with overrides as one would type them, where Hydra has been started.

    Raises:
        ConfigurationError: when Hydra cannot compose it, or when it would have other keys than the recipe knows.
    """
    from hydra import compose
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        chosen = [each for each in overrides if each.partition("=")[0] == "method"]  # its settings are keys of their own
        known = list(_keys(OmegaConf.to_container(compose(config_name, overrides=chosen))))
    except HydraException as error:
        raise ConfigurationError(_explain(error, chosen, [])) from None
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
            taken_out = ", ".join(mapping for mapping in _OPEN if mapping in known)
            raise ConfigurationError(f"{key!r} cannot be taken out; only entries of {taken_out} can")
    return config


def typed(kind: type[Config], config: DictConfig) -> Config:
    """Return a composed configuration as the dataclass that types it.

    Raises:
        ConfigurationError: naming the first key without a value, or the values that a dataclass refuses.
    """
    from omegaconf import OmegaConf

    if missing := sorted(OmegaConf.missing_keys(config)):
        raise ConfigurationError(f"{missing[0]} is not set; add {missing[0]}=VALUE to the command")
    for key in config:
        _refuse_unsound(str(key), config[key])
    made = OmegaConf.to_object(config)
    assert isinstance(made, kind)
    return made


def stage_configuration(kind: type[Config], overrides: Sequence[str]) -> Config:
    """Return the configuration of another recipe with overrides as one would type them, where Hydra has been started.

    Raises:
        ConfigurationError: as `composed` and `typed` do.
    """
    return typed(kind, composed(name_of(kind), overrides))


def _refuse_unsound(key: str, node: Any) -> None:
    """Make an object of a part of the configuration, so that the sentence of a dataclass that refuses it says where it stood."""
    from omegaconf import OmegaConf

    try:
        OmegaConf.to_object(node) if OmegaConf.is_config(node) else None
    except ConfigurationError as error:
        raise error if str(error).startswith(key) else ConfigurationError(f"{key}: {error}") from None


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

    from recipes.configuration.choices import groups

    choices = groups()
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals and not key.startswith("~"):
            return f"{override!r} is no override; write KEY=VALUE{did_you_mean(key, [*known, *choices])}"
        key = key.lstrip("+~")
        if equals and key in choices and ":" not in value and value not in choices[key]:
            return f"unknown {key} {value!r}{did_you_mean(value, choices[key])}; known are {', '.join(choices[key])}"
        if key not in known and key not in choices and not _is_open(key):
            return f"unknown configuration key {key!r}{did_you_mean(key, [*known, *choices])}"
        if reason := _unreadable(override):
            return f"{override} cannot be read ({reason}); quote a value with , = or brackets in it: \"{key}='{value}'\""
    cause: Any = error.__cause__ or error
    reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
    at, kind = getattr(cause, "full_key", None), getattr(cause, "object_type", None)
    if isinstance(cause, ConfigKeyError) and dataclasses.is_dataclass(kind):
        reason = f"there is no such key{did_you_mean(str(cause.key), [each.name for each in dataclasses.fields(kind)])}"
    return f"{at}: {reason}" if at else reason


def _unreadable(override: str) -> str:
    """Return why Hydra's grammar cannot take an override for one value, "" where it can."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        (entry,) = as_entries([override])
        return "several values" if OverridesParser.create().parse_override(entry).is_sweep_override() else ""
    except HydraException as error:
        return str(error).splitlines()[0]


def _is_open(key: str) -> bool:
    return key.startswith(tuple(f"{mapping}." for mapping in _OPEN))


def _keys(node: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield f"{prefix}{key}"
            yield from _keys(value, f"{prefix}{key}.")
