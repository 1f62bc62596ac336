"""What the groups of the configuration may be set to: the files of `conf/`, every registered name, and code of one's own.

`environment=NAME` and `user=NAME` need no file for a name that has no settings of its own, and `environment=module:function`,
`user=module:function` and `method=module:Class` none at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from collab.environments.registry import DOMAINS
from collab.environments.users import USERS
from collab.training.online_method import METHODS, load_method
from recipes.configuration.schema import SCHEMAS


def conf_dir() -> Path:
    """Return the folder of the Hydra tree: beside the package in a checkout, inside it in an installed wheel."""
    package = Path(__file__).parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def _method(name: str) -> dict[str, Any]:
    return {"algorithm": name, "method": OmegaConf.structured(load_method(name).Settings)}


NAMED: dict[str, tuple[Callable[[str], dict[str, Any]], Sequence[str], str]] = {
    "environment": (lambda name: {"name": name}, tuple(DOMAINS), "environment"),
    "user": (lambda name: {"kind": name}, tuple(USERS), "user"),
    "method": (_method, tuple(METHODS), "_global_"),
}
"""For each group whose choices need no file: what a name stands for, the registered names, and where in the configuration."""


def groups() -> dict[str, list[str]]:
    """Return every group with its choices, by name."""
    found = {path.name: {file.stem for file in path.glob("*.yaml")} for path in conf_dir().iterdir() if path.is_dir()}
    return {name: sorted(choices | set(NAMED[name][1] if name in NAMED else ())) for name, choices in found.items()}


@cache
def register() -> None:
    """Make the schemas known to Hydra as `schema/<recipe>`, registered names as choices of their groups, and
    `${evaluated:...}`, the folder name of several environments."""
    OmegaConf.register_new_resolver("evaluated", lambda several, one: "+".join(several) or one, replace=True)
    store = ConfigStore.instance()
    for name, node in SCHEMAS.items():
        store.store(group="schema", name=name, node=node, package="_global_")
    for group, (_, names, _) in NAMED.items():
        for name in names:
            _store(group, name)


def register_own(overrides: Sequence[str]) -> None:
    """Make `GROUP=module:name` a choice of its group, wherever that stands among the overrides.

    Raises:
        ConfigurationError: a method that cannot be loaded (its settings are typed, so they are needed now).
    """
    for override in overrides:
        group, _, name = override.partition("=")
        if group in NAMED and ":" in name:
            _store(group, name)


def _store(group: str, name: str) -> None:
    """Make a name a choice, or what its file in `conf/` starts from (`schema/GROUP/NAME`) where it has one."""
    settings, _, package = NAMED[group]
    place = f"schema/{group}" if (conf_dir() / group / f"{name}.yaml").is_file() else group
    ConfigStore.instance().store(group=place, name=name, node=settings(name), package=package)
