"""Replies under every reward mechanism: what each prefers, what follows from it, and how the mechanisms agree."""

import random
from typing import Any

import pytest

from collab.data.builder import CandidateSource, DatasetBuilder
from collab.data.views import candidates, dpo_rows, kept_nodes
from collab.evaluation.reward_ablation import (
    ANY,
    EXTRINSIC,
    HELPFULNESS,
    IMMEDIATE,
    R_STAR,
    TOKENS,
    RatedReply,
    RatedTask,
    RewardAblation,
    mechanisms,
    mr_name,
    outcomes_by_mechanism,
    pair_trees,
    preferred,
    rank_correlations,
    telling_pairs,
)
from collab.evaluation.statistics import MeanEstimate
from collab.mr import MultiturnReward
from collab.rewards.component import ScoringError
from collab.tasks.task import Task
from simulators.chat_models.protocol import ChatRequest
from simulators.conversation import Conversation, ConversationTree
from simulators.errors import ChatModelError, SimulatorError
from simulators.policy import Policy
from simulators.users.protocol import UserTurn
from tests.scripted_environment import assistant_texts, scripted_environment, scripted_policy

TASK = Task("t", goal="have it done")


def says_more(conversation: Conversation, seed: int) -> UserTurn:
    return UserTurn("more" if conversation else "do it")


def asking_pays_later(conversation: Conversation) -> float:
    """A guess is worth a little at once; a question is worth nothing until it was answered."""
    first, *later = assistant_texts(conversation)
    return (0.0 if not later else 1.0) if first == "which?" else 0.25


def script(request: ChatRequest, rng: random.Random) -> str:
    return rng.choice(("which?", "a guess"))


class Helpful:
    """A judge that likes long replies, and none at all where it is told to fail."""

    name = "helpfulness"
    source = "a test"
    value_range = (0.0, 100.0)

    def __init__(self, fails: bool = False) -> None:
        self._fails = fails

    async def score(self, conversation: Conversation, task: Task) -> float:
        if self._fails:
            raise ScoringError("no verdict")
        return float(len(conversation[-1].content))


def ablation(policy: Policy | None = None, say: Any = says_more, **settings: Any) -> RewardAblation:
    environment = scripted_environment(say, asking_pays_later, max_turns=3)
    policy = policy or scripted_policy(script)
    return RewardAblation(environment, policy, [CandidateSource(policy, 8)], **{"helpfulness": Helpful(), **settings})


async def test_only_mr_sees_that_the_question_is_worth_more() -> None:
    rated = await ablation().rate(TASK)
    by_text = {reply.text: reply for reply in rated.replies}
    assert set(by_text) == {"which?", "a guess"}
    ask, guess = by_text["which?"].rewards, by_text["a guess"].rewards
    assert {name: (ask[name].mean, guess[name].mean) for name in ask} == {
        HELPFULNESS: (6.0, 7.0),
        EXTRINSIC: (0.0, 0.25),
        IMMEDIATE: (0.0, 0.25),
        mr_name(1): (1.0, 0.25),
        mr_name(2): (1.0, 0.25),
        mr_name(3): (1.0, 0.25),
    }
    assert by_text["which?"].outcome[R_STAR] == 1.0
    assert by_text["which?"].outcome[TOKENS] > by_text["a guess"].outcome[TOKENS] * 0.5
    assert mechanisms([rated]) == [HELPFULNESS, EXTRINSIC, IMMEDIATE, mr_name(1), mr_name(2), mr_name(3)]
    assert [(first.text, second.text) for first, second in telling_pairs([rated])] == [("a guess", "which?")]
    table = outcomes_by_mechanism([rated])
    assert (table[IMMEDIATE][R_STAR].mean, table[mr_name(2)][R_STAR].mean, table[ANY][R_STAR].mean) == (0.25, 1.0, 0.625)
    correlations = rank_correlations([rated])
    assert correlations[IMMEDIATE][mr_name(1)].mean == -1.0
    assert correlations[mr_name(1)][R_STAR].mean == correlations[R_STAR][mr_name(1)].mean == 1.0


async def test_the_replies_are_the_builders_candidates() -> None:
    environment = scripted_environment(says_more, asking_pays_later)
    policy = scripted_policy(lambda request, rng: str(rng.randrange(10**6)))
    reward = MultiturnReward(environment, policy, 1, 1, 7)
    tree = await DatasetBuilder(environment, reward, [CandidateSource(policy, 5)], 7, max_turns=1).build(TASK)
    built = [node.message.content for node in candidates(tree, kept_nodes(tree)[0].id)]
    rated = await RewardAblation(environment, policy, [CandidateSource(policy, 5)], seed=7).rate(TASK)
    assert [reply.text for reply in rated.replies] == built


