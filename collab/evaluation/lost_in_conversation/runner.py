"""Runs simulations: every instruction, in every simulation type, N times; one conversation tree each, journalled and resumable.

    results = await simulate(instructions, policy, folder, (Simulation.FULL, Simulation.SHARDED), SimulationSettings(runs=10))
    print(results.table().markdown())

Kill it anywhere and start it again in the same folder: finished conversations are read from `trees.jsonl`, answered model calls
of unfinished ones from `journal.jsonl`. More runs, instructions or simulation types can be added later; other settings need
another folder. Whatever failed for reasons that the policy did not cause is tried again.

All types of one (instruction, run) share their seeds. So RECAP goes on from exactly the conversation that SHARDED had, and the
journal makes that part free.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
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
from simulators.chat_models.protocol import ChatModel
from simulators.conversation import ConversationTree, Outcome
from simulators.errors import ConfigurationError
from simulators.forward_sampling import Future, future_seeds, sample_future
from simulators.journal import Journal, JournaledChatModel
from simulators.policy import Policy
from simulators.tree_file import TreeFile
from simulators.users.protocol import User
from simulators.whole_file import write_whole


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """How simulations are run. The defaults are the paper's, with the rule user and the rule classifier.

    `max_turns` caps multi-turn conversations (None: twice the shards). `stop_when_right` ends a conversation at the first right
    answer, which takes gold feedback. `task_prompt` gives the assistant the task's system prompt (after the policy's own).
    `classifier` "model" asks `judge_model`. More than `most_failed` failed conversations (a share, once 20 failed) stop the run.
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
    max_open: int = 64
    most_failed: float = 0.2

    def __post_init__(self) -> None:
        if self.runs < 1 or self.max_open < 1:
            raise ConfigurationError(f"runs ({self.runs}) and max_open ({self.max_open}) must be at least 1")
        if self.classifier == "model" and self.judge_model is None:
            raise ConfigurationError("classifier=model needs a judge_model to ask; set one, or use classifier=rules")

    def identity(self, policy: Policy) -> dict[str, Any]:
        """Return what must not change between two starts in one folder."""
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
class _Run:
    """One conversation to play."""

    instruction: Instruction
    simulation: Simulation
    run: int

    @property
    def tree_id(self) -> str:
        return f"{self.instruction.id}|{self.simulation}|{self.run}"


async def simulate(
    instructions: Sequence[Instruction],
    policy: Policy,
    folder: Path,
    simulations: Sequence[Simulation | str] = ALL_SIMULATIONS,
    settings: SimulationSettings | None = None,
    *,
    on_conversation: Callable[[], None] = lambda: None,
) -> SimulationResults:
    """Run all simulations that `folder` does not hold yet, and return the results of all.

    The folder gets `settings.json`, `journal.jsonl`, `trees.jsonl`, `rows.jsonl` and `summary.json`. `on_conversation` is called
    after each conversation, those found finished included.

    Raises:
        ConfigurationError: other settings than the folder's, two instructions with one id, a turn cap below the number of
            shards, too many failures, or as the models do.
        StorageError: the disk refuses.
    """
    settings = settings or SimulationSettings()
    kinds = tuple(Simulation(simulation) for simulation in simulations)
    _check(instructions, kinds, settings)
    _check_folder(folder, settings.identity(policy))
    rows: dict[str, ConversationRow] = {}
    with closing(Journal(folder / "journal.jsonl")) as journal, closing(TreeFile(folder / "trees.jsonl")) as trees:
        watch = _FailureWatch(settings.most_failed)
        player = _Player(_journalled(policy, settings, journal), settings, journal)

        async def one(run: _Run) -> None:
            if run.tree_id in trees:
                rows[run.tree_id] = _recorded(trees.read(run.tree_id), run)
            else:
                row, tree = await player.play(run)
                rows[run.tree_id] = row
                if tree is not None:
                    trees.append(tree)
                watch.add(row)
            on_conversation()

        runs = list(_runs(instructions, kinds, settings.runs))
        await _for_each(runs, one, settings.max_open)
        calls = journal.summary()
    ordered = [rows[run.tree_id] for run in runs]
    results = SimulationResults(tuple(ordered), settings.score_mode, settings.identity(policy), calls)
    results.write(folder)
    return results


