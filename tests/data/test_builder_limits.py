"""The builder's settings: adaptive futures, token limits, and what the tree records of them."""

import random
from typing import Any

import pytest

from collab.data.builder import CandidateSource, DatasetBuilder
from collab.data.figures import Figures
from collab.data.views import candidates, dpo_rows, kept_nodes, mr_of
from collab.mr import MultiturnReward, ScoredFuture
from collab.tasks.task import Task
from simulators.adaptive_sampling import AdaptiveSampling
from simulators.chat_models.protocol import ChatRequest
from simulators.chat_models.scripted import Script
from simulators.conversation import Conversation, ConversationTree, Node
from simulators.errors import ConfigurationError
from simulators.users.protocol import UserTurn
from tests.scripted_environment import assistant_texts, scripted_environment, scripted_policy

TASK = Task("t", goal="have it done")


def goes_on(conversation: Conversation, seed: int) -> UserTurn:
    return UserTurn(f"and {seed % 97}?" if conversation else "do it")


def counted(*texts: str) -> Script:
    """Candidates are these texts in order; futures say a number."""
    order = iter(texts)
    return lambda request, rng: next(order, str(rng.randrange(100)))


def noisy_worth(conversation: Conversation) -> float:
    """What the first reply says it is worth, plus noise of what was said last: the policy's own, so candidates differ in it."""
    first, *later = assistant_texts(conversation)
    return float(first) + (int(later[-1]) / 100 - 0.5 if later else 0.0)


async def built(
    adaptive: AdaptiveSampling | None, *texts: str, observe: Any = lambda scored: None, **settings: Any
) -> ConversationTree:
    environment = scripted_environment(goes_on, noisy_worth)
    policy = scripted_policy(counted(*texts))
    reward = MultiturnReward(environment, policy, 1, 3, observe=observe)
    builder = DatasetBuilder(
        environment, reward, [CandidateSource(policy, len(texts))], max_turns=1, adaptive=adaptive, **settings
    )
    return await builder.build(TASK)


def replies(tree: ConversationTree) -> dict[str, Node]:
    return {node.message.content: node for node in candidates(tree, kept_nodes(tree)[0].id)}


# ---------------------------------------------------------------- adaptive futures


async def test_a_clear_ranking_takes_the_first_futures_only() -> None:
    seen: list[ScoredFuture] = []
    tree = await built(AdaptiveSampling(3, 12), "9", "0", "-9", observe=seen.append)
    assert len(seen) == 9
    assert all("extra_futures" not in node.annotations["mr"] for node in replies(tree).values())


async def test_close_candidates_get_more_futures_and_report_the_first_ones() -> None:
    seen: list[ScoredFuture] = []
    tree = await built(AdaptiveSampling(3, 12), "0", "0.001", "-50", observe=seen.append)
    found = replies(tree)
    estimates = {text: node.annotations["mr"] for text, node in found.items()}
    assert [len(estimates[text]["futures"]) for text in ("0", "0.001", "-50")] == [3, 3, 3]
    assert [len(estimates[text].get("extra_futures", [])) for text in ("0", "0.001", "-50")] == [9, 9, 0]
    for estimate in estimates.values():
        rewards = [future["reward"] for future in estimate["futures"]]
        assert estimate["mean"] == pytest.approx(sum(rewards) / 3)
        assert estimate["used"] == 3
    every = [future["reward"] for key in ("futures", "extra_futures") for future in estimates["0"][key]]
    assert estimates["0"]["ranking_mean"] == pytest.approx(sum(every) / 12)
    assert [future["index"] for future in estimates["0"]["extra_futures"]] == list(range(3, 12))
    assert len(seen) == 27
    best, second = sorted(("0", "0.001"), key=lambda text: -estimates[text]["ranking_mean"])
    assert {text: node.annotations["candidate"]["rank"] for text, node in found.items()} == {best: 0, second: 1, "-50": 2}
    assert kept_nodes(tree)[1].message.content == best


async def test_extra_futures_are_in_the_tree_and_counted() -> None:
    tree = await built(AdaptiveSampling(3, 12), "0", "0.001", "-50")
    for node in replies(tree).values():
        for future in node.annotations["mr"].get("extra_futures", []):
            path = tree.path(future["leaf"])
            assert node in path and len(path) == 4
    figures = Figures()
    figures.add_tree(tree)
    assert figures.statistics().futures == 27
    assert ConversationTree.from_record(tree.to_record()).to_record() == tree.to_record()
    assert [row["rejected"][0]["content"] for row in dpo_rows([tree])] == ["-50"]


async def test_candidates_face_the_same_users_in_every_future() -> None:
    tree = await built(AdaptiveSampling(3, 6), "0", "0.001")
    spoken = [
        [node.message.content for node in tree.children(reply.id) if node.message.role == "user"]
        for reply in replies(tree).values()
    ]
    assert spoken[0] == spoken[1]
    assert len(spoken[0]) == 6


async def test_a_limit_on_all_futures_of_a_ranking_holds() -> None:
    seen: list[ScoredFuture] = []
    await built(AdaptiveSampling(3, 12, max_total=10), "0", "0.001", "0.002", observe=seen.append)
    assert len(seen) == 9


async def test_adaptive_sampling_starts_from_what_is_reported() -> None:
    with pytest.raises(ConfigurationError, match="starts from 2 futures, and MR is reported over 3"):
        await built(AdaptiveSampling(2, 12), "1", "2")


async def test_the_same_tree_without_adaptive_sampling_where_it_draws_nothing_more() -> None:
    plain, adaptive = await built(None, "9", "0"), await built(AdaptiveSampling(3, 12), "9", "0")
    assert plain.fingerprint() == adaptive.fingerprint()


# ---------------------------------------------------------------- limits


def length_of(conversation: Conversation) -> float:
    return float(len(assistant_texts(conversation)[0]))


@pytest.mark.parametrize(("limit", "turns"), [(3, 1), (4, 1), (5, 2), (7, 2), (8, 3), (10, 3), (None, 4)])
async def test_a_conversation_that_is_long_enough_is_not_carried_on(limit: int | None, turns: int) -> None:
    """Each turn has three words: two of the user ("do it", "and 5?"), one of the policy."""

    def script(request: ChatRequest, rng: random.Random) -> str:
        return rng.choice(("long", "longer"))

    environment = scripted_environment(goes_on, length_of)
    policy = scripted_policy(script)
    reward = MultiturnReward(environment, policy, 1, 1)
    builder = DatasetBuilder(environment, reward, [CandidateSource(policy, 6)], max_tokens=limit)
    tree = await builder.build(TASK)
    replies_kept = [node for node in kept_nodes(tree) if node.message.role == "assistant"]
    assert len(replies_kept) == turns
    assert kept_nodes(tree)[-1].message.role == "assistant"
    assert "stopped" not in tree.metadata


@pytest.mark.parametrize("settings", [{"max_tokens": 0}, {"max_tokens": -3}])
async def test_a_token_limit_below_one_is_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="max_tokens"):
        await built(None, "1", "2", **settings)


async def test_the_tree_records_what_the_reward_was_made_of() -> None:
    tree = await built(None, "1", "2")
    assert tree.metadata["reward"] == {"worth": 1.0}
    assert all(mr_of(node) is not None for node in replies(tree).values())
