"""-min(lambda * tokens, 1), and what the reference implementation computes instead."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collab.rewards.component import RewardComponent
from collab.rewards.token_cost import PAPER_PENALTY, TokenCost
from collab.tasks.task import Task
from simulators.conversation import Message

TASK = Task("t", "g")
CONVERSATION = (
    Message("system", "never counted at all"),
    Message("user", "two words"),
    Message("assistant", "three more words"),
    Message("user", "one"),
)


def words(text):
    return len(text.split())


async def test_tokens_read_and_written_count():
    assert await TokenCost(words, 0.01).score(CONVERSATION, TASK) == pytest.approx(-0.06)


async def test_upstream_counts_what_is_read_only():
    assert await TokenCost(words, 0.01, counted="read", capped=False).score(CONVERSATION, TASK) == pytest.approx(-0.03)


async def test_the_cost_is_capped_at_one_unless_told_otherwise():
    assert await TokenCost(words, 1.0).score(CONVERSATION, TASK) == -1.0
    uncapped = TokenCost(words, 1.0, capped=False)
    assert await uncapped.score(CONVERSATION, TASK) == -6.0
    assert uncapped.value_range == (-math.inf, 0.0)


async def test_an_empty_conversation_is_free():
    assert await TokenCost(words, 1.0).score((), TASK) == 0.0


def test_paper_penalties():
    assert PAPER_PENALTY == {"math": 5e-4, "code": 5e-4, "document": 1e-4}
    assert isinstance(TokenCost(words, 1.0), RewardComponent)


@given(st.lists(st.sampled_from(CONVERSATION), max_size=8), st.floats(0, 10))
async def test_the_score_lies_in_its_range_and_never_rises_with_length(messages, penalty):
    cost = TokenCost(words, penalty)
    score = await cost.score(tuple(messages), TASK)
    longer = await cost.score((*messages, Message("user", "more")), TASK)
    assert cost.value_range[0] <= longer <= score <= cost.value_range[1]