class _Player:
    """Plays and assesses one conversation at a time; holds what all of them share."""

    def __init__(self, policy: Policy, settings: SimulationSettings, journal: Journal) -> None:
        self._policy = policy
        self._settings = settings
        judge = JournaledChatModel(settings.judge_model, journal) if settings.judge_model else None
        classifier = ModelClassifier(judge) if judge and settings.classifier == "model" else RuleClassifier()
        verifiers = settings.verifiers if judge is None else replace(settings.verifiers, judge_model=judge)
        self._assessor = Assessor(verifiers, classifier)
        model = settings.user.model
        self._user = replace(settings.user, model=JournaledChatModel(model, journal)) if model else settings.user

    async def play(self, run: _Run) -> tuple[ConversationRow, ConversationTree | None]:
        """Return the row of one conversation, and its tree where it should be kept."""
        instruction, simulation = run.instruction, run.simulation
        user: User = make_user(instruction, simulation, self._user)
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
            return replace(row, outcome=error.outcome, failure=failure, error=str(error)), None
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
        row = replace(row, failure=_failure(row, cap))
        return row, None if row.failure == "infrastructure" else _tree(run, row, future, policy)

    def _system_prompt(self, instruction: Instruction) -> str | None:
        task = (SYSTEM_PROMPTS[instruction.kind.value], instruction.context) if self._settings.task_prompt else ()
        return "\n\n".join(part for part in (self._policy.system_prompt, *task) if part) or None


def _failure(row: ConversationRow, cap: int) -> str | None:
    """Say who is to blame for a conversation of at most `cap` replies without a score; None where it has one.

    `simulator_kept_back`: the turn cap came before the user had told all shards, and no attempt was right all the same.
    """
    if row.outcome is Outcome.USER_ERROR:
        return "simulator"
    if not row.outcome.earns_reward:
        return "infrastructure"
    solved = any((reply.score or 0.0) >= FULLY_RIGHT for reply in row.replies)
    if len(row.replies) >= cap and row.sufficient_turn is None and not solved:
        return "simulator_kept_back"
    return None


def _tree(run: _Run, row: ConversationRow, future: Future, policy: Policy) -> ConversationTree:
    """Return the tree of one finished conversation: one path, each reply with its assessment."""
    metadata = {
        "environment": "lost_in_conversation",
        "policy": policy.name,
        "system_prompt": policy.system_prompt,
        "instruction": row.instruction,
        "problem": _digest_of(run.instruction),
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


def _digest_of(instruction: Instruction) -> str:
    """Return a fingerprint of all that a problem says and is graded by, so that another one under its id is noticed."""
    record = json.dumps(dict(instruction.record), sort_keys=True, default=str)
    return hashlib.sha256(record.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _recorded(tree: ConversationTree, run: _Run) -> ConversationRow:
    """Return the row of a finished conversation, once it is sure that it was about this problem."""
    if tree.metadata.get("problem", _digest_of(run.instruction)) != _digest_of(run.instruction):
        raise ConfigurationError(
            f"this folder holds conversations about another problem called {run.instruction.id} (or other shards of it); use "
            "another folder"
        )
    return row_from_tree(tree)


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


def _runs(instructions: Sequence[Instruction], simulations: Sequence[Simulation], runs: int) -> Iterator[_Run]:
    """Run after run, so that a run that is cut short has done the same share of everything."""
    for run in range(runs):
        for instruction in instructions:
            for simulation in simulations:
                yield _Run(instruction, simulation, run)


def _journalled(policy: Policy, settings: SimulationSettings, journal: Journal) -> Policy:
    return replace(policy, model=JournaledChatModel(policy.model, journal))


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


def _check_folder(folder: Path, identity: dict[str, Any]) -> None:
    """Write the settings into a new folder; refuse a folder of other settings."""
    path = folder / "settings.json"
    identity = json.loads(json.dumps(identity))
    if not path.exists():
        write_whole(path, json.dumps(identity, indent=1, ensure_ascii=False).encode())
        return
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError:
        raise ConfigurationError(f"{path} is not valid JSON; restore it or use another folder") from None
    differing = sorted(key for key in identity.keys() | found.keys() if identity.get(key) != found.get(key))
    if differing:
        key = differing[0]
        raise ConfigurationError(
            f"{folder} holds simulations with {key}={found.get(key)!r}, this run has {identity.get(key)!r}; use another folder "
            f"(differing: {', '.join(differing)})"
        )


class _FailureWatch:
    """Counts conversations that failed for reasons that the policy did not cause, and stops a run that has too many."""

    def __init__(self, most_failed: float) -> None:
        self._most_failed = most_failed
        self._finished = self._failed = 0

    def add(self, row: ConversationRow) -> None:
        """Count one conversation.

        Raises:
            ConfigurationError: when the share of failures is above the limit.
        """
        self._finished += 1
        self._failed += row.failure is not None
        if row.failure and self._failed >= _FEWEST_FAILURES and self._failed > self._most_failed * self._finished:
            raise ConfigurationError(
                f"{self._failed} of {self._finished} conversations failed for reasons that the policy did not cause, the last in "
                f"{row.instruction} ({row.failure}: {row.error}); mend that, then start again: finished conversations are kept"
            )


_FEWEST_FAILURES = 20


async def _for_each(runs: Sequence[_Run], job: Callable[[_Run], Awaitable[None]], at_once: int) -> None:
    """Await `job` for each run, at most `at_once` together; the first error ends the rest."""
    queue = iter(runs)

    async def worker() -> None:
        for run in queue:
            await job(run)

    workers = [asyncio.create_task(worker()) for _ in range(min(at_once, len(runs)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
