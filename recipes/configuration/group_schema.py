"""The typed groups of the configuration that recipes share: models and how they are asked, environments, candidates, MR.

`recipes.configuration.schema` has the configuration of every recipe, made of these.
"""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from collab.environments.reward_terms import RewardTerm
from collab.environments.users import is_played_by_a_model
from simulators.budget import Price
from simulators.chat_models.protocol import SamplingSettings
from simulators.errors import ConfigurationError
from simulators.users.role_play import RolePlayOptions


@dataclass
class Sampling:
    """How tokens are drawn. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 switch the cuts off. A reply ends where one of the
    `stop` strings appears, which is cut off unless `include_stop`.
    """

    max_tokens: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: list[str] = field(default_factory=list)
    include_stop: bool = False

    def settings(self) -> SamplingSettings:
        """Return them as the chat models take them.

        Raises:
            ConfigurationError: when a value is out of its range.
        """
        try:
            return SamplingSettings(**{**vars(self), "stop": tuple(self.stop)})
        except ValueError as error:
            raise ConfigurationError(str(error)) from None


@dataclass
class PriceConfig:
    """What a model charges, in money per million tokens; `cached` null charges cached prompt tokens like others."""

    prompt: float = 0.0
    completion: float = 0.0
    cached: float | None = None

    def price(self) -> Price | None:
        """Return it as a budget takes it; None where nothing is charged."""
        price = Price(self.prompt, self.completion, self.cached)
        return None if price == Price() else price


@dataclass
class BudgetConfig:
    """What a run may spend over all its starts; null is no limit. Raise it and start again to go on."""

    max_calls: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None


@dataclass
class Model:
    """A chat model. `backend` is transformers or vllm_in_process (both in process), or server (any OpenAI-compatible one).

    `model` is `embedded`, a folder or a Hub id; for a server, the name it serves. `adapter` is a LoRA folder (in process).
    `api_key_env` names the environment variable with a server's API key; `extensions` says that it is a vLLM server;
    `tokenizer` counts tokens where the served name is not a model that can be loaded.
    """

    backend: str = "transformers"
    model: str = "embedded"
    adapter: str | None = None
    dtype: str = "auto"
    max_batch_size: int = 64
    urls: list[str] = field(default_factory=list)
    tokenizer: str | None = None
    api_key_env: str | None = None
    extensions: bool = False
    send_seed: bool = True
    deadline_s: float = 600.0
    max_concurrency: int = 1024
    price: PriceConfig = field(default_factory=PriceConfig)


@dataclass
class PolicyConfig(Model):
    """The assistant. `prompt` is `none`, `base` or `proactive` (the environment's, CollabLLM section 4), or a system prompt."""

    sampling: Sampling = field(default_factory=Sampling)
    prompt: str = "none"


@dataclass
class UserConfig(Model):
    """The user. `kind` is scripted (rules, no model), role_play (a model plays the human, as the `persona` described), or
    `module:function` with its `options`: a user of your own, which is given the `model` where one is named.
    """

    kind: str = "scripted"
    options: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    temperature: float = 1.0
    max_tokens: int = 512
    persona: str = ""

    @property
    def is_played_by_a_model(self) -> bool:
        return is_played_by_a_model(self.kind, self.model)

    def role_play(self) -> RolePlayOptions:
        """Return how a user that a model plays writes.

        Raises:
            ConfigurationError: when its temperature or token limit is out of range.
        """
        try:
            return RolePlayOptions(SamplingSettings(self.max_tokens, self.temperature), persona=self.persona)
        except ValueError as error:
            raise ConfigurationError(f"user: {error}") from None


@dataclass
class JudgeConfig(Model):
    """The judge. `kind` is none (rule-based rewards only) or llm."""

    kind: str = "none"

    def __post_init__(self) -> None:
        if self.kind not in ("none", "llm"):
            raise ConfigurationError(f"unknown judge kind {self.kind!r}; known are none and llm")


@dataclass
class RewardConfig:
    """R*. `terms` are its terms (collab.environments.reward_terms); without any it is the environment's own."""

    terms: list[RewardTerm] = field(default_factory=list)


@dataclass
class EnvironmentConfig:
    """An environment by name, with its options. `token_penalty` null takes the environment's own lambda."""

    name: str = MISSING
    options: dict[str, Any] = field(default_factory=dict)
    token_penalty: float | None = None


@dataclass
class Candidate:
    """One source of candidate replies: how many a turn, and what differs from the policy (null: nothing).

    `policy` overrides keys of the policy, for another model: `{backend: server, model: NAME, urls: [...]}`.
    """

    count: int = 1
    policy: dict[str, Any] = field(default_factory=dict)
    prompt: str | None = None
    reply_prefixes: list[str] = field(default_factory=list)
    temperature: float | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None
    include_stop: bool = False


@dataclass
class ForwardSampling:
    """How MR is estimated (CollabLLM Table 6: window 2, 3 futures).

    With `max_samples` the candidates of a turn get up to so many futures, until their best is known at `confidence`; the MR that
    is reported is over the first `num_samples` (simulators.adaptive_sampling).
    """

    window_turns: int = 2
    num_samples: int = 3
    max_samples: int | None = None
    confidence: float = 0.95
