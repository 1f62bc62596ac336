"""Settings of the online methods: how conversations are sampled, and what each method adds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from simulators.errors import ConfigurationError


@dataclass(slots=True)
class VLLMSettings:
    """The vLLM engine that samples, where one does.

    `server_url` is the root of a vLLM server started for training (`docs/gpu.md` has the command), or a list of them, which must
    be on this machine's CPU. The others are for vLLM in the training process: the share of a GPU's memory it may take, and its
    context in tokens (None: the model's own); `cpu_options` are more arguments of vLLM's `EngineArgs`, for an engine on CPU.
    """

    server_url: Any = "http://127.0.0.1:8000"  # a text or a list of texts, which a typed configuration cannot say
    server_timeout_s: float = 600.0
    group_port: int = 51216
    memory_share: float = 0.3
    context_tokens: int | None = None
    cpu_options: dict[str, Any] = field(default_factory=dict)

    @property
    def server_urls(self) -> list[str]:
        return [self.server_url] if isinstance(self.server_url, str) else list(self.server_url)


@dataclass(slots=True)
class RolloutSettings:
    """How conversations are sampled from the current policy.

    `engine` is what samples: `transformers` (in the training process), `vllm_server` or `vllm_in_process`. `max_tokens` bounds
    one reply; the whole conversation is bounded by the optimization settings' `max_length`. `max_turns` is how many replies the
    policy gives in an episode (None: until the environment's own limit). `system_prompt` stands before every conversation.

    `reward` says what an episode earns: `outcome` is R* of the conversation as it stands at its end, `mr` the Multiturn-aware
    Reward of its last reply (with `max_turns` 1 on stored histories that is CollabLLM's own online setting, section 3.2).
    `window_turns` and `num_samples` are MR's (Table 6), wherever MR is estimated.

    `stop_after_failed_rounds`: a run in which every conversation failed that many times in a row stops. `logged_conversations`
    of each rollout are shown in wandb, where the run reports there; trees.jsonl has all of them.
    """

    engine: str = "transformers"
    max_tokens: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    max_turns: int | None = None
    system_prompt: str | None = None
    reward: str = "outcome"
    window_turns: int = 2
    num_samples: int = 3
    max_batch_size: int = 64
    stop_after_failed_rounds: int = 3
    logged_conversations: int = 4
    vllm: VLLMSettings = field(default_factory=VLLMSettings)

    def __post_init__(self) -> None:
        self.vllm = _nested(self.vllm, VLLMSettings)
        _one_of("rollout.engine", self.engine, ENGINES)
        _one_of("rollout.reward", self.reward, ("outcome", "mr"))
        if self.temperature <= 0:
            raise ConfigurationError(
                f"rollout.temperature is {self.temperature}; online training explores by sampling, so it must be above 0"
            )
        for name in ("max_tokens", "num_samples", "max_batch_size"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"rollout.{name} is {getattr(self, name)}; it must be at least 1")
        if self.window_turns < 0:
            raise ConfigurationError(f"rollout.window_turns is {self.window_turns}; it must be 0 or more")
        if self.max_turns is not None and self.max_turns < 1:
            raise ConfigurationError(f"rollout.max_turns is {self.max_turns}; an episode has at least one reply")


DECIDES_NOTHING = (
    "rollout.logged_conversations",
    "rollout.stop_after_failed_rounds",
    "rollout.vllm.server_url",
    "rollout.vllm.server_timeout_s",
    "rollout.vllm.group_port",
    "rollout.vllm.memory_share",
)
"""Settings of every method that may differ between two starts of one run."""

ENGINES = ("transformers", "vllm_server", "vllm_in_process")

CREDITS = ("outcome", "mr_difference", "mr_branch")

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {"loss_type": "grpo", "importance_sampling_level": "token", "scale_rewards": "group"},
    "dr_grpo": {"loss_type": "dr_grpo", "importance_sampling_level": "token", "scale_rewards": "none"},
    "dapo": {
        "loss_type": "dapo",
        "importance_sampling_level": "token",
        "scale_rewards": "group",
        "epsilon_high": 0.28,
        "mask_truncated_completions": True,
    },
    "gspo": {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "scale_rewards": "group",
        "epsilon": 3e-4,
        "epsilon_high": 4e-4,
    },
}
"""What the papers set: GRPO (2402.03300), Dr. GRPO (2503.20783), DAPO (2503.14476), GSPO (2507.18071), in TRL's arguments."""


@dataclass(slots=True)
class GRPOSettings:
    """Group Relative Policy Optimization over conversations.

    `group_size` G conversations (or replies, with credit `mr_branch`) are sampled for each task and compared with each other.

    `credit` says what a turn of an episode is credited with (`collab.training.credit` has the definitions):
    `outcome`: every policy token gets the episode's advantage;
    `mr_difference`: each turn gets the change in MR that it made;
    `mr_branch`: at every turn G replies to the same history are compared by their MR, and the conversation goes on from one of
    them, the best or (`continue_from` softmax) one drawn with probability ~ exp(MR / `softmax_temperature`).

    `variant` names one of the published losses (`grpo`, `dr_grpo`, `dapo`, `gspo`); `trl` overrides it with any arguments of
    TRL's GRPOConfig. `drop_dead_groups` leaves groups whose rewards are all equal out of the loss altogether, as DAPO does: they
    have no advantage, but their tokens would count in its mean. `kl_beta` above 0 keeps the policy near where it started. A
    rollout feeds `updates_per_rollout` optimizer steps, each batch of which is used `iterations` times.
    """

    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    group_size: int = 8
    credit: str = "outcome"
    continue_from: str = "best"
    softmax_temperature: float = 0.1
    variant: str = "dapo"
    drop_dead_groups: bool = True
    kl_beta: float = 0.0
    updates_per_rollout: int = 1
    iterations: int = 1
    eval_steps: int = 0
    trl: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rollout = _nested(self.rollout, RolloutSettings)
        _one_of("credit", self.credit, CREDITS)
        _one_of("continue_from", self.continue_from, ("best", "softmax"))
        _one_of("variant", self.variant, tuple(VARIANTS))
        if self.group_size < 2:
            raise ConfigurationError(f"group_size is {self.group_size}; GRPO compares at least 2 conversations of a task")
        if self.credit == "mr_difference" and self.rollout.max_turns == 1:
            raise ConfigurationError(
                "credit mr_difference spreads reward over turns, and rollout.max_turns is 1; raise it or use credit outcome"
            )
        if self.credit == "mr_difference" and self.rollout.reward == "mr":
            raise ConfigurationError("credit mr_difference ends in the outcome of the episode; set rollout.reward to outcome")
        _refuse_owned(self.trl)


@dataclass(slots=True)
class OnlineDPOSettings:
    """Online DPO: at every turn `group_size` replies to the same history are compared by MR; best and worst become a pair.

    Pairs with an MR gap of at most `min_gap` teach nothing (ties: nothing at all) and are left out of loss and mean. `beta` is
    DPO's. The conversation goes on from the best reply (or by softmax, as in GRPO's mr_branch).
    """

    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    group_size: int = 4
    beta: float = 0.1
    min_gap: float = 0.0
    continue_from: str = "best"
    softmax_temperature: float = 0.1
    updates_per_rollout: int = 1
    eval_steps: int = 0
    trl: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rollout = _nested(self.rollout, RolloutSettings)
        _one_of("continue_from", self.continue_from, ("best", "softmax"))
        if self.group_size < 2:
            raise ConfigurationError(f"group_size is {self.group_size}; a pair needs at least 2 replies")
        if self.beta <= 0:
            raise ConfigurationError(f"beta is {self.beta}; DPO needs it above 0")
        if self.min_gap < 0:
            raise ConfigurationError(f"min_gap is {self.min_gap}; it must be 0 or more")
        _refuse_owned(self.trl)


@dataclass(slots=True)
class CriticSettings:
    """PPO's value function, fitted by itself after every rollout (its loss never touches the policy's weights).

    `kind` is where it lives: `adapter` is a LoRA adapter of its own on the policy's base model, `model` a model of its own
    (`model`, None: the policy's base) with a LoRA adapter. Both end in a scalar head. `rank` and `alpha` are the adapter's;
    `epochs` passes over a rollout in batches of `batch_size` conversations; `clip` bounds how far a value may move from its old
    one within a rollout (PPO's value clipping; 0: unbounded). For `warmup_steps` optimizer steps only the critic learns.
    """

    kind: str = "adapter"
    model: str | None = None
    rank: int = 32
    alpha: int = 16
    learning_rate: float = 1e-4
    epochs: int = 2
    batch_size: int = 8
    clip: float = 0.2
    warmup_steps: int = 0
    frozen: bool = False

    def __post_init__(self) -> None:
        _one_of("critic.kind", self.kind, ("adapter", "model"))
        if self.model is not None and self.kind == "adapter":
            raise ConfigurationError("critic.model is set, and critic.kind adapter uses the policy's own base; set kind to model")


@dataclass(slots=True)
class PPOSettings:
    """Proximal Policy Optimization with a critic, over the policy tokens of whole conversations.

    `credit` says where reward is paid: `outcome` at the last policy token, `mr_difference` at the last token of every turn (the
    change in MR that the turn made). `gamma` and `gae_lambda` discount from policy token to policy token; user tokens are
    skipped. `kl_beta` weighs the divergence from the starting policy, paid as a negative reward per token (`kl_in` reward,
    Ziegler et al. 2019) or as a term of the loss (`kl_in` loss). `clip` is the ratio's; `whiten` normalises advantages over the
    whole batch, on all ranks. A rollout feeds `updates_per_rollout` optimizer steps, `iterations` times over.
    """

    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    critic: CriticSettings = field(default_factory=CriticSettings)
    credit: str = "outcome"
    gamma: float = 1.0
    gae_lambda: float = 0.95
    kl_beta: float = 0.05
    kl_in: str = "reward"
    clip: float = 0.2
    whiten: bool = True
    updates_per_rollout: int = 1
    iterations: int = 1
    eval_steps: int = 0
    trl: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rollout = _nested(self.rollout, RolloutSettings)
        self.critic = _nested(self.critic, CriticSettings)
        _one_of("credit", self.credit, ("outcome", "mr_difference"))
        _one_of("kl_in", self.kl_in, ("reward", "loss"))
        for name in ("gamma", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; it must lie in [0, 1]")
        if self.credit == "mr_difference" and self.rollout.reward == "mr":
            raise ConfigurationError("credit mr_difference ends in the outcome of the episode; set rollout.reward to outcome")
        _refuse_owned(self.trl)


_OWNED = (
    "num_generations",
    "num_generations_eval",
    "max_completion_length",
    "temperature",
    "top_p",
    "beta",
    "num_iterations",
    "steps_per_generation",
    "generation_batch_size",
    "use_vllm",
    "vllm_mode",
    "use_transformers_continuous_batching",
    "log_completions",
)


Settings = TypeVar("Settings")


def _nested(value: Settings | Mapping[str, Any], kind: type[Settings]) -> Settings:
    """Settings inside settings may come as plain mappings, as configuration files hold them."""
    return kind(**value) if isinstance(value, Mapping) else value


def _refuse_owned(overrides: Mapping[str, Any]) -> None:
    """Arguments that our own settings set must not be set a second time behind their back."""
    if taken := sorted(set(overrides) & set(_OWNED)):
        raise ConfigurationError(f"trl.{taken[0]} is set by the method's own settings; change it there")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigurationError(f"{name} is {value!r}; it must be one of {', '.join(known)}")
