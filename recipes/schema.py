"""The typed configuration of every recipe. A key that is not here is an error that names the nearest one (`recipes.launch`).

The files in `conf/` fill these in; a group (policy, user, judge, environment, candidates) is chosen by name and any key can be
overridden: `collab build environment=math_chat policy.sampling.temperature=0.7`. What a group holds: `recipes.group_schema`.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf

from collab.training.lora import LoraSettings
from collab.training.online_settings import GRPOSettings, OnlineDPOSettings, PPOSettings
from collab.training.settings import OptimizationSettings
from recipes.group_schema import (
    BudgetConfig,
    Candidate,
    EnvironmentConfig,
    ForwardSampling,
    JudgeConfig,
    PolicyConfig,
    UserConfig,
)
from simulators.progress import EngineRates


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
    """One policy to compare: what differs from `policy` (null: nothing).

    `policy` overrides its keys, for another model: `{backend: server, model: NAME, urls: [...]}`. `trained_with` names the user
    (of `users`) that it was trained against; `baseline` null: one that differs in its prompt alone.
    """

    prompt: str | None = None
    adapter: str | None = None
    policy: dict[str, Any] = field(default_factory=dict)
    trained_with: str | None = None
    baseline: bool | None = None


@dataclass
class EvaluatedEnvironmentConfig:
    """One environment to evaluate in: its `name` (null: that of the entry), and what differs from the run's (null: nothing)."""

    name: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    token_penalty: float | None = None
    tasks: str | None = None
    split: str | None = None
    limit: int | None = None
    success_at: float | None = None


@dataclass
class Evaluate(Tasks):
    """`collab evaluate`: whole conversations over held-out tasks, `runs` of each for every seed of `seeds` (none: `seed`).

    Every entry of `policies` plays in every entry of `environments` (none: `environment`) with every entry of `users`, each of
    which holds keys of `user` that differ (none: `user`). A conversation is a success where its task score reaches `success_at`.
    `score_turns` tells the task score after every turn, for score by turn: a judge is then asked once a turn.
    """

    policies: dict[str, EvaluatedPolicyConfig] = field(default_factory=dict)
    environments: dict[str, EvaluatedEnvironmentConfig] = field(default_factory=dict)
    users: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: int = 3
    seeds: list[int] = field(default_factory=list)
    success_at: float = 1.0
    score_turns: bool = False


@dataclass
class ReportConfig:
    """`collab report`. `stages` are those of build, sft, ablation and evaluate that are run first, each with its overrides.

    `runs` are folders of runs to show as well: builds (the MR of chosen and rejected replies) and training runs (their curves).
    """

    output_dir: str = MISSING
    seed: int = 0
    title: str = "Report"
    stages: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    build: list[str] = field(default_factory=list)
    sft: list[str] = field(default_factory=list)
    ablation: list[str] = field(default_factory=list)
    evaluate: list[str] = field(default_factory=list)


@dataclass
class EvolvingArms(Evaluate):
    """`collab evolving-arms`; `arms` are names of collab.environments.evolving_intent.arms.ARMS."""

    arms: list[str] = field(default_factory=list)


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
    """`collab lost-in-conversation`. `instructions` is a file in the published schema, or bundled; `split` evaluation or
    train.

    See collab.evaluation.lost_in_conversation.runner.SimulationSettings.
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
    "evolving_arms": EvolvingArms,
    "grpo": Grpo,
    "import_public": ImportPublic,
    "judge_noise": JudgeNoiseConfig,
    "lost_in_conversation": LostInConversation,
    "merge": Merge,
    "online_dpo": OnlineDpo,
    "ppo": Ppo,
    "report": ReportConfig,
    "sft": Sft,
}


@cache
def register() -> None:
    """Make the schemas known to Hydra as `schema/<recipe>`, and `${evaluated:...}`, the folder name of several environments."""
    OmegaConf.register_new_resolver("evaluated", lambda several, one: "+".join(several) or one, replace=True)
    store = ConfigStore.instance()
    for name, node in SCHEMAS.items():
        store.store(group="schema", name=name, node=node, package="_global_")
