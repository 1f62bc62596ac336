"""Play whole conversations of a policy over held-out tasks, and read the figures back from their trees.

One tree a task holds all its runs, side by side at the root, so an evaluation that was killed goes on where it was: finished
tasks are read from the tree file, model calls of unfinished ones from the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from collab.environments.domain import Environment
from collab.mr import Observer, ScoredFuture, ignore, score_future
from collab.rewards.component import RewardComponent, ScoringError
from collab.tasks.task import Task
from simulators.bounded_concurrency import each
from simulators.conversation import ConversationTree, Node, Outcome
from simulators.errors import ChatModelError, ConfigurationError, SimulatorError
from simulators.forward_sampling import Future, Step, future_seeds, sample_future
from simulators.metering import Spent, metered
from simulators.policy import Policy
from simulators.questions import asks
from simulators.tree_file import TreeFile


@dataclass(frozen=True, slots=True)
class EvaluatedConversation:
    """The figures of one conversation. `reward` (R*) is None where it could not be scored.

    `policy_tokens` are the tokens the policy wrote; `asked` says of each of its replies whether it ended in a question. `spent`
    is what it asked of the models, by role; `by_turn` the task score after each turn (None: it could not be told; empty: not
    measured). `leaf` is its last message in the task's tree.
    """

    task_id: str
    run: int
    outcome: Outcome
    reward: float | None
    components: dict[str, float]
    asked: tuple[bool, ...]
    policy_tokens: int
    task: dict[str, Any]
    seed: int = 0
    error: str | None = None
    leaf: int | None = None
    spent: dict[str, Spent] = field(default_factory=dict)
    by_turn: tuple[float | None, ...] = ()

    @property
    def turns(self) -> int:
        return len(self.asked)


def task_score_of(environment: Environment) -> RewardComponent | None:
    """Return the component of R* that says how well the task was done: the first that counts towards it."""
    return next((component for component, weight in environment.reward.terms if weight > 0), None)


async def evaluate(
    policy: Policy,
    environment: Environment,
    tasks: Sequence[Task],
    trees: TreeFile,
    *,
    runs: int = 1,
    seed: int = 0,
    stopped: TreeFile | None = None,
    max_open_tasks: int = 64,
    limit: asyncio.Semaphore | None = None,
    on_task: Callable[[], None] = lambda: None,
    observe: Observer = ignore,
    score_turns: bool = False,
) -> None:
    """Play `runs` conversations for every task that `trees` does not hold yet, and store them.

    At most `max_open_tasks` are open at once, or as many as `limit` allows, which several evaluations may share. `on_task` is
    called after each task, those found finished included; `observe` with every scored conversation (it may raise). With
    `score_turns` the task score is also told after every turn.

    A task of which a conversation failed goes into `stopped`, where there is one: the next start plays it again (what was
    answered is in the journal).

    Raises:
        ConfigurationError, StorageError: as the models and the tree file do.
    """

    async def one(task: Task) -> None:
        if task.id not in trees:
            tree = await evaluated_tree(policy, environment, task, runs, seed, observe, score_turns)
            (trees if stopped is None or _is_whole(tree) else stopped).append(tree)

    await each(tasks, one, limit or asyncio.Semaphore(max_open_tasks), on_task)


def refuse_other_weights(trees: TreeFile, policy: Policy) -> None:
    """Look whether stored conversations are of the policy as it is now: an adapter may have been trained again in its folder.

    Raises:
        ConfigurationError: they are of other weights.
    """
    if not trees.task_ids:
        return
    nodes = trees.read(trees.task_ids[0]).nodes
    found = {node.weights_version for node in nodes if node.author == "policy" and node.weights_version is not None}
    if found and policy.model.weights_version not in found:
        raise ConfigurationError(
            f"{trees.path.parent} holds conversations of other weights than {policy.name} has now; choose another output_dir, or "
            "delete that folder"
        )


async def evaluated_tree(
    policy: Policy,
    environment: Environment,
    task: Task,
    runs: int,
    seed: int,
    observe: Observer = ignore,
    score_turns: bool = False,
) -> ConversationTree:
    """Play and score `runs` conversations of one task; return them as one tree.

    The policy's name does not enter the seeds: every policy meets the same users. A task that cannot be prepared has no user: its
    conversations fail.
    """
    failure: str | None = None
    try:
        task = await environment.prepare(task)
    except (SimulatorError, ChatModelError) as error:
        failure = f"the task could not be prepared: {error}"

    async def play(run: int) -> tuple[ScoredFuture, dict[str, Any]]:
        if failure is not None:
            nothing = Future((), outcome=Outcome.USER_ERROR, error=failure)
            observe(scored := ScoredFuture(run, nothing, Outcome.USER_ERROR, error=failure))
            return scored, {}
        user = environment.user_for(task)
        with metered() as meter:
            future = await sample_future((), user, policy, environment.max_turns, future_seeds(seed, task.id, run))
            scored = await score_future(environment, task, future, run)
        measured: dict[str, Any] = {
            "policy_tokens": sum(_tokens(step, environment) for step in future.policy_steps),
            "spent": {role: asdict(spent) for role, spent in meter.spent().items()},
        }
        if score_turns and scored.reward is not None:
            measured["by_turn"] = await _scores_by_turn(environment, task, scored)
        observe(scored)
        return scored, measured

    tree = ConversationTree(
        task.id,
        {
            "environment": environment.name,
            "policy": policy.name,
            "goal": task.goal,
            "reference": task.reference,
            "task": dict(task.metadata),
            "conversations": [],
        },
    )
    for scored, measured in await asyncio.gather(*(play(run) for run in range(runs))):
        leaf = scored.future.graft(tree, None)
        score: dict[str, Any] = {"total": scored.reward, "components": scored.score.components if scored.score else {}}
        if scored.error:
            score["errors"] = {"conversation": scored.error}
        if leaf is not None:
            tree.nodes[leaf].outcome = scored.outcome
            tree.nodes[leaf].annotations["score"] = score
        entry = {"run": scored.index, "leaf": leaf, "outcome": scored.outcome.value, **score, **measured}
        tree.metadata["conversations"].append(entry)
    return tree


async def _scores_by_turn(environment: Environment, task: Task, scored: ScoredFuture) -> list[float | None]:
    """Return the task score of the conversation as it stood after each reply; what it costs is not part of the conversation."""
    component, conversation = task_score_of(environment), scored.future.conversation
    if component is None:
        return []
    ends = [place for place, message in enumerate(conversation, start=1) if message.role == "assistant"]
    scores: list[float | None] = []
    for end in ends:
        try:
            scores.append(await component.score(conversation[:end], task))
        except ScoringError:
            scores.append(None)
    return scores


def evaluated_conversations(
    trees: Iterable[ConversationTree], *, seed: int = 0, first_run: int = 0
) -> Iterator[EvaluatedConversation]:
    """Yield the figures of every conversation in trees that `evaluated_tree` made.

    `seed` is the one they were played with; their runs are numbered from `first_run` on.
    """
    for tree in trees:
        for entry in tree.metadata.get("conversations", []):
            replies = [node for node in tree.path(entry["leaf"]) if node.author == "policy"]
            yield EvaluatedConversation(
                task_id=tree.task_id,
                run=first_run + entry["run"],
                outcome=Outcome(entry["outcome"]),
                reward=entry["total"],
                components=entry["components"],
                asked=tuple(asks(node.message.content) for node in replies),
                policy_tokens=entry.get("policy_tokens", sum(_told_tokens(node) for node in replies)),
                task=tree.metadata["task"],
                seed=seed,
                error=entry.get("errors", {}).get("conversation"),
                leaf=entry["leaf"],
                spent={role: Spent(**spent) for role, spent in entry.get("spent", {}).items()},
                by_turn=tuple(entry.get("by_turn", ())),
            )


def _is_whole(tree: ConversationTree) -> bool:
    return all(Outcome(entry["outcome"]).earns_reward for entry in tree.metadata["conversations"])


def _tokens(step: Step, environment: Environment) -> int:
    """Return the tokens of a reply: those that the server told, or where it tells none, as the environment counts them."""
    told = step.completion.usage.completion_tokens if step.completion is not None else 0
    return told or environment.resources.count_tokens(step.message.content)


def _told_tokens(node: Node) -> int:
    return node.usage.completion_tokens if node.usage else 0
