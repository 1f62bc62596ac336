"""The typed configuration of every recipe. A key that is not here is an error that names the nearest one (`recipes.launch`).

The files in `conf/` fill these in; a group (policy, user, judge, environment, candidates) is chosen by name and any key can be
overridden: `collab build environment=math_chat policy.sampling.temperature=0.7`.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from collab.training.lora import LoraSettings
from collab.training.online_settings import GRPOSettings, OnlineDPOSettings, PPOSettings
from collab.training.settings import OptimizationSettings
from simulators.progress import EngineRates


@dataclass
class Sampling:
    """See simulators.chat_models.SamplingSettings."""

    max_tokens: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: list[str] = field(default_factory=list)
    include_stop: bool = False


@dataclass
class PriceConfig:
    """What a model charges, in money per million tokens; `cached` null charges cached prompt tokens like others."""

    prompt: float = 0.0
    completion: float = 0.0
    cached: float | None = None


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
    """The user. `kind` is scripted (rules, no model) or role_play (a model plays the human, as the `persona` described)."""

    kind: str = "scripted"
    temperature: float = 1.0
    max_tokens: int = 512
    persona: str = ""


@dataclass
class JudgeConfig(Model):
    """The judge. `kind` is none (rule-based rewards only) or llm."""

    kind: str = "none"


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


@dataclass
class Shard:
    """Which part of the tasks this process builds: every `count`th, from the `index`th on. `collab merge` joins the parts."""

    index: int = 0
    count: int = 1


@dataclass
class Tasks:
    """What every recipe that plays conversations has in common: tasks, who plays, and what stops the run.

    `engine` is what the engine allows a second, where known, for the efficiency in metrics.jsonl.
    `max_failure_share` of the latest futures may fail before the run stops; `budget` bounds what it spends.
    """

    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    tasks: str = "bundled"
    split: str = "train"
    limit: int | None = None
    on_bad_record: str = "refuse"
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    user: UserConfig = field(default_factory=UserConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    seed: int = 0
    output_dir: str = MISSING
    max_open_tasks: int = 64
    max_failure_share: float = 0.3
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    engine: EngineRates = field(default_factory=EngineRates)


@dataclass
class Chat(Tasks):
    """`collab chat`; `task` is the number of the task to talk about, from 0."""

    task: int = 0


@dataclass
class Build(Tasks):
    """`collab build`: tasks -> trees -> SFT and DPO datasets.

    `max_turns` and `max_conversation_tokens` bound a conversation. What makes a pair or an SFT reply: `min_gap`, `min_chosen_mr`,
    and a least mean for any reward component in `min_components` (collab.data.views.PairSettings); `length_quantiles` balances
    pairs by length. `splits` are shares by name, by task. `public_columns` adds the public CollabLLM layout. `licence` is that of
    the tasks, where it is not known by itself. `push_to` is a dataset on the Hub to push to; null: nothing leaves this machine.
    """

    candidates: dict[str, Candidate] = field(default_factory=dict)
    forward_sampling: ForwardSampling = field(default_factory=ForwardSampling)
    max_turns: int | None = None
    max_conversation_tokens: int | None = None
    min_chosen_mr: float | None = None
    min_components: dict[str, float] = field(default_factory=dict)
    min_gap: float = 0.0
    pairs_per_turn: int = 1
    length_quantiles: int | None = None
    splits: dict[str, float] = field(default_factory=dict)
    deduplicate: bool = True
    public_columns: bool = False
    licence: str | None = None
    shard: Shard = field(default_factory=Shard)
    push_to: str | None = None
    push_private: bool = True


@dataclass
class Merge:
    """`collab merge`: the shards of one build, as if one process had built them.

    `output_dir` is that of the build. `allow_missing` merges what is there when shards, or tasks of theirs, are not finished.
    """

    output_dir: str = MISSING
    allow_missing: bool = False
    push_to: str | None = None
    push_private: bool = True


@dataclass
class ImportPublic:
    """`collab import`: a dataset in the columns of `collabllm/collabllm-multiturn-*` as a run with trees and datasets.

    `data` is a Hub id, a .parquet, .jsonl or .json file, or a folder saved by `datasets`. The rest is as in `collab build`.
    """

    data: str = MISSING
    split: str = "train"
    on_bad_record: str = "refuse"
    output_dir: str = MISSING
    min_chosen_mr: float | None = None
    min_components: dict[str, float] = field(default_factory=dict)
    min_gap: float = 0.0
    pairs_per_turn: int = 1
    length_quantiles: int | None = None
    splits: dict[str, float] = field(default_factory=dict)
    deduplicate: bool = True
    public_columns: bool = True
    licence: str | None = None


@dataclass
class Ablation(Tasks):
    """`collab ablation`: the same candidate replies under every reward mechanism (CollabLLM section 5.1, Figures 4 and 6).

    Candidates are replies to the tasks' openings. `windows` are those of the MR mechanisms, with `num_samples` futures each;
    what a choice is worth is measured on `outcome_samples` other conversations played to their end.
    """

    candidates: dict[str, Candidate] = field(default_factory=dict)
    windows: list[int] = field(default_factory=lambda: [1, 2, 3])
    num_samples: int = 3
    outcome_samples: int = 3
    min_gap: float = 0.0


@dataclass
class EvaluatedPolicyConfig:
    """One policy to compare: what differs from `policy` (null: nothing)."""

    prompt: str | None = None
    adapter: str | None = None


@dataclass
class Evaluate(Tasks):
    """`collab evaluate`: whole conversations over held-out tasks. `policies` maps a name to a prompt, an adapter or both."""

    policies: dict[str, EvaluatedPolicyConfig] = field(default_factory=dict)
    runs: int = 3


@dataclass
class Training:
    """What the training recipes have in common. `data` is a folder that `collab build` wrote."""

    data: str = MISSING
    model: str = "embedded"
    adapter: str | None = None
    output_dir: str = MISSING
    seed: int = 0
    lora: LoraSettings = field(default_factory=LoraSettings)
    optimization: OptimizationSettings = field(default_factory=OptimizationSettings)


@dataclass
class Sft(Training):
    """`collab train sft`."""


@dataclass
class Dpo(Training):
    """`collab train dpo`; `beta` weighs the KL to the reference."""

    beta: float = 0.1


@dataclass
class Online:
    """What the online recipes have in common; `method` holds the method's own settings.

    `eval_limit` tasks of `eval_split` are played with the policy where the method's `eval_steps` is above 0; 0 is none.
    """

    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    tasks: str = "bundled"
    split: str = "train"
    limit: int | None = None
    on_bad_record: str = "refuse"
    eval_split: str = "test"
    eval_limit: int = 0
    user: UserConfig = field(default_factory=UserConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    model: str = "embedded"
    adapter: str | None = None
    output_dir: str = MISSING
    seed: int = 0
    lora: LoraSettings = field(default_factory=LoraSettings)
    optimization: OptimizationSettings = field(default_factory=OptimizationSettings)


@dataclass
class Grpo(Online):
    """`collab train grpo`."""

    method: GRPOSettings = field(default_factory=GRPOSettings)


@dataclass
class OnlineDpo(Online):
    """`collab train online-dpo`."""

    method: OnlineDPOSettings = field(default_factory=OnlineDPOSettings)


@dataclass
class Ppo(Online):
    """`collab train ppo`."""

    method: PPOSettings = field(default_factory=PPOSettings)


@dataclass
class LostInConversation:
    """`collab lost-in-conversation`. `instructions` is a file in the published schema; `split` evaluation or train.

    See collab.environments.lost_in_conversation.runner.SimulationSettings.
    """

    instructions: str = MISSING
    split: str = "evaluation"
    limit: int | None = None
    on_bad_record: str = "refuse"
    simulations: list[str] = field(default_factory=list)
    runs: int = 10
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    user: UserConfig = field(default_factory=UserConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    classifier: str = "rules"
    max_turns: int | None = None
    stop_when_right: bool = True
    seed: int = 0
    output_dir: str = MISSING
    max_open_tasks: int = 64
    max_failure_share: float = 0.2


@dataclass
class JudgeNoiseConfig:
    """`collab judge-noise`. `run` is a folder with trees; `rubric` is interactivity, helpfulness or clarity."""

    run: str = MISSING
    rubric: str = "interactivity"
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    repeats: int = 5
    limit: int = 20
    output_dir: str = MISSING


@dataclass
class Demo:
    """`collab demo`. `build`, `sft` and `evaluate` are the overrides of those recipes, as one would type them.

    `figure_six_tasks` openings get an asking and a guessing reply, with `figure_six_samples` futures a window.
    """

    output_dir: str = MISSING
    seed: int = 0
    train_tasks: int = 120
    held_out_tasks: int = 48
    runs: int = 3
    figure_six_tasks: int = 6
    figure_six_samples: int = 4
    build: list[str] = field(default_factory=list)
    sft: list[str] = field(default_factory=list)
    evaluate: list[str] = field(default_factory=list)


SCHEMAS = {
    "ablation": Ablation,
    "build": Build,
    "chat": Chat,
    "demo": Demo,
    "dpo": Dpo,
    "evaluate": Evaluate,
    "grpo": Grpo,
    "import_public": ImportPublic,
    "judge_noise": JudgeNoiseConfig,
    "lost_in_conversation": LostInConversation,
    "merge": Merge,
    "online_dpo": OnlineDpo,
    "ppo": Ppo,
    "sft": Sft,
}


@cache
def register() -> None:
    """Make the schemas known to Hydra as `schema/<recipe>`."""
    store = ConfigStore.instance()
    for name, node in SCHEMAS.items():
        store.store(group="schema", name=name, node=node, package="_global_")
