"""The dataset builder of CollabLLM Appendix B.1: conversations that grow along their best-ranked replies.

For each task the simulated user opens. At every turn k candidate replies are sampled from a mix of sources, the MR of each is
estimated, and they are ranked; the conversation goes on with the best one (`collab.candidates` says with which user turn).
Everything that was sampled stays in the task's tree: datasets are views of it (`collab.data.views`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from collab.candidates import CandidateTurn, ask_user, candidate_turn, next_user_node
from collab.data.candidate_note import CandidateNote
from collab.environments.domain import Environment
from collab.mr import MREstimate, MultiturnReward, ScoredFuture
from collab.tasks.task import Task
from simulators.adaptive_sampling import AdaptiveSampling
from simulators.conversation import Conversation, ConversationTree
from simulators.errors import ChatModelError, ConfigurationError, SimulatorError
from simulators.forward_sampling import Future
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
    turn: CandidateTurn
    estimate: MREstimate


@dataclass(frozen=True, slots=True)
class DatasetBuilder:
    """Builds one conversation tree a task.

    `reward` plays and scores the futures, with the policy that is to be trained. `max_turns` bounds the kept conversation
    (None: the environment's own limit), and so does `max_tokens`: a conversation of more is not carried on. With `adaptive` the
    candidates of a turn get as many futures as their ranking needs, `reward.num_samples` at least, which alone are reported.

    Raises:
        ConfigurationError: with fewer than two candidates a turn there is nothing to rank; nor without a turn or a token; nor
            where `adaptive` starts from another number of futures than `reward` reports.
    """

    environment: Environment
    reward: MultiturnReward
    sources: Sequence[CandidateSource]
    seed: int = 0
    max_turns: int | None = None
    max_tokens: int | None = None
    adaptive: AdaptiveSampling | None = None

    def __post_init__(self) -> None:
        if sum(source.count for source in self.sources) < 2:
            raise ConfigurationError("the builder ranks candidates: give it at least two a turn (sources and their counts)")
        if self.max_turns is not None and self.max_turns < 1:
            raise ConfigurationError(f"max_turns is {self.max_turns}; a conversation has at least one turn")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigurationError(f"max_tokens is {self.max_tokens}; a conversation has at least one token")
        if self.adaptive is not None and self.adaptive.min_futures != self.reward.num_samples:
            raise ConfigurationError(
                f"adaptive sampling starts from {self.adaptive.min_futures} futures, and MR is reported over "
                f"{self.reward.num_samples}; the two must be equal"
            )

    async def build(self, task: Task, metadata: dict[str, Any] | None = None) -> ConversationTree:
        """Build the tree of one task.

        A task that cannot be prepared, whose user cannot open or go on, or none of whose candidates could be scored at some
        turn, ends there; the tree's metadata then has `stopped`, with the reason.

        Raises:
            ConfigurationError: as the models do.
        """
        tree = ConversationTree(task.id, self._metadata(task) | (metadata or {}))
        try:
            task = await self.environment.prepare(task)
        except (SimulatorError, ChatModelError) as error:
            tree.metadata["stopped"] = f"turn 1: the task could not be prepared: {error}"
            unprepared = Future(())
            unprepared.fail(error, "task")
            self.reward.observe(ScoredFuture(0, unprepared, unprepared.outcome, error=unprepared.error))
            return tree
        tree.metadata["goal"] = task.goal
        if (toolbox := self.environment.toolbox_for(task)) is not None:
            tree.metadata["tools"] = toolbox.schemas
        history_id = await self._user_turn(tree, None, task, turn=1)
        if history_id is None:
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
            if history_id is None or self._is_full(tree.conversation(history_id)):
                break
        return tree

    def _is_full(self, conversation: Conversation) -> bool:
        if self.max_tokens is None:
            return False
        count = self.environment.resources.count_tokens
        return sum(count(message.content) for message in conversation) > self.max_tokens

    def _metadata(self, task: Task) -> dict[str, Any]:
        held_out = self.environment.domain.held_out(task)
        return {
            "environment": self.environment.name,
            "goal": task.goal,
            "reference": task.reference,
            "task": dict(task.metadata),
            **({"held_out": held_out} if held_out is not None else {}),
            "reward": {component.name: weight for component, weight in self.environment.reward.terms},
            "window_turns": self.reward.window_turns,
            "num_samples": self.reward.num_samples,
            "seed": self.seed,
        }

    async def _candidates(self, tree: ConversationTree, history_id: int, task: Task, turn: int) -> list[Candidate]:
        """Sample and score one turn's candidates; equal texts count once, failed calls not at all."""
        history = Future(tree.conversation(history_id))
        policies = [source.policy for source in self.sources for _ in range(source.count)]
        turns = await asyncio.gather(
            *(
                candidate_turn(self.environment, task, history, policy, self.seed, turn, index)
                for index, policy in enumerate(policies)
            )
        )
        distinct: dict[Any, tuple[int, str, CandidateTurn]] = {}
        for index, (policy, sampled) in enumerate(zip(policies, turns, strict=True)):
            if sampled.failed:
                failures = tree.metadata.setdefault("failed_candidates", [])
                failures.append({"turn": turn, "source": policy.name, "error": sampled.path.error})
                self.reward.observe(ScoredFuture(0, sampled.path, sampled.path.outcome, error=sampled.path.error))
            else:
                said = tuple((step.message.content, step.message.tool_calls) for step in sampled.steps)
                distinct.setdefault(said, (index, policy.name, sampled))
        found = list(distinct.values())
        conversations = [sampled.path.conversation for _, _, sampled in found]
        estimates = await self._estimates(conversations, [index for index, _, _ in found], task)
        return [
            Candidate(index, source, sampled, estimate)
            for (index, source, sampled), estimate in zip(found, estimates, strict=True)
        ]  # fmt: skip

    async def _estimates(self, conversations: list[Conversation], indices: list[int], task: Task) -> list[MREstimate]:
        """Estimate the MR of every candidate, each with as many futures, or with as many as their ranking needs."""
        if self.adaptive is None or len(conversations) < 2 or self.reward.window_turns == 0:
            together = zip(conversations, indices, strict=True)
            return list(await asyncio.gather(*(self.reward.estimate(each, task, index) for each, index in together)))
        played: list[dict[int, ScoredFuture]] = [{} for _ in conversations]

        async def play(candidate: int, future: int) -> float | None:
            scored = await self.reward.scored_future(conversations[candidate], task, future, indices[candidate])
            played[candidate][future] = scored
            return scored.reward

        await self.adaptive.rank(play, len(conversations))
        reported = self.reward.num_samples
        in_order = [[futures[index] for index in sorted(futures)] for futures in played]
        return [MREstimate(tuple(futures[:reported]), tuple(futures[reported:])) for futures in in_order]

    async def _user_turn(self, tree: ConversationTree, after: int | None, task: Task, turn: int) -> int | None:
        """Ask the user itself where no future holds its turn (the opening; window 0); None when it leaves or fails."""
        seed = derive_seed(self.seed, task.id, turn, "user", 0)
        asked = await ask_user(tree, after, self.environment, task, lambda author, number: seed)
        if not asked.over:
            return tree.nodes[-1].id
        if not asked.outcome.earns_reward:
            tree.metadata["stopped"] = f"turn {turn}: the user failed: {asked.error}"
            self.reward.observe(ScoredFuture(0, asked, asked.outcome, error=asked.error))
        return None


def ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that have an MR, best first; equals keep the order they were sampled in.

    A reply that nobody can read comes after all others, whatever it saves. Under adaptive sampling those that stayed in longest
    come first: more futures were drawn for them because they looked better whenever they were compared.
    """
    scored = [
        (candidate.turn.answerable, len(candidate.estimate.extra), worth, candidate)
        for candidate in candidates
        if candidate.estimate.mean is not None and (worth := candidate.estimate.ranking_mean) is not None
    ]
    return [candidate for *_, candidate in sorted(scored, key=lambda each: (-each[0], -each[1], -each[2]))]


def _first_error(tree: ConversationTree, turn: int, candidates: Sequence[Candidate]) -> str | None:
    failed = [failure["error"] for failure in tree.metadata.get("failed_candidates", []) if failure["turn"] == turn]
    unscored = [future.error for candidate in candidates for future in candidate.estimate.futures if future.error]
    unreadable = [candidate.turn.path.error for candidate in candidates if not candidate.turn.answerable]
    return next(iter([*failed, *unscored, *unreadable]), None)


def _graft(tree: ConversationTree, history_id: int, candidates: Sequence[Candidate]) -> tuple[int | None, int | None]:
    """Add a turn's candidates and their futures to the tree, in index order so that the tree does not depend on timing.

    Return the chosen candidate's node, and the user node the conversation goes on from (None: it ends here).
    """
    order = ranked(candidates)
    ranks = {candidate.index: rank for rank, candidate in enumerate(order)}
    chosen_id = next_id = None
    for candidate in candidates:
        node = tree.nodes[candidate.turn.graft(tree, history_id)]
        rank = ranks.get(candidate.index)
        CandidateNote.ranked(candidate.index, candidate.source, rank, len(order)).write(node)
        candidate.estimate.graft(tree, node.id)
        if rank != 0 or not candidate.turn.answerable:
            continue
        for kept in tree.path(node.id)[-len(candidate.turn.steps) :]:
            kept.annotations["kept"] = True
        chosen_id, next_id = node.id, next_user_node(tree, node.id, candidate.estimate)
    return chosen_id, next_id
