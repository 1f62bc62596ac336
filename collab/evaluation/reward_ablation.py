"""The same candidate replies under every reward mechanism (CollabLLM section 5.1, Figures 4 and 6).

Immediate rewards score the conversation as it stands: `helpfulness` (a judge), `extrinsic`, and `extrinsic + intrinsic`, which is
R* with window 0. MR looks 1, 2, 3, ... turns ahead. All mechanisms see the same replies, and the futures of a smaller window are
the beginnings of those of a larger one.

What a mechanism's choice is worth is measured on *other* conversations, played from each reply to their end with seeds of their
own: what chose a reply does not judge it. The paper's Figure 4 trains a model on each mechanism's choices instead; `pair_trees`
gives the pairs to do that with.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collab.candidates import CandidateTurn, ask_user, candidate_turn
from collab.data.builder import CandidateSource
from collab.data.candidate_note import CandidateNote
from collab.environments.domain import Environment
from collab.evaluation.statistics import MeanEstimate, kendall_tau_b, mean_and_error
from collab.mr import MREstimate, MultiturnReward, Observer, ignore
from collab.rewards.component import RewardComponent, ScoringError
from collab.tasks.task import Task
from simulators.conversation import Conversation, ConversationTree, Message
from simulators.errors import ChatModelError, SimulatorError
from simulators.forward_sampling import Future
from simulators.policy import Policy
from simulators.seeds import derive_seed

HELPFULNESS, EXTRINSIC, IMMEDIATE = "helpfulness", "extrinsic", "extrinsic + intrinsic"
R_STAR, TOKENS = "R*", "tokens"
ANY = "any reply"
INTRINSIC = frozenset({"token_cost", "interactivity", "helpfulness", "clarity"})
"""Reward components that do not depend on the goal (equation 4 and what the paper says can be added to it)."""


def mr_name(window: int) -> str:
    """Return what MR with a window is called in tables."""
    return f"MR, window {window}"


@dataclass(frozen=True, slots=True)
class RatedReply:
    """A reply with its reward under every mechanism that gave it one, and what followed from it in other conversations.

    `outcome` are means over those: R*, each reward component, and the policy's tokens. Empty where none could be scored.
    """

    task_id: str
    index: int
    source: str
    text: str
    rewards: Mapping[str, MeanEstimate]
    outcome: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RatedTask:
    """One task's replies to its opening, and the tree that holds them with the futures of the largest window."""

    tree: ConversationTree
    replies: tuple[RatedReply, ...]
    stopped: str | None = None


