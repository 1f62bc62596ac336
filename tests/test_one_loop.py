"""Every failure ends a conversation in the same outcome, whoever plays it: blame is decided once."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from collab.data.builder import CandidateSource, DatasetBuilder
from collab.environments.domain import Environment
from collab.evaluation.run import evaluated_tree
from collab.mr import MultiturnReward
from collab.rewards.component import ScoringError
from collab.tasks.task import Task
from collab.training.episode import EpisodeStart
from simulators.chat_models.protocol import ChatRequest, Completion
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.conversation import Conversation, Message, Outcome
from simulators.errors import ChatModelError, ContextOverflow, SimulatorError
from simulators.policy import Policy
from simulators.users.protocol import UserTurn
from tests.training import toy
from tests.training.test_episode_player import player

SECOND = "Which one, please?"
ANSWER = UserTurn(SECOND)


@dataclass(frozen=True)
class Failure:
    """What the user says (or raises) after the first reply, what the policy says (or raises) to it, what the score is."""

    outcome: Outcome
    user: UserTurn | Exception = ANSWER
    reply: str | Exception = "A"
    score: float | Exception = 1.0


FAILURES = {
    "user overflow": Failure(Outcome.INFRA_ERROR, user=ContextOverflow("the user's model is full")),
    "dead user": Failure(Outcome.INFRA_ERROR, user=ChatModelError("the server is away")),
    "unusable user": Failure(Outcome.USER_ERROR, user=SimulatorError("no usable message")),
    "empty message": Failure(Outcome.USER_ERROR, user=UserTurn(" ")),
    "user leaves": Failure(Outcome.ENDED, user=UserTurn("", ends=True)),
    "policy overflow": Failure(Outcome.TRUNCATED, reply=ContextOverflow("the policy's model is full")),
    "policy down": Failure(Outcome.INFRA_ERROR, reply=ChatModelError("the server is away")),
    "cut reply": Failure(Outcome.TRUNCATED, reply="Let me th..."),
    "cut thought": Failure(Outcome.TRUNCATED, reply="<think>so..."),
    "empty reply": Failure(Outcome.POLICY_ERROR, reply=" "),
    "only a thought": Failure(Outcome.POLICY_ERROR, reply="<think>so</think>"),
    "judge down": Failure(Outcome.JUDGE_ERROR, score=ScoringError("the judge is away", Outcome.JUDGE_ERROR)),
    "sandbox down": Failure(Outcome.INFRA_ERROR, score=ScoringError("no sandbox", Outcome.INFRA_ERROR)),
    "no number": Failure(Outcome.JUDGE_ERROR, score=float("nan")),
    "nothing": Failure(Outcome.WINDOW_FULL),
}
TASK = Task("t", "a letter", "A", "Pick.")


@dataclass(frozen=True)
class FailingUser:
    failure: Failure

    async def next_turn(self, conversation: Conversation, seed: int) -> UserTurn:
        if not conversation:
            return UserTurn("Pick.")
        if isinstance(self.failure.user, Exception):
            raise self.failure.user
        return self.failure.user


@dataclass
class FailingScore:
    failure: Failure
    name: str = "said"
    value_range: tuple[float, float] = (0.0, 1.0)
    source: str = "toy"

    async def score(self, conversation: Conversation, task: Task) -> float:
        if isinstance(self.failure.score, Exception):
            raise self.failure.score
        return self.failure.score


class Cutting(ScriptedChatModel):
    """A chat model whose texts that end in three dots are cut there."""

    async def complete(self, request: ChatRequest) -> list[Completion]:
        found = await super().complete(request)
        cut = [(each.text + each.reasoning).endswith("...") for each in found]
        return [replace(each, finish_reason="length" if short else "stop") for each, short in zip(found, cut, strict=True)]


def environment(failure: Failure) -> Environment:
    return toy.environment(2, FailingScore(failure), user=lambda task, resources: FailingUser(failure))


def says(failure: Failure) -> Callable[[str], str]:
    def reply(heard: str) -> str:
        if SECOND not in heard:
            return "Which?"
        if isinstance(failure.reply, Exception):
            raise failure.reply
        return failure.reply

    return reply


def chat_policy(failure: Failure) -> Policy:
    def script(request: ChatRequest, rng: random.Random) -> str:
        return says(failure)(" ".join(message.content for message in request.messages))

    return Policy(Cutting(script))


Ended = tuple[Outcome, bool]


async def by_evaluation(failure: Failure) -> Ended:
    tree = await evaluated_tree(chat_policy(failure), environment(failure), TASK, 1, 0)
    (entry,) = tree.metadata["conversations"]
    return Outcome(entry["outcome"]), entry["total"] is not None


async def by_mr(failure: Failure) -> Ended:
    reward = MultiturnReward(environment(failure), chat_policy(failure), 1, 1)
    estimate = await reward.estimate((Message("user", "Pick."), Message("assistant", "Which?")), TASK)
    return estimate.futures[0].outcome, estimate.mean is not None


async def by_building(failure: Failure) -> Ended:
    policy = chat_policy(failure)
    reward = MultiturnReward(environment(failure), policy, 1, 1)
    tree = await DatasetBuilder(environment(failure), reward, [CandidateSource(policy, 2)], max_turns=1).build(TASK)
    return future_of(tree)


async def by_playing(failure: Failure) -> Ended:
    playing = player(lambda heard, seed: says(failure)(heard), environment(failure))
    start = EpisodeStart(TASK)
    episode = await playing.play(start, await playing.open(start, "train0"), "train0", 0, turn_worths=False)
    return episode.outcome, episode.reward is not None


async def by_branching(failure: Failure) -> Ended:
    playing = player(lambda heard, seed: says(failure)(heard), environment(failure), max_turns=1, num_samples=1)
    start = EpisodeStart(TASK)
    rows = await playing.branch(start, await playing.open(start, "train0"), "train0", 2)
    return future_of(rows[0].tree)


def future_of(tree: Any) -> Ended:
    """The first future of the first reply."""
    record = next(node for node in tree.nodes if "mr" in node.annotations).annotations["mr"]["futures"][0]
    return Outcome(record["outcome"]), record["reward"] is not None


ENTRIES = (by_evaluation, by_mr, by_building, by_playing, by_branching)


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("entry", ENTRIES)
async def test_a_failure_is_the_same_wherever_it_is_met(entry: Any, name: str) -> None:
    failure = FAILURES[name]
    assert await entry(failure) == (failure.outcome, failure.outcome.earns_reward)


@pytest.mark.parametrize("opening", [ContextOverflow("full"), SimulatorError("no idea"), UserTurn(""), UserTurn("", ends=True)])
async def test_a_user_who_cannot_open_is_nobodys_reward(opening: UserTurn | Exception) -> None:
    @dataclass(frozen=True)
    class Silent:
        async def next_turn(self, conversation: Conversation, seed: int) -> UserTurn:
            if isinstance(opening, Exception):
                raise opening
            return opening

    silent = toy.environment(2, user=lambda task, resources: Silent())
    policy = chat_policy(FAILURES["nothing"])
    expected = Outcome.INFRA_ERROR if isinstance(opening, ContextOverflow) else Outcome.USER_ERROR
    tree = await evaluated_tree(policy, silent, TASK, 1, 0)
    assert (tree.metadata["conversations"][0]["outcome"], tree.metadata["conversations"][0]["total"]) == (expected.value, None)
    built = await DatasetBuilder(silent, MultiturnReward(silent, policy, 1, 1), [CandidateSource(policy, 2)]).build(TASK)
    assert built.metadata["stopped"].startswith("turn 1: the user failed: ")
    playing = player(lambda heard, seed: "Which?", silent)
    start = EpisodeStart(TASK)
    begun = await playing.open(start, "train0")
    played = [await playing.play(start, begun, "train0", 0, turn_worths=True), *await playing.branch(start, begun, "train0", 2)]
    assert {(episode.outcome, episode.reward) for episode in played} == {(expected, None)}


async def test_with_window_0_a_dead_user_is_not_one_who_left() -> None:
    """The row of a branching conversation says what its reply is worth; that the user then failed is on record."""
    failure = FAILURES["dead user"]
    playing = player(lambda heard, seed: "Which?", environment(failure), window_turns=0)
    start = EpisodeStart(TASK)
    rows = await playing.branch(start, await playing.open(start, "train0"), "train0", 2)
    assert [(row.outcome, row.reward) for row in rows] == [(Outcome.WINDOW_FULL, 1.0)] * 2
    assert rows[0].tree.metadata["stopped"] == "turn 2: the user failed: the server is away"


async def test_flags_of_a_user_are_kept_in_training() -> None:
    class Flagged(toy.LetterUser):
        async def next_turn(self, conversation: Conversation, seed: int) -> UserTurn:
            return replace(await super().next_turn(conversation, seed), flags=("role_flip",))

    playing = player(lambda heard, seed: "Which?", toy.environment(user=lambda task, resources: Flagged("A")))
    start = EpisodeStart(TASK)
    episode = await playing.play(start, await playing.open(start, "train0"), "train0", 0, turn_worths=False)
    assert [node.annotations.get("flags") for node in episode.played] == [["role_flip"], None] * 2
