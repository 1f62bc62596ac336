"""Conversations played by the current policy, as episodes.

`play` gives one conversation, user turns between policy turns, until the user leaves or the
turns are used up. `branch` gives, for every turn of one conversation, a group of replies to the same history (credit
`mr_branch`). Every conversation is a coroutine of its own: the short ones do not wait for the long ones.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from collab.environments.domain import Environment
from collab.mr import MREstimate, MultiturnReward, score_future
from collab.tasks.task import Task
from collab.training.episode import Episode, EpisodeStart, Opening
from collab.training.event_loop import gather_all
from collab.training.online_settings import RolloutSettings
from collab.training.turn_tokens import TurnTokens
from simulators.chat_models.protocol import ChatModel, SamplingSettings
from simulators.chat_models.token_sampler import SampledReply, TokenSampler
from simulators.conversation import Conversation, Message, Outcome
from simulators.errors import ChatModelError, ContextOverflow, SimulatorError
from simulators.forward_sampling import Future, SeedOf, Step, future_seeds
from simulators.policy import Policy
from simulators.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class EpisodePlayer:
    """Plays episodes. `token_limit` bounds prompt and completion together, in tokens; `seed` is the run's."""

    environment: Environment
    sampler: TokenSampler
    tokens: TurnTokens
    policy: ChatModel
    settings: RolloutSettings
    token_limit: int
    seed: int
    continue_from: str = "best"
    softmax_temperature: float = 0.1
    prepared: dict[str, Task] = field(default_factory=dict, init=False)  # by task id: a model prepares each once a run

    @property
    def sampling(self) -> SamplingSettings:
        return SamplingSettings(self.settings.max_tokens, self.settings.temperature, self.settings.top_p)

    async def open(self, start: EpisodeStart, round_name: str) -> Opening:
        """Return the conversation up to the policy's first turn: the stored history, or the user's opening."""
        task, seeds = start.task, self._seeds(start, round_name, 0)
        try:
            if task.id not in self.prepared:
                self.prepared[task.id] = await self.environment.prepare(task)
            task = self.prepared[task.id]
            if start.history:
                return Opening(task, start.history)
            said = await self.environment.user_for(task).next_turn((), seeds("user", 1))
        except SimulatorError as error:
            return Opening(task, outcome=Outcome.USER_ERROR, error=str(error))
        except ChatModelError as error:
            return Opening(task, outcome=Outcome.INFRA_ERROR, error=str(error))
        if said.ends or not said.text.strip():
            return Opening(task, outcome=Outcome.USER_ERROR, error="the simulated user opened with nothing to answer")
        return Opening(task, (Message("user", said.text),))

    async def play(self, start: EpisodeStart, opening: Opening, round_name: str, sample: int, *, turn_worths: bool) -> Episode:
        """Play one conversation to its end and score it; `turn_worths` also estimates MR after every turn but the last."""
        episode = self._begin(start, opening, sample)
        if opening.outcome is not None:
            return episode
        start = replace(start, task=opening.task)
        seeds = self._seeds(start, round_name, sample)
        estimates: list[asyncio.Task[MREstimate]] = []
        try:
            async for conversation in self._turns(start.task, episode, seeds):
                if turn_worths:
                    estimate = self._mr(start.task, round_name).estimate(conversation, start.task, sample)
                    estimates.append(asyncio.create_task(estimate))
            await self._score(start.task, episode, round_name)
            for turn, task in zip(episode.turns, estimates, strict=False):
                turn.mr = _real((await task).mean)
        finally:
            for task in estimates:
                task.cancel()
        return episode

    async def _turns(self, task: Task, episode: Episode, seeds: SeedOf) -> AsyncIterator[Conversation]:
        """Grow the episode turn by turn; yield the conversation after each reply that the user answers."""
        user = self.environment.user_for(task)
        asked = sum(message["role"] == "user" for message in episode.messages)
        last = asked - 1 + self._turns_left(episode)
        try:
            for turn in range(asked, last + 1):
                reply = await self._reply(episode, seeds("policy", turn))
                episode.append_reply(reply)
                if not reply.text.strip():
                    episode.outcome, episode.error = Outcome.POLICY_ERROR, "the policy's reply was empty"
                    return
                episode.outcome = Outcome.TRUNCATED if reply.finish_reason == "length" else Outcome.WINDOW_FULL
                if turn == last:
                    return
                answered = episode.conversation
                said = await user.next_turn(answered, seeds("user", turn + 1))
                if said.ends:
                    episode.outcome = Outcome.ENDED
                    if said.text:
                        episode.messages.append({"role": "user", "content": said.text})
                    return
                if not said.text.strip():
                    raise SimulatorError("the simulated user sent an empty message")
                ids = self.tokens.between_replies(reply.token_ids, said.text)
                if len(episode.prompt_ids) + len(episode.completion_ids) + len(ids) >= self.token_limit:
                    episode.outcome, episode.error = Outcome.TRUNCATED, f"the conversation reached {self.token_limit} tokens"
                    return
                episode.append_user(said.text, ids)
                yield answered
        except ContextOverflow as error:
            episode.outcome, episode.error = Outcome.TRUNCATED, str(error)
            self._drop_unanswered(episode)
        except SimulatorError as error:
            episode.outcome, episode.error = Outcome.USER_ERROR, str(error)
        except ChatModelError as error:
            episode.outcome, episode.error = Outcome.INFRA_ERROR, str(error)

    async def _reply(self, episode: Episode, seed: int) -> SampledReply:
        ids = [*episode.prompt_ids, *episode.completion_ids]
        room = self.token_limit - len(ids)
        if room < 1:
            raise ContextOverflow(f"the conversation has {len(ids)} tokens and may have {self.token_limit}")
        sampling = replace(self.sampling, max_tokens=min(self.settings.max_tokens, room))
        (reply,) = await self.sampler.sample(ids, sampling, seed)
        return reply

    async def branch(self, start: EpisodeStart, opening: Opening, round_name: str, size: int) -> list[Episode]:
        """Play one conversation whose every turn is chosen from `size` replies to the same history; return all of them.

        The next user message is the one that the chosen reply's first unfailed future began with, as in the dataset builder; with
        window 0 the user is asked.
        """
        rows: list[Episode] = []
        trunk = self._begin(start, opening, 0)
        if opening.outcome is not None:
            return [self._begin(start, opening, index) for index in range(size)]
        start = replace(start, task=opening.task)
        asked = sum(message["role"] == "user" for message in trunk.messages)
        for turn in range(asked, asked + self._turns_left(trunk)):
            group, estimates = await self._branches(start, trunk, round_name, turn, size)
            rows += group
            chosen = self._choose(group, derive_seed(self.seed, round_name, start.id, turn, "branch"))
            if chosen is None or group[chosen].outcome is Outcome.POLICY_ERROR:
                break
            text = await self._next_user_text(start, group[chosen], estimates[chosen], round_name, turn)
            if text is None:
                break
            ids = group[chosen].completion_ids
            trunk.prompt_ids = [*trunk.prompt_ids, *ids, *self.tokens.between_replies(ids, text)]
            trunk.messages = [*group[chosen].messages, {"role": "user", "content": text}]
            if len(trunk.prompt_ids) >= self.token_limit:
                break
        return rows

    async def _branches(
        self, start: EpisodeStart, trunk: Episode, round_name: str, turn: int, size: int
    ) -> tuple[list[Episode], list[MREstimate | None]]:
        """Sample `size` replies to the trunk and estimate the MR of each, all at once."""
        group = [
            replace(trunk, sample=index, turn=turn, messages=list(trunk.messages), prompt_ids=list(trunk.prompt_ids))
            for index in range(size)
        ]
        for row in group:
            row.completion_ids, row.policy_mask, row.logprobs, row.turns = [], [], [], []
        reward = self._mr(start.task, round_name)

        async def estimate(row: Episode) -> MREstimate | None:
            try:
                reply = await self._reply(row, self._seeds(start, round_name, row.sample)("policy", turn))
            except ContextOverflow as error:
                row.outcome, row.error = Outcome.TRUNCATED, str(error)
                return None
            except ChatModelError as error:
                row.outcome, row.error = Outcome.INFRA_ERROR, str(error)
                return None
            row.append_reply(reply)
            estimated = await reward.estimate(row.conversation, start.task, row.sample)
            row.reward, row.components = _real(estimated.mean), estimated.components
            row.outcome, row.error = _branch_outcome(reply, estimated)
            return estimated

        return group, await gather_all([estimate(row) for row in group])

    def _choose(self, group: Sequence[Episode], seed: int) -> int | None:
        """Return the index of the reply that the conversation goes on from, None when none has an MR."""
        scored = [(row.reward, index) for index, row in enumerate(group) if row.reward is not None]
        if not scored:
            return None
        best = max(worth for worth, _ in scored)
        if self.continue_from == "best":
            return next(index for worth, index in scored if worth == best)
        weights = [math.exp((worth - best) / self.softmax_temperature) for worth, _ in scored]
        return random.Random(seed).choices([index for _, index in scored], weights)[0]

    async def _next_user_text(
        self, start: EpisodeStart, chosen: Episode, estimate: MREstimate | None, round_name: str, turn: int
    ) -> str | None:
        """Return what the user says after the chosen reply, None when the conversation ends there."""
        if self.settings.window_turns == 0:
            seeds = self._seeds(start, round_name, 0)
            try:
                said = await self.environment.user_for(start.task).next_turn(chosen.conversation, seeds("user", turn + 1))
            except (SimulatorError, ChatModelError):
                return None
            return None if said.ends or not said.text.strip() else said.text
        for scored in estimate.futures if estimate is not None else ():
            first = scored.future.first_user_turn
            if scored.reward is None:
                continue
            left = first is None or (scored.outcome is Outcome.ENDED and len(scored.future.steps) == 1)
            return None if left or first is None else first.message.content
        return None

    def _begin(self, start: EpisodeStart, opening: Opening, sample: int) -> Episode:
        messages = [message.as_dict() for message in opening.conversation]
        episode = Episode(start.id, sample, messages)
        if opening.outcome is not None:
            episode.outcome, episode.error = opening.outcome, opening.error
            return episode
        system = (Message("system", self.settings.system_prompt),) if self.settings.system_prompt else ()
        episode.prompt_ids = self.tokens.prompt_ids((*system, *opening.conversation))
        return episode

    def _turns_left(self, episode: Episode) -> int:
        """Return how many replies the policy may still give: the settings' number, or what the environment's limit leaves."""
        if self.settings.max_turns is not None:
            return self.settings.max_turns
        given = sum(message["role"] == "assistant" for message in episode.messages)
        return max(1, self.environment.max_turns - given)

    async def _score(self, task: Task, episode: Episode, round_name: str) -> None:
        if not episode.turns and episode.outcome.earns_reward:
            episode.outcome, episode.error = Outcome.TRUNCATED, episode.error or "there was no room for a reply"
            return
        if self.settings.reward == "mr" and episode.outcome in (Outcome.WINDOW_FULL, Outcome.TRUNCATED):
            estimate = await self._mr(task, round_name).estimate(episode.conversation, task, episode.sample)
            episode.reward, episode.components = _real(estimate.mean), estimate.components
            if episode.reward is None:
                episode.outcome, episode.error = _failure(estimate)
            return
        future = Future((), [Step(message, _author(message), 0) for message in episode.conversation], episode.outcome)
        scored = await score_future(self.environment, task, future)
        episode.reward, episode.outcome = _real(scored.reward), scored.outcome
        episode.components = dict(scored.score.components) if scored.score else {}
        episode.error = episode.error or scored.error

    def _mr(self, task: Task, round_name: str) -> MultiturnReward:
        """Return the MR estimator of one task and rollout: every turn and sample of it meets the same future users."""
        policy = Policy(self.policy, self.sampling, self.settings.system_prompt)
        return MultiturnReward(
            self.environment,
            policy,
            self.settings.window_turns,
            self.settings.num_samples,
            derive_seed(self.seed, round_name, task.id, "mr"),
        )

    def _seeds(self, start: EpisodeStart, round_name: str, sample: int) -> SeedOf:
        """Seeds of one episode: users do not depend on the sample, so that a group's conversations meet the same user."""
        return future_seeds(derive_seed(self.seed, round_name), start.id, 0, sample)

    @staticmethod
    def _drop_unanswered(episode: Episode) -> None:
        """Take back a user turn that left no room for a reply: nobody answers it, and no token after it is trained."""
        if episode.turns and episode.messages[-1]["role"] == "user":
            end = episode.turns[-1].end
            del episode.completion_ids[end:], episode.policy_mask[end:], episode.logprobs[end:], episode.messages[-1]


def _branch_outcome(reply: SampledReply, estimate: MREstimate) -> tuple[Outcome, str | None]:
    if estimate.mean is None:
        return _failure(estimate)
    if not reply.text.strip():
        return Outcome.POLICY_ERROR, "the policy's reply was empty"
    return (Outcome.TRUNCATED if reply.finish_reason == "length" else Outcome.WINDOW_FULL), None


def _failure(estimate: MREstimate) -> tuple[Outcome, str | None]:
    """Return why an MR has no value: what befell its first future."""
    first = estimate.futures[0]
    return first.outcome if not first.outcome.earns_reward else Outcome.JUDGE_ERROR, first.error


def _real(value: float | None) -> float | None:
    """None for NaN and infinities: a reward that is no number is missing, and missing is never zero."""
    return value if value is not None and math.isfinite(value) else None


def _author(message: Message) -> Any:
    return "policy" if message.role == "assistant" else "user"
