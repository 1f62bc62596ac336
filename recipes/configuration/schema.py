"""The typed configuration of every recipe. A key that is not here is an error that names the nearest one (`launch`).

The files in `conf/` fill these in; a group (policy, user, judge, environment, candidates, method) is chosen by name and any key
can be overridden: `collab build environment=math_chat policy.sampling.temperature=0.7`. What a group holds:
`recipes.configuration.group_schema`.

`free` names the keys (a regular expression) that decide nothing about the results: a run may be started again with other values.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from omegaconf import MISSING

from collab.training.lora import LoraSettings
from collab.training.settings import OptimizationSettings
from recipes.configuration.group_schema import (
    BudgetConfig,
    Candidate,
    EnvironmentConfig,
    ForwardSampling,
    JudgeConfig,
    PolicyConfig,
    RewardConfig,
    UserConfig,
)
from simulators.errors import ConfigurationError
from simulators.progress import EngineRates


@dataclass
class Recipe:
    """What every recipe has: a folder for all that it writes."""

    free: ClassVar[str] = "output_dir"

    output_dir: str = MISSING


@dataclass
class Run(Recipe):
    """What every recipe that calls models has (`recipes.running.run`): what stops it, and how much goes on at once.

    `max_failure_share` of the latest conversations may fail before the run stops; `budget` bounds what it spends.
    """

    free: ClassVar[str] = (
        rf"{Recipe.free}|max_open_tasks|max_failure_share|budget\..*|engine\..*"
        r"|(policy|user|judge)\.(urls|api_key_env|max_batch_size|max_concurrency|deadline_s|price\..*)"
    )

    judge: JudgeConfig = field(default_factory=JudgeConfig)
    seed: int = 0
    max_open_tasks: int = 64
    max_failure_share: float = 0.3
    budget: BudgetConfig = field(default_factory=BudgetConfig)

    def __post_init__(self) -> None:
        if self.max_open_tasks < 1:
            raise ConfigurationError(f"max_open_tasks is {self.max_open_tasks}; it must be at least 1")


@dataclass
class Play(Run):
    """What every recipe that plays conversations in an environment has: tasks, a user, and what counts."""

    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    tasks: str = "bundled"
    split: str = "train"
    limit: int | None = None
    on_bad_record: str = "refuse"
    user: UserConfig = field(default_factory=UserConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_or_skip(self.on_bad_record)


def refuse_or_skip(on_bad_record: str) -> None:
    """Check what is to be done with bad records.

    Raises:
        ConfigurationError: it is neither.
    """
    if on_bad_record not in ("refuse", "skip"):
        raise ConfigurationError(f"on_bad_record is {on_bad_record!r}; it must be refuse or skip")


@dataclass
class Shard:
    """Which part of the tasks this process builds: every `count`th, from the `index`th on. `collab merge` joins the parts."""

    index: int = 0
    count: int = 1


@dataclass
class Tasks(Play):
    """Whole conversations or replies of a policy.

    `engine` is what the engine allows a second, where known, for the efficiency in metrics.jsonl.
    """

    free: ClassVar[str] = f"{Play.free}|limit"

    policy: PolicyConfig = field(default_factory=PolicyConfig)
    engine: EngineRates = field(default_factory=EngineRates)


@dataclass
class Chat(Tasks):
    """`collab chat`; `task` is the number of the task to talk about, from 0. Every talk has a folder of its own."""

    free: ClassVar[str] = ".*"

    task: int = 0


@dataclass
class Pairs:
    """Which pairs and SFT replies trees give (collab.data.views.PairSettings): `min_gap`, `min_chosen_mr`, and a least mean for
    any reward component in `min_components`; `length_quantiles` balances pairs by length. `splits` are shares by name, by task.
    `public_columns` adds the public CollabLLM layout. `licence` is that of the tasks, where it is not known by itself.
    """

    free: ClassVar[str] = (
        r"min_gap|min_chosen_mr|min_components.*|pairs_per_turn|length_quantiles|splits.*|deduplicate|public_columns|licence"
    )

    min_chosen_mr: float | None = None
    min_components: dict[str, float] = field(default_factory=dict)
    min_gap: float = 0.0
    pairs_per_turn: int = 1
    length_quantiles: int | None = None
    splits: dict[str, float] = field(default_factory=dict)
    deduplicate: bool = True
    public_columns: bool = False
    licence: str | None = None


@dataclass
class Build(Pairs, Tasks):
    """`collab build`: tasks -> trees -> SFT and DPO datasets.

    `max_turns` and `max_conversation_tokens` bound a conversation. `push_to` is a dataset on the Hub to push to; null: nothing
    leaves this machine.
    """

    free: ClassVar[str] = f"{Tasks.free}|{Pairs.free}|push_to|push_private"

    candidates: dict[str, Candidate] = field(default_factory=dict)
    forward_sampling: ForwardSampling = field(default_factory=ForwardSampling)
    max_turns: int | None = None
    max_conversation_tokens: int | None = None
    shard: Shard = field(default_factory=Shard)
    push_to: str | None = None
    push_private: bool = True


@dataclass
class Merge(Recipe):
    """`collab merge`: the shards of one build, as if one process had built them.

    `output_dir` is that of the build. `allow_missing` merges what is there when shards, or tasks of theirs, are not finished.
    """

    allow_missing: bool = False
    push_to: str | None = None
    push_private: bool = True


@dataclass
class ImportPublic(Pairs, Recipe):
    """`collab import`: a dataset in the columns of `collabllm/collabllm-multiturn-*` as a run with trees and datasets.

    `data` is a Hub id, a .parquet, .jsonl or .json file, or a folder saved by `datasets`. The rest is as in `collab build`.
    """

    free: ClassVar[str] = f"{Recipe.free}|{Pairs.free}"

    data: str = MISSING
    split: str = "train"
    on_bad_record: str = "refuse"
    public_columns: bool = True

    def __post_init__(self) -> None:
        refuse_or_skip(self.on_bad_record)


@dataclass
class Ablation(Tasks):
    """`collab ablation`: the same candidate replies under every reward mechanism (CollabLLM section 5.1, Figures 4 and 6).

    Candidates are replies to the tasks' openings. `windows` are those of the MR mechanisms, with `num_samples` futures each;
    what a choice is worth is measured on `outcome_samples` other conversations played to their end.
    """

    free: ClassVar[str] = f"{Tasks.free}|min_gap"

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

    free: ClassVar[str] = rf"{Tasks.free}|(policies|environments|users)(\..*)?|seeds|success_at"
    """Policies, environments, users and seeds may be added; each part of an evaluation keeps what it plays."""

    policies: dict[str, EvaluatedPolicyConfig] = field(default_factory=dict)
    environments: dict[str, EvaluatedEnvironmentConfig] = field(default_factory=dict)
    users: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: int = 3
    seeds: list[int] = field(default_factory=list)
    success_at: float = 1.0
    score_turns: bool = False


@dataclass
class ReportConfig(Recipe):
    """`collab report`. `stages` are those of build, sft, ablation and evaluate that are run first, each with its overrides.

    `runs` are folders of runs to show as well: builds (the MR of chosen and rejected replies) and training runs (their curves).
    """

    free: ClassVar[str] = rf"{Recipe.free}|title|stages|runs|build|sft|ablation|evaluate"

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


_OF_TRAINERS = r"optimization\.(save_steps|logging_steps|report_to)"


@dataclass
class Training(Recipe):
    """What the training recipes have in common. `data` is a folder that `collab build` wrote."""

    free: ClassVar[str] = f"{Recipe.free}|{_OF_TRAINERS}"

    data: str = MISSING
    model: str = "embedded"
    adapter: str | None = None
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
class Online(Play):
    """`collab train online`; `method` holds the method's own settings, and `algorithm` says whose they are: `method=NAME` sets
    both.

    `eval_limit` tasks of `eval_split` are played with the policy where the method's `eval_steps` is above 0; 0 is none.
    """

    free: ClassVar[str] = (
        rf"{Play.free}|{_OF_TRAINERS}|method\.rollout\.(logged_conversations|stop_after_failed_rounds)"
        r"|method\.rollout\.vllm\.(server_url|server_timeout_s|group_port|memory_share)"
    )

    algorithm: str = MISSING
    method: Any = None
    eval_split: str = "test"
    eval_limit: int = 0
    model: str = "embedded"
    adapter: str | None = None
    lora: LoraSettings = field(default_factory=LoraSettings)
    optimization: OptimizationSettings = field(default_factory=OptimizationSettings)


@dataclass
class LostInConversation(Run):
    """`collab lost-in-conversation`. `instructions` is a file in the published schema, or bundled; `split` evaluation or
    train.

    See collab.evaluation.lost_in_conversation.runner.SimulationSettings.
    """

    free: ClassVar[str] = f"{Run.free}|limit|runs|simulations|instructions"
    """Runs, simulations and instructions may be added."""

    instructions: str = MISSING
    split: str = "evaluation"
    limit: int | None = None
    on_bad_record: str = "refuse"
    simulations: list[str] = field(default_factory=list)
    runs: int = 10
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    user: UserConfig = field(default_factory=UserConfig)
    classifier: str = "rules"
    max_turns: int | None = None
    stop_when_right: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_or_skip(self.on_bad_record)


@dataclass
class JudgeNoiseConfig(Run):
    """`collab judge-noise`. `run` is a folder with trees; `rubric` is interactivity, helpfulness or clarity."""

    run: str = MISSING
    rubric: str = "interactivity"
    repeats: int = 5
    limit: int = 20


@dataclass
class Demo(Recipe):
    """`collab demo`. `build`, `sft` and `evaluate` are the overrides of those recipes, as one would type them.

    `figure_six_tasks` openings get an asking and a guessing reply, with `figure_six_samples` futures a window.
    """

    seed: int = 0
    train_tasks: int = 120
    held_out_tasks: int = 48
    runs: int = 3
    figure_six_tasks: int = 6
    figure_six_samples: int = 4
    build: list[str] = field(default_factory=list)
    sft: list[str] = field(default_factory=list)
    evaluate: list[str] = field(default_factory=list)


SCHEMAS: dict[str, type[Recipe]] = {
    "ablation": Ablation,
    "build": Build,
    "chat": Chat,
    "demo": Demo,
    "dpo": Dpo,
    "evaluate": Evaluate,
    "evolving_arms": EvolvingArms,
    "import_public": ImportPublic,
    "judge_noise": JudgeNoiseConfig,
    "lost_in_conversation": LostInConversation,
    "merge": Merge,
    "online": Online,
    "report": ReportConfig,
    "sft": Sft,
}
