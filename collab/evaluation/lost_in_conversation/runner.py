"""Plays and assesses simulations: every instruction, in every simulation type, N times; one conversation tree each.

    with TreeFile(folder / "trees.jsonl") as trees:
        results = await simulate(instructions, policy, trees, ("full", "sharded"), SimulationSettings(runs=10))
    print(results.table().markdown())

What `trees` holds already is read back; more runs, instructions or simulation types can be added later. Whatever failed for
reasons that the policy did not cause is tried again at the next start.

All types of one (instruction, run) share their seeds. So RECAP goes on from exactly the conversation that SHARDED had, and behind
a journal (`simulators.journal`) that part is free.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from collab.environments.lost_in_conversation.assessment import FULLY_RIGHT, AssessedReply, Assessor, ScoreMode, StopWhenRight
from collab.environments.lost_in_conversation.schema import Instruction, TaskKind
from collab.environments.lost_in_conversation.simulations import (
    ALL_SIMULATIONS,
    Simulation,
    UserSettings,
    make_user,
    sufficient_turn,
    turn_cap,
)
from collab.environments.lost_in_conversation.strategy import Strategy
from collab.environments.lost_in_conversation.strategy_judge import ModelClassifier, RuleClassifier
from collab.environments.lost_in_conversation.verifiers import Verifiers
from collab.environments.lost_in_conversation.wording import SYSTEM_PROMPTS
from collab.evaluation.lost_in_conversation.metrics import ConversationRow
from collab.evaluation.lost_in_conversation.results import SimulationResults
from collab.rewards.component import ScoringError
from simulators.bounded_concurrency import each
from simulators.chat_models.protocol import ChatModel
from simulators.conversation import ConversationTree, Outcome
from simulators.errors import ConfigurationError
from simulators.forward_sampling import Future, future_seeds, sample_future
from simulators.policy import Policy
from simulators.tree_file import TreeFile
from simulators.users.protocol import User

Count = Callable[[Outcome, str | None], None]
"""Told how each conversation ended, and its error; it may raise."""


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """How simulations are run. The defaults are the paper's, with the rule user and the rule classifier.

    `max_turns` caps multi-turn conversations (None: twice the shards). `stop_when_right` ends a conversation at the first right
    answer, which takes gold feedback. `task_prompt` gives the assistant the task's system prompt (after the policy's own).
    `classifier` "model" asks `judge_model`.
    """

    runs: int = 10
    seed: int = 0
    user: UserSettings = field(default_factory=UserSettings)
    max_turns: int | None = None
    stop_when_right: bool = True
    score_mode: ScoreMode = ScoreMode.MAX
    task_prompt: bool = True
    judge_model: ChatModel | None = None
    classifier: Literal["rules", "model"] = "rules"
    verifiers: Verifiers = field(default_factory=Verifiers)

    def __post_init__(self) -> None:
        if self.runs < 1:
            raise ConfigurationError(f"runs is {self.runs}; it must be at least 1")
        if self.classifier == "model" and self.judge_model is None:
            raise ConfigurationError("classifier=model needs a judge_model to ask; set one, or use classifier=rules")

    def identity(self, policy: Policy) -> dict[str, Any]:
        """Return what the results depend on, for whoever reads them."""
        return {
            "policy": policy.name,
            "model": policy.model.name,
            "weights_version": policy.model.weights_version,
            "sampling": asdict(policy.sampling) | {"stop": list(policy.sampling.stop)},
            "system_prompt": policy.system_prompt,
            "reply_prefix": policy.reply_prefix,
            "seed": self.seed,
            "max_turns": self.max_turns,
            "stop_when_right": self.stop_when_right,
            "task_prompt": self.task_prompt,
            "classifier": self.classifier,
            "judge": self.judge_model.name if self.judge_model else None,
            "databases": str(self.verifiers.databases) if self.verifiers.databases else None,
            **self.user.describe(),
        }


@dataclass(frozen=True, slots=True)
class Simulated:
    """One conversation: of an instruction, in a simulation type, in one of the runs."""

    instruction: Instruction
    simulation: Simulation
    run: int

    @property
    def tree_id(self) -> str:
        return f"{self.instruction.id}|{self.simulation}|{self.run}"


async def simulate(
    instructions: Sequence[Instruction],
    policy: Policy,
    trees: TreeFile,
    simulations: Sequence[Simulation | str] = ALL_SIMULATIONS,
    settings: SimulationSettings | None = None,
    *,
    stopped: TreeFile | None = None,
    limit: asyncio.Semaphore | None = None,
    on_conversation: Callable[[], None] = lambda: None,
    count: Count = lambda outcome, error: None,
) -> SimulationResults:
    """Run all simulations that `trees` does not hold yet, and return the results of all.

    As many go on at once as `limit` allows (64). Conversations that failed go into `stopped`, where there is one. `count` is told
    how each played conversation ended, and may raise; `on_conversation` is called after each, those found finished included.

    Raises:
        ConfigurationError: two instructions with one id, a turn cap below the number of shards, or as the models do.
        StorageError: the disk refuses.
    """
    settings = settings or SimulationSettings()
    kinds = tuple(Simulation(simulation) for simulation in simulations)
    _check(instructions, kinds, settings)
    rows: dict[str, ConversationRow] = {}
    player = SimulationPlayer(policy, settings)

    async def one(run: Simulated) -> None:
        if run.tree_id in trees:
            rows[run.tree_id] = row_from_tree(trees.read(run.tree_id))
            return
        tree = await player.play(run)
        rows[run.tree_id] = row = row_from_tree(tree)
        file = stopped if row.failure in _TRIED_AGAIN else trees
        if file is not None:
            file.append(tree)
        count(Outcome.USER_ERROR if row.failure == KEPT_BACK else row.outcome, row.error)

    runs = list(simulated(instructions, kinds, settings.runs))
    await each(runs, one, limit or asyncio.Semaphore(64), on_conversation)
    ordered = tuple(rows[run.tree_id] for run in runs)
    return SimulationResults(ordered, settings.score_mode, settings.identity(policy))


KEPT_BACK = "simulator_kept_back"
_TRIED_AGAIN = ("simulator", "judge", "infrastructure")


class SimulationPlayer:
    """Plays and assesses one conversation at a time; holds what all of them share."""

    def __init__(self, policy: Policy, settings: SimulationSettings) -> None:
        self._policy = policy
        self._settings = settings
        judge = settings.judge_model
        classifier = ModelClassifier(judge) if judge and settings.classifier == "model" else RuleClassifier()
        verifiers = settings.verifiers if judge is None else replace(settings.verifiers, judge_model=judge)
        self._assessor = Assessor(verifiers, classifier)

    async def play(self, run: Simulated) -> ConversationTree:
        """Return the tree of one conversation, in which everything about it stands (`row_from_tree`).

        Raises:
            ConfigurationError: as the models do.
        """
        instruction, simulation = run.instruction, run.simulation
        user: User = make_user(instruction, simulation, self._settings.user)
        if self._settings.stop_when_right and not simulation.single_turn:
            user = StopWhenRight(user, self._assessor, instruction, simulation)
        policy = replace(self._policy, system_prompt=self._system_prompt(instruction))
        cap = turn_cap(instruction, simulation, self._settings.max_turns)
        row = ConversationRow(
            instruction.id, instruction.kind, simulation, run.run, Outcome.INFRA_ERROR, shards=len(instruction.shards)
        )
        seeds = future_seeds(self._settings.seed, instruction.id, run.run)
        try:
            future = await sample_future((), user, policy, cap, seeds)
            replies = await self._assessor.assess(future.conversation, instruction, simulation)
        except ScoringError as error:
            failure = "judge" if error.outcome is Outcome.JUDGE_ERROR else "infrastructure"
            return _tree(run, replace(row, outcome=error.outcome, failure=failure, error=str(error)), Future(()), policy)
        flags = Counter(flag for step in future.steps for flag in step.flags)
        flags.update(future.departure.flags if future.departure is not None else ())
        told = sufficient_turn(future.conversation, instruction, simulation)
        row = replace(
            row,
            outcome=future.outcome,
            replies=tuple(replies),
            sufficient_turn=told,
            simulator_flags=dict(flags),
            error=future.error,
        )
        return _tree(run, replace(row, failure=_failure(row, cap)), future, policy)

    def _system_prompt(self, instruction: Instruction) -> str | None:
        task = (SYSTEM_PROMPTS[instruction.kind.value], instruction.context) if self._settings.task_prompt else ()
        return "\n\n".join(part for part in (self._policy.system_prompt, *task) if part) or None


def _failure(row: ConversationRow, cap: int) -> str | None:
    """Say who is to blame for a conversation of at most `cap` replies without a score; None where it has one.

    `KEPT_BACK`: the turn cap came before the user had told all shards, and no attempt was right all the same.
    """
    if row.outcome is Outcome.USER_ERROR:
        return "simulator"
    if not row.outcome.earns_reward:
        return "infrastructure"
    solved = any((reply.score or 0.0) >= FULLY_RIGHT for reply in row.replies)
    if len(row.replies) >= cap and row.sufficient_turn is None and not solved:
        return KEPT_BACK
    return None


def _tree(run: Simulated, row: ConversationRow, future: Future, policy: Policy) -> ConversationTree:
    """Return the tree of one finished conversation: one path, each reply with its assessment."""
    metadata = {
        "environment": "lost_in_conversation",
        "policy": policy.name,
        "system_prompt": policy.system_prompt,
        "instruction": row.instruction,
        "task": str(row.kind),
        "goal": run.instruction.full,
        "simulation": str(row.simulation),
        "run": row.run,
        "outcome": str(row.outcome),
        "shards": row.shards,
        "sufficient_turn": row.sufficient_turn,
        "failure": row.failure,
        "simulator_flags": dict(row.simulator_flags or {}),
        "error": row.error,
    }
    tree = ConversationTree(run.tree_id, metadata)
    future.graft(tree, None)
    replies = [node for node in tree.nodes if node.author == "policy"]
    for node, reply in zip(replies, row.replies, strict=True):
        node.annotations["assessed"] = asdict(reply)
    return tree


def digest_of(instruction: Instruction) -> str:
    """Return a fingerprint of all that a problem says and is graded by, so that another one under its id is noticed."""
    record = json.dumps(dict(instruction.record), sort_keys=True, default=str)
    return hashlib.sha256(record.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def row_from_tree(tree: ConversationTree) -> ConversationRow:
    """Read the row of a conversation back from its tree.

    Raises:
        ConfigurationError: when the tree was not written by this runner.
    """
    try:
        data = tree.metadata
        replies = []
        for node in tree.nodes:
            if node.author == "policy":
                assessed = dict(node.annotations["assessed"])
                assessed["strategy"] = Strategy(assessed["strategy"]) if assessed["strategy"] else None
                replies.append(AssessedReply(**assessed))
        return ConversationRow(
            data["instruction"],
            TaskKind(data["task"]),
            Simulation(data["simulation"]),
            data["run"],
            Outcome(data["outcome"]),
            tuple(replies),
            data["shards"],
            data["sufficient_turn"],
            data["failure"],
            data["simulator_flags"],
            data["error"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"tree {tree.task_id} is not a simulation of lost_in_conversation ({error!r}); use another folder"
        ) from None


def simulated(instructions: Sequence[Instruction], simulations: Sequence[Simulation], runs: int) -> Iterator[Simulated]:
    """Yield every conversation, run after run, so that a run that is cut short has done the same share of everything."""
    for run in range(runs):
        for instruction in instructions:
            for simulation in simulations:
                yield Simulated(instruction, simulation, run)


def _check(instructions: Sequence[Instruction], simulations: Sequence[Simulation], settings: SimulationSettings) -> None:
    if not instructions or not simulations:
        raise ConfigurationError("there is nothing to simulate: give at least one instruction and one simulation type")
    ids = Counter(instruction.id for instruction in instructions)
    if (twice := next((each for each, count in ids.items() if count > 1), None)) is not None:
        raise ConfigurationError(f"instruction {twice} stands twice; ids must differ")
    if settings.max_turns is not None and any(not simulation.single_turn for simulation in simulations):
        for instruction in instructions:
            if len(instruction.shards) > settings.max_turns:
                raise ConfigurationError(
                    f"max_turns is {settings.max_turns}, but {instruction.id} has {len(instruction.shards)} shards, and each "
                    "takes a turn; raise max_turns"
                )
