"""Conversations played by the current policy, as trees whose paths are episodes.

`play` gives one conversation, user turns between policy turns, until the user leaves or the turns are used up. `branch` gives,
for every turn of one conversation, a group of replies to the same history (credit `mr_branch`): the dataset builder, on-policy.
Turns are played by `simulators.forward_sampling`, as everywhere; every conversation is a coroutine of its own: the short ones do
not wait for the long ones.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from collab.candidates import ask_user, next_user_node, sample_turn
from collab.environments.domain import Environment
from collab.mr import MREstimate, MultiturnReward, ScoredFuture, score_future
from collab.rewards.conversation_reward import Score
from collab.tasks.task import Task
from collab.training.episode import Episode, EpisodeStart, Opening, note_score
from collab.training.event_loop import gather_all
from collab.training.online_settings import RolloutSettings
from collab.training.token_policy import TokenPolicy
from simulators.chat_models.protocol import ChatModel
from simulators.conversation import Conversation, ConversationTree, Outcome
from simulators.errors import ChatModelError, SimulatorError
from simulators.forward_sampling import Future, SeedOf, Step, carry_on, future_seeds, user_turn
from simulators.policy import Policy
from simulators.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class EpisodePlayer:
    """Plays episodes with `policy` at token level, and their futures with `model`, the same policy as a chat model.

    `seed` is the run's. `continue_from` and `softmax_temperature` say which reply of a group a branching conversation goes on
    from.
    """

    environment: Environment
    policy: TokenPolicy
    model: ChatModel
    settings: RolloutSettings
    seed: int
    continue_from: str = "best"
    softmax_temperature: float = 0.1
    prepared: dict[str, Task] = field(default_factory=dict, init=False)  # by task id: a model prepares each once a run

    async def open(self, start: EpisodeStart, round_name: str) -> Opening:
        """Return the conversation up to the policy's first turn: the stored history, or the user's opening."""
        task, path = start.task, Future(start.history)
        try:
            if task.id not in self.prepared:
                self.prepared[task.id] = await self.environment.prepare(task)
            task = self.prepared[task.id]
        except (SimulatorError, ChatModelError) as error:
            path.fail(error, "task")
            return Opening(task, path)
        if not start.history:
            await user_turn(path, self.environment.user_for(task), self._seeds(start, round_name, 0))
        return Opening(task, path)

    async def play(self, start: EpisodeStart, opening: Opening, round_name: str, sample: int, *, turn_worths: bool) -> Episode:
        """Play one conversation to its end and score it; `turn_worths` also estimates MR after every turn but the last."""
        tree = self._tree(start, opening)
        if opening.path.over:
            return Episode(start.id, sample, tree, failed=(opening.path.outcome, opening.path.error))
        task, path = opening.task, opening.going_on()
        user, toolbox = self.environment.user_for(task), self.environment.toolbox_for(task)
        seeds = self._seeds(start, round_name, sample)
        estimates: list[asyncio.Task[MREstimate]] = []
        try:
            async for step in carry_on(path, user, self.policy, self._turns_left(path), seeds, toolbox):
                if turn_worths and step.author == "user" and not path.over:
                    estimate = self._mr(task, round_name).estimate(path.conversation[:-1], task, sample)
                    estimates.append(asyncio.create_task(estimate))
            scored = await self._scored(task, path, round_name, sample)
            return self._episode(start, sample, tree, scored, [await each for each in estimates])
        finally:
            for each in estimates:
                each.cancel()

    def _episode(
        self, start: EpisodeStart, sample: int, tree: ConversationTree, scored: ScoredFuture, estimates: Sequence[MREstimate]
    ) -> Episode:
        leaf = scored.future.graft(tree, tree.nodes[-1].id if tree.nodes else None)
        assert leaf is not None
        note_score(tree.nodes[leaf], scored)
        episode = Episode(start.id, sample, tree, leaf)
        pairs = itertools.pairwise(episode.played)
        answered = [node for node, after in pairs if (node.author, after.author) == ("policy", "user")]
        for node, estimate in zip(answered, estimates, strict=False):
            estimate.graft(tree, node.id)
        return Episode(start.id, sample, tree, leaf)

    async def _scored(self, task: Task, path: Future, round_name: str, sample: int) -> ScoredFuture:
        """Return what a conversation earns: R* as it stands, or the MR of its last reply where it could go on."""
        going = path.outcome in (Outcome.WINDOW_FULL, Outcome.TRUNCATED) and path.answered
        if self.settings.reward == "outcome" or not going:
            return await score_future(self.environment, task, path, sample)
        estimate = await self._mr(task, round_name).estimate(path.answered, task, sample)
        return _by_estimate(path, estimate, sample)

    async def branch(self, start: EpisodeStart, opening: Opening, round_name: str, size: int) -> list[Episode]:
        """Play one conversation whose every turn is chosen from `size` replies to the same history; return all of them.

        The next user message is the one that the chosen reply's first unfailed future began with (`collab.candidates`).
        """
        tree = self._tree(start, opening)
        if opening.path.over:
            failed = (opening.path.outcome, opening.path.error)
            return [Episode(start.id, index, tree, failed=failed) for index in range(size)]
        trunk, rows = opening.going_on(), list[Episode]()
        end = trunk.graft(tree, tree.nodes[-1].id if tree.nodes else None)
        seeds = self._seeds(start, round_name, 0)
        first = trunk.turn
        for turn in range(first, first + self._turns_left(trunk)):
            group, paths, estimates = await self._group(start, opening.task, tree, end, trunk, round_name, size)
            rows += group
            chosen = self._choose(group, paths, derive_seed(self.seed, round_name, start.id, turn, "branch"))
            if chosen is None:
                break
            leaf, estimate = group[chosen].leaf, estimates[chosen]
            assert leaf is not None and estimate is not None
            end = next_user_node(tree, leaf, estimate)
            if self.settings.window_turns == 0:
                asked = await ask_user(tree, leaf, self.environment, opening.task, seeds)
                end = None if asked.over else tree.nodes[-1].id
                if not asked.outcome.earns_reward:
                    tree.metadata["stopped"] = f"turn {turn + 1}: the user failed: {asked.error}"
            if end is None:
                break
            trunk = Future(trunk.history, [*paths[chosen].steps, Step(tree.nodes[end].message, "user", 0)])
        return rows

    async def _group(
        self, start: EpisodeStart, task: Task, tree: ConversationTree, end: int | None, trunk: Future, round_name: str, size: int
    ) -> tuple[list[Episode], list[Future], list[MREstimate | None]]:
        """Sample `size` replies to the trunk and estimate the MR of each, all at once; add them to the tree in their order."""
        reward = self._mr(task, round_name)

        async def one(index: int) -> tuple[Callable[[], int] | None, Future, MREstimate | None]:
            turn = await sample_turn(trunk, self.policy, self._seeds(start, round_name, index), self.environment, task)
            if turn.failed:
                return None, turn.path, None
            return lambda: turn.graft(tree, end), turn.path, await reward.estimate(turn.path.conversation, task, index)

        group, paths, estimates = [], [], []
        for index, (graft, path, estimate) in enumerate(await gather_all([one(index) for index in range(size)])):
            paths.append(path)
            estimates.append(estimate)
            if graft is None or estimate is None:
                failed = (path.outcome, path.error)
                group.append(Episode(start.id, index, tree, turn=trunk.turn, whole=False, failed=failed))
                continue
            leaf = graft()
            note_score(tree.nodes[leaf], _by_estimate(path, estimate, index))
            estimate.graft(tree, leaf)
            group.append(Episode(start.id, index, tree, leaf, trunk.turn, whole=False))
        return group, paths, estimates

    def _choose(self, group: Sequence[Episode], paths: Sequence[Future], seed: int) -> int | None:
        """Return the index of the reply that the conversation goes on from, None when none can be answered and has an MR."""
        scored = [
            (row.reward, index)
            for index, (row, path) in enumerate(zip(group, paths, strict=True))
            if row.reward is not None and not path.over
        ]
        if not scored:
            return None
        best = max(worth for worth, _ in scored)
        if self.continue_from == "best":
            return next(index for worth, index in scored if worth == best)
        weights = [math.exp((worth - best) / self.softmax_temperature) for worth, _ in scored]
        return random.Random(seed).choices([index for _, index in scored], weights)[0]

    def _tree(self, start: EpisodeStart, opening: Opening) -> ConversationTree:
        """Begin the tree of a start: its task, and the stored history."""
        task = opening.task
        metadata = {
            "environment": self.environment.name,
            "task_id": task.id,
            "goal": task.goal,
            "reference": task.reference,
            "task": dict(task.metadata),
        }
        tree = ConversationTree(start.id, metadata)
        tree.extend(None, start.history)
        return tree

    def _turns_left(self, path: Future) -> int:
        """Return how many replies the policy may still give: the settings' number, or what the environment's limit leaves."""
        if self.settings.max_turns is not None:
            return self.settings.max_turns
        return max(1, self.environment.max_turns - _turns_given(path.conversation))

    def _mr(self, task: Task, round_name: str) -> MultiturnReward:
        """Return the MR estimator of one task and rollout: every turn and sample of it meets the same future users."""
        return MultiturnReward(
            self.environment,
            Policy(self.model, self.policy.sampling, self.settings.system_prompt),
            self.settings.window_turns,
            self.settings.num_samples,
            derive_seed(self.seed, round_name, task.id, "mr"),
        )

    def _seeds(self, start: EpisodeStart, round_name: str, sample: int) -> SeedOf:
        """Seeds of one episode: users do not depend on the sample, so that a group's conversations meet the same user."""
        return future_seeds(derive_seed(self.seed, round_name), start.id, 0, sample)


def _turns_given(conversation: Conversation) -> int:
    """Return how many turns of a conversation the policy has answered."""
    return sum(before.role == "user" and after.role == "assistant" for before, after in itertools.pairwise(conversation))


def _by_estimate(path: Future, estimate: MREstimate, sample: int) -> ScoredFuture:
    """Return a conversation as worth the MR of its last reply; without a value it is unscored, for its first future's reason."""
    if estimate.mean is not None:
        return ScoredFuture(sample, path, path.outcome, Score(estimate.mean, estimate.components), path.error)
    first = estimate.futures[0]
    outcome = first.outcome if not first.outcome.earns_reward else Outcome.JUDGE_ERROR
    return ScoredFuture(sample, path, outcome, error=first.error)
