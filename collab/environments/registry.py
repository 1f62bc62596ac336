"""The domains by name. Each entry is `module:function`; the function takes the domain's options and returns a `Domain`.

A domain of your own needs no entry: name it as `module:function` wherever a name is asked for (docs/own_domain.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from collab.environments.domain import Domain, Environment, Resources
from collab.environments.reward_terms import RewardTerm, with_reward
from collab.environments.users import with_user
from simulators.errors import ConfigurationError
from simulators.object_reference import checked_arguments, load_object

DOMAINS: dict[str, str] = {
    "abg_coqa": "collab.environments.collabllm.abg_coqa:domain",
    "code_chat": "collab.environments.collabllm.code_chat:domain",
    "doc_edit": "collab.environments.collabllm.doc_edit:domain",
    "errands": "collab.environments.errands:domain",
    "evolving_calls": "collab.environments.evolving_intent.calls.domain:domain",
    "evolving_gsm8k": "collab.environments.evolving_intent.gsm8k.domain:domain",
    "evolving_search": "collab.environments.evolving_intent.agentic.search:domain",
    "evolving_software": "collab.environments.evolving_intent.agentic.software:domain",
    "evolving_sql": "collab.environments.evolving_intent.sql.domain:domain",
    "lost_in_conversation": "collab.environments.lost_in_conversation.domain:domain",
    "math_chat": "collab.environments.collabllm.math_chat:domain",
}


def load_domain(name: str, options: Mapping[str, Any] | None = None) -> Domain:
    """Return a domain by name (or `module:function`), with its options set.

    Raises:
        ConfigurationError: for an unknown name or option (it names the nearest one), or an option of the wrong type.
    """
    factory = load_object(name, "environment", DOMAINS)
    domain = factory(**checked_arguments(factory, options or {}, f"environment {name}"))
    if not isinstance(domain, Domain):
        raise ConfigurationError(f"environment {name} is not a domain: its function returned a {type(domain).__name__}")
    return domain


def load_environment(
    name: str,
    resources: Resources,
    options: Mapping[str, Any] | None = None,
    *,
    user: str = "scripted",
    user_options: Mapping[str, Any] | None = None,
    reward: Sequence[RewardTerm] = (),
) -> Environment:
    """Return an environment ready to run; `user` and `reward` put another user or another R* into it.

    Raises:
        ConfigurationError: as `load_domain`, `with_user` and `with_reward` do, or when the domain needs a model that `resources`
            lacks.
    """
    domain = with_user(load_domain(name, options), user, user_options)
    return Environment(with_reward(domain, reward), resources)
