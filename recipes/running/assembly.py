"""From a typed configuration to the objects that do the work: tasks, an environment, a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any, TypeVar

from collab.environments.domain import Domain, Environment, Resources
from collab.environments.loading import LoadedTasks, load_tasks
from collab.environments.registry import load_domain, load_environment
from recipes.configuration.group_schema import EnvironmentConfig, PolicyConfig, UserConfig
from recipes.configuration.overrides import typed
from recipes.configuration.schema import Play, Tasks
from recipes.running.models import Models
from simulators.errors import ConfigurationError, did_you_mean
from simulators.policy import Policy

_REASONS = 3
"""How many reasons are told why records do not suit an environment."""

Group = TypeVar("Group")


def environment(config: Play, models: Models, count_tokens: Callable[[str], int]) -> Environment:
    """Return the environment with its user, judge and reward, as the configuration has them."""
    refuse_unplayed(config.user, [key for key in ("persona", "urls") if getattr(config.user, key)])
    resources = Resources(
        count_tokens=count_tokens,
        user_model=models.load(config.user) if config.user.is_played_by_a_model else None,
        judge_model=models.load(config.judge) if config.judge.kind == "llm" else None,
        role_play=config.user.role_play(),
        token_penalty=config.environment.token_penalty,
    )
    return load_environment(
        config.environment.name,
        resources,
        config.environment.options,
        user=config.user.kind,
        user_options=config.user.options,
        reward=config.reward.terms,
    )


def policy_environment(config: Tasks, models: Models) -> Environment:
    """Return the environment of a recipe that has a policy, whose own tokenizer counts the tokens."""
    return environment(config, models, _policy_tokens(config.policy, models))


def _policy_tokens(config: PolicyConfig, models: Models) -> Callable[[str], int]:
    try:
        return models.tokens_of(config.tokenizer or config.model)
    except ConfigurationError as error:
        if config.backend != "server":
            raise
        raise ConfigurationError(
            f"tokens of a served model are counted here: set policy.tokenizer to its folder or Hub id ({error})"
        ) from None


def overridden(base: Group, entry: Mapping[str, Any], where: str) -> Group:
    """Return a group's configuration with the keys of an entry.

    Raises:
        ConfigurationError: for a key that the group does not have (it names the nearest one), or a value of the wrong type.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    assert is_dataclass(base)
    known = [each.name for each in fields(base)]
    for key in entry:
        if key not in known:
            raise ConfigurationError(f"{where}.{key}: there is no such key{did_you_mean(str(key), known)}")
    try:
        merged: Any = OmegaConf.merge(OmegaConf.structured(base), dict(entry))
    except OmegaConfBaseException as error:
        raise ConfigurationError(f"{where}: {str(error).splitlines()[0]}") from None
    return typed(type(base), merged)


def refuse_unplayed(user: UserConfig, given: Iterable[str], where: str = "user") -> None:
    """Refuse settings of a user that a model plays where none does.

    Raises:
        ConfigurationError: naming the first of `given`, the keys that somebody set.
    """
    unused = [key for key in ("persona", "urls", "model") if key in given]
    if user.kind == "scripted" and unused:
        raise ConfigurationError(
            f"{where}.{unused[0]} is for a user that a model plays; set {where}.kind=role_play, or leave it out"
        )


def domain(config: EnvironmentConfig) -> Domain:
    """Return an environment's definition, which needs no models."""
    return load_domain(config.name, config.options)


def tasks(config: Play, split: str | None = None, limit: int | None = None) -> LoadedTasks:
    """Return the configured tasks, or as many of another split; say how many records the environment has no use for, and why."""
    loaded = load_tasks(
        config.tasks,
        domain(config.environment),
        split=split or config.split,
        limit=limit or config.limit,
        on_bad_record="skip" if config.on_bad_record == "skip" else "refuse",
    )
    if loaded.unsuitable:
        often = sorted(loaded.unsuitable.items(), key=lambda entry: -entry[1])[:_REASONS]
        reasons = "; ".join(f"{number} x {reason}" for reason, number in often)
        count = sum(loaded.unsuitable.values())
        print(f"{config.tasks}: {count} record(s) do not suit {config.environment.name} as its options are: {reasons}")
    return loaded


def system_prompt(prompt: str | None, env: Environment) -> str | None:
    """Return the system prompt a configuration means by `none`, `base`, `proactive`, or a text of its own."""
    named = {None: None, "none": None, "base": env.domain.base_prompt, "proactive": env.domain.proactive_prompt}
    return named.get(prompt, prompt)


def policy(config: PolicyConfig, models: Models, env: Environment, name: str = "policy") -> Policy:
    """Return the configured policy."""
    return Policy(models.load(config), config.sampling.settings(), system_prompt=system_prompt(config.prompt, env), name=name)


def plain(config: Any) -> dict[str, Any]:
    """Return a typed configuration as plain data."""
    assert is_dataclass(config) and not isinstance(config, type)
    return asdict(config)