async def test_outcomes_are_other_conversations_than_those_that_choose() -> None:
    seeds: dict[str, set[int]] = {"chosen": set(), "other": set()}

    def say(conversation: Conversation, seed: int) -> UserTurn:
        if len(conversation) == 2:
            seeds["all"] = seeds.get("all", set()) | {seed}
        return UserTurn("more" if conversation else "do it")

    await ablation(say=say, windows=(1,), num_samples=2, outcome_samples=2).rate(TASK)
    assert len(seeds["all"]) == 4  # two futures to choose by, two others to measure with


async def test_a_judge_without_a_verdict_gives_no_reward_at_all() -> None:
    rated = await ablation(helpfulness=Helpful(fails=True)).rate(TASK)
    assert all(HELPFULNESS not in reply.rewards for reply in rated.replies)
    assert HELPFULNESS not in mechanisms([rated])
    without = await ablation(helpfulness=None).rate(TASK)
    assert HELPFULNESS not in mechanisms([without])


async def test_a_user_who_cannot_open_leaves_a_task_without_replies() -> None:
    def say(conversation: Conversation, seed: int) -> UserTurn:
        raise SimulatorError("no usable reply")

    rated = await ablation(say=say).rate(TASK)
    assert (rated.replies, rated.stopped) == ((), "no usable reply")
    assert outcomes_by_mechanism([rated]) == {ANY: {}}


async def test_failed_replies_are_left_out() -> None:
    def flaky(request: ChatRequest, rng: random.Random) -> str:
        if len(request.messages) == 1 and request.seed % 2:
            raise ChatModelError("gone")
        return rng.choice(("which?", "a guess"))

    rated = await ablation(scripted_policy(flaky)).rate(TASK)
    assert 1 <= len(rated.replies) <= 2


def reply(index: int, outcome: float | None, **rewards: float) -> RatedReply:
    names = {"now": IMMEDIATE, "mr": mr_name(2)}
    return RatedReply(
        "t", index, "plain", f"reply {index}",
        {names[name]: MeanEstimate(value, None, 1) for name, value in rewards.items()},
        {} if outcome is None else {R_STAR: outcome},
    )  # fmt: skip


def rated(*replies: RatedReply) -> RatedTask:
    return RatedTask(ConversationTree("t"), replies)


def test_a_mechanism_that_cannot_tell_replies_apart_gets_their_mean() -> None:
    task = rated(reply(0, 1.0, now=0.0, mr=1.0), reply(1, 0.0, now=0.0, mr=0.5), reply(2, -1.0, now=-1.0, mr=0.0))
    assert [each.index for each in preferred(task.replies, IMMEDIATE)] == [0, 1]
    table = outcomes_by_mechanism([task])
    assert (table[IMMEDIATE][R_STAR].mean, table[mr_name(2)][R_STAR].mean, table[ANY][R_STAR].mean) == (0.5, 1.0, 0.0)


def test_what_could_not_be_scored_is_left_out_and_never_zero() -> None:
    task = rated(reply(0, None, now=1.0, mr=1.0), reply(1, 0.5, now=0.0), reply(2, 0.25, mr=0.0))
    assert R_STAR not in outcomes_by_mechanism([task])[IMMEDIATE]
    assert outcomes_by_mechanism([task])[ANY][R_STAR].mean == pytest.approx(0.375)
    assert preferred([], IMMEDIATE) == []
    correlations = rank_correlations([task])
    assert mr_name(2) not in correlations.get(IMMEDIATE, {})  # only one reply has both


def test_constant_rewards_have_no_correlation() -> None:
    flat = rated(reply(0, 1.0, now=0.0, mr=1.0), reply(1, 0.0, now=0.0, mr=0.5))
    clear = rated(reply(0, 1.0, now=1.0, mr=1.0), reply(1, 0.0, now=0.0, mr=0.5))
    found = rank_correlations([flat, clear])
    assert (found[IMMEDIATE][R_STAR].mean, found[IMMEDIATE][R_STAR].count) == (1.0, 1)
    assert found[mr_name(2)][R_STAR].count == 2


async def test_pairs_follow_the_mechanism() -> None:
    task = await ablation().rate(TASK)
    for mechanism, chosen in ((IMMEDIATE, "a guess"), (mr_name(2), "which?")):
        (row,) = dpo_rows(pair_trees([task], mechanism))
        assert row["chosen"][0]["content"] == chosen
        assert row["prompt"] == [{"role": "user", "content": "do it"}]
    assert pair_trees([RatedTask(ConversationTree("t"), ())], IMMEDIATE) == []
