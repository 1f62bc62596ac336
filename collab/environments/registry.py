"""The domains by name. Each entry is `module:function`; the function takes the domain's options and returns a `Domain`."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from collab.environments.domain import Domain, Environment, Resources
from simulators.errors import ConfigurationError

DOMAINS: dict[str, str] = {
    "errands": "collab.environments.errands:domain",
    "lost_in_conversation": "collab.environments.lost_in_conversation.domain:domain",
    "math_chat": "collab.environments.collabllm.math_chat:domain",
}


def load_domain(name: str, options: Mapping[str, Any] | None = None) -> Domain:
    """Return a domain by name, with its options set.

    Raises:
        ConfigurationError: for an unknown name or option; it names the nearest one.
    """
    if name not in DOMAINS:
        known = ", ".join(sorted(DOMAINS))
        raise ConfigurationError(f"unknown environment {name!r}{_nearest(name, DOMAINS)}; known are {known}")
    module, function = DOMAINS[name].split(":")
    factory = getattr(importlib.import_module(module), function)
    parameters = inspect.signature(factory).parameters
    for option in options or {}:
        if option not in parameters:
            raise ConfigurationError(f"environment {name} has no option {option!r}{_nearest(option, parameters)}")
    domain = factory(**(options or {}))
    assert isinstance(domain, Domain)
    return domain


def load_environment(name: str, resources: Resources, options: Mapping[str, Any] | None = None) -> Environment:
    """Return an environment ready to run.

    Raises:
        ConfigurationError: as `load_domain` does, or when the domain needs a model that `resources` lacks.
    """
    return Environment(load_domain(name, options), resources)


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
