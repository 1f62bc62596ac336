"""The dataset builder of CollabLLM Appendix B.1: conversations that grow along their best-ranked replies.

For each task the simulated user opens. At every turn k candidate replies are sampled from a mix of sources, the MR of each is
estimated, and they are ranked; the conversation goes on with the best one and with *the first user turn of one of its own
futures*. Everything that was sampled stays in the task's tree: datasets are views of it (`collab.data.views`).

The next user turn comes from the chosen reply's first unfailed future. Futures are exchangeable, so that is a fair draw from
the simulated user; taking the longest one, as the reference implementation does, is biased against ending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from collab.environments.domain import Environment
from collab.mr import MREstimate, MultiturnReward, ScoredFuture
from collab.tasks.task import Task
from simulators.conversation import Conversation, ConversationTree, Message, Outcome
from simulators.errors import ChatModelError, ConfigurationError, ContextOverflow, SimulatorError
from simulators.forward_sampling import Future, Step, add_step, sample_reply
from simulators.policy import Policy
from simulators.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class CandidateSource:
    """Where candidates come from: a policy (model, prompt, forced start, sampling) and how many of its replies a turn gets."""

    policy: Policy
    count: int = 1

    @property
    def name(self) -> str:
        return self.policy.name


@dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate reply with its rank-deciding estimate."""

    index: int
    source: str
    step: Step
    estimate: MREstimate


@dataclass(frozen=True, slots=True)
class DatasetBuilder:
    """Builds one conversation tree a task.

    `reward` plays and scores the futures, with the policy that is to be trained. `max_turns` bounds the kept conversation
    (None: the environment's own limit).

    Raises:
        ConfigurationError: with fewer than two candidates a turn there is nothing to rank; nor without a turn.
    """

    environment: Environment
    reward: MultiturnReward
    sources: Sequence[CandidateSource]
    seed: int = 0
    max_turns: int | None = None

    def __post_init__(self) -> None:
        if sum(source.count for source in self.sources) < 2:
            raise ConfigurationError("the builder ranks candidates: give it at least two a turn (sources and their counts)")
        if self.max_turns is not None and self.max_turns < 1:
            raise ConfigurationError(f"max_turns is {self.max_turns}; a conversation has at least one turn")

    async def build(self, task: Task, metadata: dict[str, Any] | None = None) -> ConversationTree:
        """Build the tree of one task.

        A task whose user cannot open or go on, or none of whose candidates could be scored at some turn, ends there; the tree's
        metadata then has `stopped`, with the reason.

        Raises:
            ConfigurationError: as the models do.
        """
        tree = ConversationTree(task.id, self._metadata(task) | (metadata or {}))
        history_id = await self._user_turn(tree, None, task, turn=1)
        if history_id is None:
            tree.metadata.setdefault("stopped", "turn 1: the user left before it said anything")
            return tree
        limit = self.max_turns or self.environment.max_turns
        for turn in range(1, limit + 1):
            assert history_id is not None
            tree.nodes[history_id].annotations["kept"] = True
            candidates = await self._candidates(tree, history_id, task, turn)
            chosen_id, history_id = _graft(tree, history_id, candidates)
            if chosen_id is None:
                tree.metadata["stopped"] = f"turn {turn}: no candidate could be scored ({_first_error(tree, turn, candidates)})"
                break
            if history_id is None and self.reward.window_turns == 0 and turn < limit:
                history_id = await self._user_turn(tree, chosen_id, task, turn + 1)
            if history_id is None:
                break
        return tree

    def _metadata(self, task: Task) -> dict[str, Any]:
        return {
            "environment": self.environment.name,
            "goal": task.goal,
            "reference": task.reference,
            "task": dict(task.metadata),
            "window_turns": self.reward.window_turns,
            "num_samples": self.reward.num_samples,
            "seed": self.seed,
        }

    async def _candidates(self, tree: ConversationTree, history_id: int, task: Task, turn: int) -> list[Candidate]:
        """Sample and score one turn's candidates; equal texts count once, failed calls not at all."""
        history = tree.conversation(history_id)
        policies = [source.policy for source in self.sources for _ in range(source.count)]
        seeds = [derive_seed(self.seed, task.id, turn, "candidate", index) for index in range(len(policies))]
        results = await asyncio.gather(
            *(sample_reply(history, policy, seed) for policy, seed in zip(policies, seeds, strict=True)), return_exceptions=True
        )
        distinct: dict[str, tuple[int, str, Step]] = {}
        for index, (policy, result) in enumerate(zip(policies, results, strict=True)):
            if isinstance(result, ChatModelError):
                failures = tree.metadata.setdefault("failed_candidates", [])
                failures.append({"turn": turn, "source": policy.name, "error": str(result)})
                self._observe_failure(history, result)
            elif isinstance(result, BaseException):
                raise result
            else:
                distinct.setdefault(result.message.content, (index, policy.name, result))
        estimates = await asyncio.gather(
            *(self.reward.estimate((*history, step.message), task, candidate_index=index) for index, _, step in distinct.values())
        )
        return [
            Candidate(index, source, step, estimate)
            for (index, source, step), estimate in zip(distinct.values(), estimates, strict=True)
        ]

    async def _user_turn(self, tree: ConversationTree, after: int | None, task: Task, turn: int) -> int | None:
        """Ask the user itself where no future holds its turn (the opening; window 0); None when it leaves or fails."""
        seed = derive_seed(self.seed, task.id, turn, "user", 0)
        try:
            said = await self.environment.user_for(task).next_turn(tree.conversation(after), seed)
            if not said.ends and not said.text.strip():
                raise SimulatorError("the simulated user sent an empty message")
        except (SimulatorError, ChatModelError) as error:
            tree.metadata["stopped"] = f"turn {turn}: the user failed: {error}"
            self._observe_failure(tree.conversation(after), error)
            return None
        if said.ends:
            return None
        return add_step(tree, after, Step(Message("user", said.text), "user", seed, said.completion, said.flags)).id

    def _observe_failure(self, history: Conversation, error: SimulatorError | ChatModelError) -> None:
        """Let a failed candidate, or a failed user, count among the futures that failed: nothing follows from it either."""
        outcome = Outcome.USER_ERROR if isinstance(error, SimulatorError) else Outcome.INFRA_ERROR
        if isinstance(error, ContextOverflow):
            outcome = Outcome.TRUNCATED
        self.reward.observe(ScoredFuture(0, Future(history, outcome=outcome), outcome, error=str(error)))


def ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that have an MR, best first; equals keep the order they were sampled in."""
    scored = [(mean, candidate) for candidate in candidates if (mean := candidate.estimate.mean) is not None]
    return [candidate for _, candidate in sorted(scored, key=lambda pair: -pair[0])]


def _first_error(tree: ConversationTree, turn: int, candidates: Sequence[Candidate]) -> str | None:
    failed = [failure["error"] for failure in tree.metadata.get("failed_candidates", []) if failure["turn"] == turn]
    unscored = [future.error for candidate in candidates for future in candidate.estimate.futures if future.error]
    return next(iter([*failed, *unscored]), None)


def _graft(tree: ConversationTree, history_id: int, candidates: Sequence[Candidate]) -> tuple[int | None, int | None]:
    """Add a turn's candidates and their futures to the tree, in index order so that the tree does not depend on timing.

    Return the chosen candidate's node, and the user node the conversation goes on from (None: it ends here).
    """
    order = ranked(candidates)
    ranks = {candidate.index: rank for rank, candidate in enumerate(order)}
    chosen_id = next_id = None
    for candidate in candidates:
        node = add_step(tree, history_id, candidate.step)
        rank = ranks.get(candidate.index)
        node.annotations["candidate"] = {"index": candidate.index, "source": candidate.source, "rank": rank}
        if len(order) > 1 and rank in (0, len(order) - 1):
            node.annotations["candidate"]["role"] = "chosen" if rank == 0 else "rejected"
        candidate.estimate.graft(tree, node.id)
        if rank != 0:
            continue
        node.annotations["kept"] = True
        chosen_id, next_id = node.id, _user_turn_below(tree, node.id, candidate.estimate)
    return chosen_id, next_id


def _user_turn_below(tree: ConversationTree, candidate_id: int, estimate: MREstimate) -> int | None:
    """Return the node of the first user turn of the first unfailed future, None where that user left."""
    children = iter(tree.children(candidate_id))
    for scored in estimate.futures:
        child = next(children) if scored.future.steps else None
        if scored.reward is None:
            continue
        left = scored.outcome.value == "ended" and len(scored.future.steps) <= 1
        return None if child is None or left else child.id
    return None
