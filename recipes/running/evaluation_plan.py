"""What an evaluation plays: every policy in every environment with every user under every seed, each a part with a folder of
its own, checked before anything is loaded.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from collab.evaluation.comparison import Cell
from recipes.configuration.group_schema import EnvironmentConfig, PolicyConfig, UserConfig
from recipes.configuration.schema import Evaluate, EvaluatedPolicyConfig
from recipes.running.assembly import overridden, refuse_unplayed
from recipes.running.run import ROLES
from recipes.running.run_folder import refuse_other
from simulators.errors import ConfigurationError, did_you_mean
from simulators.whole_file import write_whole

_NAME = re.compile(r"[A-Za-z0-9][\w .=+@-]*")
"""What an entry may be called: its name becomes a folder's and a label."""
PART = "part.json"
SERVED = "served"


@dataclass(frozen=True)
class Part:
    """One policy in one environment with one user under one seed.

    `config` is the run's configuration as it is here; `number` is the seed's place among the seeds. `user` is empty where the
    run has only its one `user`.
    """

    environment: str
    user: str
    policy: str
    seed: int
    number: int
    config: Evaluate
    success_at: float
    trained_with: str | None
    baseline: bool
    path: Path

    @property
    def models(self) -> str:
        """Says which parts are played together: all served policies at once, those in this process a model at a time."""
        policy = self.config.policy
        if policy.backend in ("server", "scripted"):
            return SERVED
        return json.dumps([policy.backend, policy.model, policy.adapter])

    def cell(self) -> Cell:
        """Return the part as a cell of the results, without conversations yet."""
        prices = {role: getattr(self.config, role).price.price() for role in ROLES}
        return Cell(
            self.environment,
            self.user,
            self.policy,
            (),
            success_at=self.success_at,
            domain=self.config.environment.name,
            options=self.config.environment.options,
            trained_with=self.trained_with,
            baseline=self.baseline,
            prices={role: price for role, price in prices.items() if price is not None},
        )

    def played(self) -> dict[str, Any]:
        """Return what is played here, for `part.json`: all that the conversations depend on."""
        names = ("environment", "reward", "policy", "user", "judge", "tasks", "split", "runs", "score_turns")
        return {name: value for name, value in asdict(self.config).items() if name in names} | {"seed": self.seed}

    def refuse_other(self, root: Path) -> None:
        """Look whether the part's folder holds conversations of something else.

        Raises:
            ConfigurationError: it does; the text names the first difference.
        """
        refuse_other(root / self.path, root / self.path / PART, self.played(), self.config.free)

    def claim(self, root: Path) -> None:
        """Note in the part's folder what it plays."""
        write_whole(root / self.path / PART, f"{json.dumps(self.played(), indent=1)}\n".encode())


def parts(config: Evaluate) -> list[Part]:
    """Return every part of an evaluation, in the order of its table.

    Raises:
        ConfigurationError: no policies, a number that lets nothing happen, a name that is no folder's, an entry that cannot be.
    """
    if not config.policies:
        raise ConfigurationError("evaluate has no policies; name one, for instance policies.base.prompt=none")
    if config.runs < 1:
        raise ConfigurationError(f"runs is {config.runs}; an evaluation needs at least one run a task")
    seeds = config.seeds or [config.seed]
    if len(set(seeds)) < len(seeds):
        raise ConfigurationError(f"seeds are {seeds}; every seed may stand there once")
    for mapping in ("policies", "environments", "users"):
        for name in getattr(config, mapping):
            if not _NAME.fullmatch(name):
                raise ConfigurationError(f"{mapping}: {name!r} cannot be a folder; use letters, digits, '-' and '_'")
    environments = _environments(config)
    users = _users(config)
    policies = _policies(config, list(users))
    result = []
    for (where, place), (who, user), (name, policy) in itertools.product(
        environments.items(), users.items(), policies.items()
    ):  # fmt: skip
        for number, seed in enumerate(seeds):
            own = replace(place, user=user, policy=policy, seed=seed)
            entry = config.policies[name]
            named = where if config.environments else config.environment.name
            result.append(
                Part(
                    named,
                    who,
                    name,
                    seed,
                    number,
                    own,
                    _success_at(config, where),
                    entry.trained_with,
                    _is_baseline(config, entry),
                    _folder(config, where, who, name, seed),
                )
            )
    return result


def _folder(config: Evaluate, environment: str, user: str, policy: str, seed: int) -> Path:
    """Return the folder of a part below the run's: a level for whatever there may be several of."""
    levels = [environment] * bool(config.environments) + [user] * bool(config.users) + [policy]
    return Path(*levels, *([f"seed-{seed}"] if config.seeds else []))


def _environments(config: Evaluate) -> dict[str, Evaluate]:
    """Return the run's configuration for each environment."""
    found = {}
    for name, entry in config.environments.items():
        base = config.environment
        same = (entry.name or name) == base.name
        penalty = base.token_penalty if entry.token_penalty is None else entry.token_penalty
        own = EnvironmentConfig(entry.name or name, (base.options if same else {}) | entry.options, penalty)
        given = {key: value for key in ("tasks", "split", "limit") if (value := getattr(entry, key)) is not None}
        found[name] = replace(config, environment=own, **given)
    return found or {"": config}


def _users(config: Evaluate) -> dict[str, UserConfig]:
    """Return the user of each entry."""
    found = {}
    for name, entry in config.users.items():
        user = overridden(config.user, entry, f"users.{name}")
        refuse_unplayed(user, entry, f"users.{name}")
        if user.kind == "scripted":  # of a model's user only what the entry leaves of it
            user = replace(user, persona="", urls=[])
        found[name] = user
    return found or {"": config.user}


def _policies(config: Evaluate, users: Sequence[str]) -> dict[str, PolicyConfig]:
    """Return the policy of each entry: the configured one, with what the entry says otherwise."""
    found = {}
    for name, entry in config.policies.items():
        own = overridden(config.policy, entry.policy, f"policies.{name}.policy")
        if entry.trained_with is not None and entry.trained_with not in users:
            known = ", ".join(user for user in users if user) or "none"
            raise ConfigurationError(
                f"policies.{name}.trained_with is {entry.trained_with!r}{did_you_mean(entry.trained_with, users)}; "
                f"it must be one of `users`, and those are {known}"
            )
        found[name] = replace(own, prompt=entry.prompt or own.prompt, adapter=entry.adapter or own.adapter)
    return found


def _success_at(config: Evaluate, environment: str) -> float:
    entry = config.environments.get(environment)
    return config.success_at if entry is None or entry.success_at is None else entry.success_at


def _is_baseline(config: Evaluate, entry: EvaluatedPolicyConfig) -> bool:
    """Say whether a policy counts as one that was not trained: nothing but its prompt differs from a model without an adapter."""
    if entry.baseline is not None:
        return entry.baseline
    return entry.adapter is None and not entry.policy and config.policy.adapter is None