@dataclass(frozen=True, slots=True)
class RewardAblation:
    """Rates replies to the openings of tasks.

    `sources` are those of the builder, and replies come with the builder's seeds: they are the candidates that a build with the
    same settings has at its first turn. `helpfulness` is the judge of that name, None where there is none.
    """

    environment: Environment
    policy: Policy
    sources: Sequence[CandidateSource]
    windows: Sequence[int] = (1, 2, 3)
    num_samples: int = 3
    outcome_samples: int = 3
    seed: int = 0
    helpfulness: RewardComponent | None = None
    observe: Observer = ignore

    async def rate(self, task: Task) -> RatedTask:
        """Sample the replies of one task and rate them; a task whose user cannot open has none, and says why in `stopped`.

        Raises:
            ConfigurationError: as the models do.
        """
        tree = ConversationTree(task.id, {"environment": self.environment.name, "task": dict(task.metadata)})
        try:
            task = await self.environment.prepare(task)
        except (SimulatorError, ChatModelError) as error:
            return RatedTask(tree, (), str(error))
        tree.metadata |= {"goal": task.goal, "reference": task.reference}
        asked = await ask_user(
            tree, None, self.environment, task, lambda author, turn: derive_seed(self.seed, task.id, 1, author, 0)
        )
        if asked.over:
            return RatedTask(tree, (), asked.error)
        tree.nodes[0].annotations["kept"] = True
        found = await self._replies(Future(asked.conversation), task)
        rated = await asyncio.gather(*(self._rated(turn.path.conversation, task, index) for index, _, turn in found))
        replies = []
        for (index, source, turn), (rewards, outcome, widest) in zip(found, rated, strict=True):
            node = tree.nodes[turn.graft(tree, 0)]
            CandidateNote(index, source).write(node)
            widest.graft(tree, node.id)
            node.annotations["rewards"] = {name: estimate.mean for name, estimate in rewards.items()}
            node.annotations["outcome"] = outcome
            replies.append(RatedReply(task.id, index, source, node.message.content, rewards, outcome))
        return RatedTask(tree, tuple(replies))

    async def _replies(self, history: Future, task: Task) -> list[tuple[int, str, CandidateTurn]]:
        """Return the builder's candidates of a first turn; equal texts count once."""
        policies = [source.policy for source in self.sources for _ in range(source.count)]
        turns = await asyncio.gather(
            *(candidate_turn(self.environment, task, history, each, self.seed, 1, index) for index, each in enumerate(policies))
        )
        distinct: dict[str, tuple[int, str, CandidateTurn]] = {}
        for index, (policy, turn) in enumerate(zip(policies, turns, strict=True)):
            if not turn.failed:
                distinct.setdefault(turn.steps[-1].message.content, (index, policy.name, turn))
        return list(distinct.values())

    async def _rated(
        self, conversation: Conversation, task: Task, index: int
    ) -> tuple[dict[str, MeanEstimate], dict[str, float], MREstimate]:
        """Return a reply's rewards by mechanism, what followed from it, and its estimate with the largest window."""
        windows = [0, *self.windows]
        rewards = [
            MultiturnReward(self.environment, self.policy, window, self.num_samples, self.seed, self.observe)
            for window in windows
        ]
        to_the_end = max(1, self.environment.max_turns - 1)
        apart = derive_seed(self.seed, "outcome")
        later = MultiturnReward(self.environment, self.policy, to_the_end, self.outcome_samples, apart, self.observe)
        *estimates, outcome = await asyncio.gather(
            *(reward.estimate(conversation, task, index) for reward in (*rewards, later))
        )  # fmt: skip
        found: dict[str, MeanEstimate] = {}
        if self.helpfulness is not None:
            with contextlib.suppress(ScoringError):  # a judge without a verdict is not a judge that says 0
                found[HELPFULNESS] = MeanEstimate(await self.helpfulness.score(conversation, task), None, 1)
        immediate = estimates[0]
        if immediate.mean is not None:
            found[EXTRINSIC] = MeanEstimate(self._extrinsic(immediate.components), None, 1)
            found[IMMEDIATE] = MeanEstimate(immediate.mean, None, 1)
        for window, estimate in zip(self.windows, estimates[1:], strict=True):
            if estimate.mean is not None:
                found[mr_name(window)] = MeanEstimate(estimate.mean, estimate.std_error, estimate.used)
        return found, self._followed(outcome), estimates[-1]

    def _extrinsic(self, components: Mapping[str, float]) -> float:
        weights = {component.name: weight for component, weight in self.environment.reward.terms}
        return sum(weights.get(name, 1.0) * value for name, value in components.items() if name not in INTRINSIC)

    def _followed(self, outcome: MREstimate) -> dict[str, float]:
        if outcome.mean is None:
            return {}
        count = self.environment.resources.count_tokens
        tokens = [
            sum(count(message.content) for message in future.future.conversation if message.role == "assistant")
            for future in outcome.futures
            if future.reward is not None
        ]
        return {R_STAR: outcome.mean, **outcome.components, TOKENS: statistics.fmean(tokens)}


def mechanisms(tasks: Sequence[RatedTask]) -> list[str]:
    """Return the mechanisms that rated anything, immediate ones first, then MR by window."""
    names = {name for task in tasks for reply in task.replies for name in reply.rewards}
    fixed = [name for name in (HELPFULNESS, EXTRINSIC, IMMEDIATE) if name in names]
    return fixed + sorted(names - set(fixed), key=lambda name: int(name.rpartition(" ")[2]))


def preferred(replies: Sequence[RatedReply], mechanism: str) -> list[RatedReply]:
    """Return the replies that a mechanism rates highest: more than one where it cannot tell them apart."""
    rated = [(reply.rewards[mechanism].mean, reply) for reply in replies if mechanism in reply.rewards]
    best = max((reward for reward, _ in rated), default=None)
    return [reply for reward, reply in rated if reward == best]


