"""Who plays the user: by name, or as `module:function` (docs/own_simulator.md).

A function gets `(task, resources, **options)` and returns a `User`; `resources.user_model` is the model that the configuration
names for the user, None where it names none. The built-in kinds are the domain's own user, made of rules or played by a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from collab.environments.domain import Domain, Resources
from collab.tasks.task import Task
from simulators.errors import ConfigurationError
from simulators.object_reference import checked_arguments, load_object
from simulators.users.protocol import User

OWN = ""
"""As a reference: the domain's own `make_user`."""


@dataclass(frozen=True, slots=True)
class UserKind:
    """A kind of user: the `module:function` that makes it, and whether a model plays it."""

    reference: str
    played_by_a_model: bool


USERS: dict[str, UserKind] = {
    "scripted": UserKind(OWN, played_by_a_model=False),
    "role_play": UserKind(OWN, played_by_a_model=True),
}


def is_played_by_a_model(kind: str, model: str) -> bool:
    """Say whether a user needs its model loaded: as its kind says, and where somebody named one for a user of their own."""
    return USERS[kind].played_by_a_model if kind in USERS else bool(model)


def with_user(domain: Domain, kind: str, options: Mapping[str, Any] | None = None) -> Domain:
    """Return a domain whose users are of a kind.

    Raises:
        ConfigurationError: an unknown kind (the nearest is named), one that cannot be loaded, or an option that it does not take.
    """
    if kind in USERS and USERS[kind].reference == OWN:
        if options:
            raise ConfigurationError(f"user {kind} has no options, and {next(iter(options))} is set")
        return domain
    function = load_object(kind, "user kind", {name: each.reference for name, each in USERS.items()})
    arguments = checked_arguments(function, options or {}, f"user {kind}", given=2)

    def make_user(task: Task, resources: Resources) -> User:
        user = function(task, resources, **arguments)
        if not isinstance(user, User):
            raise ConfigurationError(f"user {kind} is no user: its function returned a {type(user).__name__}")
        return user

    return replace(domain, make_user=make_user)