def outcomes_by_mechanism(tasks: Sequence[RatedTask]) -> dict[str, dict[str, MeanEstimate]]:
    """Return {mechanism: {metric: mean over tasks}} of what followed from the replies that it prefers (Figure 4).

    Among replies that a mechanism rates equally the mean is taken. "any reply" is the mean over all of them: what choosing
    blindly gives.
    """
    table: dict[str, dict[str, MeanEstimate]] = {}
    for name in (ANY, *mechanisms(tasks)):
        values: dict[str, list[float]] = {}
        for task in tasks:
            choice = task.replies if name == ANY else preferred(task.replies, name)
            outcomes = [reply.outcome for reply in choice if reply.outcome]
            for metric in {metric for outcome in outcomes for metric in outcome}:
                values.setdefault(metric, []).append(
                    statistics.fmean(outcome[metric] for outcome in outcomes if metric in outcome)
                )
        table[name] = {metric: mean_and_error(found) for metric, found in sorted(values.items())}
    return table


def rank_correlations(tasks: Sequence[RatedTask]) -> dict[str, dict[str, MeanEstimate]]:
    """Return Kendall's tau-b between mechanisms, and between each and what followed (R*), within tasks, as means over tasks.

    Tasks in which one side cannot tell any two replies apart have no correlation and are left out; `count` says how many had.
    """
    names = [*mechanisms(tasks), R_STAR]
    table: dict[str, dict[str, MeanEstimate]] = {}
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            found = []
            for task in tasks:
                pairs = [(_rating(reply, first), _rating(reply, second)) for reply in task.replies]
                known = [(one, other) for one, other in pairs if one is not None and other is not None]
                if len(known) < 2:
                    continue
                tau = kendall_tau_b([one for one, _ in known], [other for _, other in known])
                if tau is not None:
                    found.append(tau)
            if found:
                table.setdefault(first, {})[second] = table.setdefault(second, {})[first] = mean_and_error(found)
    return table


def _rating(reply: RatedReply, name: str) -> float | None:
    if name == R_STAR:
        return reply.outcome.get(R_STAR)
    return reply.rewards[name].mean if name in reply.rewards else None


def telling_pairs(tasks: Sequence[RatedTask], most: int = 3) -> list[tuple[RatedReply, RatedReply]]:
    """Return pairs of replies like A and B of Figure 6: (one that the immediate reward prefers or cannot tell from the other, and
    one that the largest window prefers), the largest difference in MR first, one pair a task."""
    found = []
    for task in tasks:
        names = [name for name in mechanisms([task]) if name not in (HELPFULNESS, EXTRINSIC, IMMEDIATE)]
        if not names:
            continue
        widest = names[-1]
        rated = [reply for reply in task.replies if widest in reply.rewards and IMMEDIATE in reply.rewards]
        pairs = [
            (second.rewards[widest].mean - first.rewards[widest].mean, first, second)
            for first in rated
            for second in rated
            if first.rewards[IMMEDIATE].mean >= second.rewards[IMMEDIATE].mean
        ]
        if pairs and (best := max(pairs, key=lambda pair: pair[0]))[0] > 0:
            found.append(best)
    return [(first, second) for _, first, second in sorted(found, key=lambda pair: -pair[0])[:most]]


def pair_trees(tasks: Sequence[RatedTask], mechanism: str) -> list[ConversationTree]:
    """Return trees of openings and replies with one mechanism's reward in the place of MR: what its DPO pairs are made of."""
    trees = []
    for task in tasks:
        users = [node for node in task.tree.nodes if node.annotations.get("kept")]
        if not users or not any(mechanism in reply.rewards for reply in task.replies):
            continue
        tree = ConversationTree(task.tree.task_id, dict(task.tree.metadata))
        opening = tree.add(None, users[0].message, "user")
        opening.annotations["kept"] = True
        best = preferred(task.replies, mechanism)[0]
        for reply in task.replies:
            node = tree.add(opening.id, Message("assistant", reply.text), "policy")
            mean = reply.rewards[mechanism].mean if mechanism in reply.rewards else None
            CandidateNote(reply.index, reply.source).write(node)
            node.annotations["mr"] = {"mean": mean, "used": int(mean is not None), "failed": int(mean is None)}
            if reply is best:
                node.annotations["kept"] = True
        trees.append(tree)
    return trees
