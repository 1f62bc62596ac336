"""MR of a reply: the mean over its futures, exactly; what failed is left out and counted; R* is the paper's, term by term."""

import json
import math
import random
import statistics
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collab.environments.domain import Resources
from collab.environments.registry import load_environment
from collab.evaluation.reward_windows import mean_by_window, rewards_under_windows
from collab.mr import MREstimate, MultiturnReward, ScoredFuture, standard_error
from collab.rewards.conversation_reward import Score
from collab.tasks.task import Task
from simulators.chat_models.protocol import ChatRequest
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.conversation import Conversation, ConversationTree, Message, Outcome
from simulators.errors import ChatModelError, ConfigurationError, SimulatorError
from simulators.forward_sampling import Future, future_seeds
from simulators.policy import Policy
from simulators.users.protocol import UserTurn
from tests.scripted_environment import assistant_texts, count_words, failing, says, scripted_environment, scripted_policy

TASK = Task("t", goal="have it done")
START = says("do it", "1")


def goes_on(conversation: Conversation, seed: int) -> UserTurn:
    return UserTurn("and then?")


def sum_of_replies(conversation: Conversation) -> float:
    return math.fsum(float(text) for text in assistant_texts(conversation))


def noise(request: ChatRequest, rng: random.Random) -> str:
    return str(rng.random())


async def test_mr_is_the_mean_over_futures_to_the_last_digit() -> None:
    reward = MultiturnReward(scripted_environment(goes_on, sum_of_replies), scripted_policy(noise), 2, num_samples=5, seed=3)
    estimate = await reward.estimate(START, TASK, candidate_index=1)
    rewards = []
    for index in range(5):
        seed_of = future_seeds(3, "t", index, 1)
        drawn = [float(noise(ChatRequest(()), random.Random(seed_of("policy", turn)))) for turn in (2, 3)]
        rewards.append(math.fsum([1.0, *drawn]))
    assert estimate.rewards == rewards
    assert estimate.mean == math.fsum(rewards) / 5
    assert estimate.std_error == pytest.approx(statistics.stdev(rewards) / math.sqrt(5), rel=1e-12)
    assert estimate.components == {"worth": estimate.mean}
    assert (estimate.used, estimate.failed) == (5, 0)


VALUES = st.floats(-1e6, 1e6)


@given(st.lists(st.one_of(st.none(), VALUES), min_size=1, max_size=8))
def test_missing_is_never_zero(rewards: list[float | None]) -> None:
    futures = tuple(
        ScoredFuture(index, Future(START), Outcome.WINDOW_FULL, Score(reward, {} if reward is None else {"worth": reward}))
        for index, reward in enumerate(rewards)
    )
    estimate = MREstimate(futures)
    present = [reward for reward in rewards if reward is not None]
    assert (estimate.used, estimate.failed) == (len(present), rewards.count(None))
    assert estimate.mean == (math.fsum(present) / len(present) if present else None)
    if len(present) < 2:
        assert estimate.std_error is None
    else:
        expected = statistics.stdev(present) / math.sqrt(len(present))
        assert estimate.std_error == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_standard_error_by_hand() -> None:
    assert standard_error([1.0, 2.0, 3.0, 4.0]) == pytest.approx(math.sqrt((5 / 3) / 4), rel=1e-15)
    assert standard_error([7.0]) is None
    assert standard_error([]) is None


async def test_a_failed_future_is_left_out_and_says_whose_fault_it_was() -> None:
    first_user_seed = {index: future_seeds(0, "t", index, 0)("user", 2) for index in range(4)}
    second_policy_seed = future_seeds(0, "t", 1, 0)("policy", 2)

    def say(conversation: Conversation, seed: int) -> UserTurn:
        if seed == first_user_seed[0]:
            raise SimulatorError("the user fell out of its part")
        return UserTurn("thanks, that is no number" if seed == first_user_seed[2] else "and then?")

    def script(request: ChatRequest, rng: random.Random) -> str:
        if request.seed == second_policy_seed:
            raise ChatModelError("the endpoint went away")
        return "5"

    def scorer(conversation: Conversation) -> float | None:
        return None if any("no number" in message.content for message in conversation) else sum_of_replies(conversation)

    reward = MultiturnReward(scripted_environment(say, scorer), scripted_policy(script), 1, num_samples=4)
    estimate = await reward.estimate(START, TASK)
    assert [future.outcome for future in estimate.futures] == [
        Outcome.USER_ERROR,
        Outcome.INFRA_ERROR,
        Outcome.JUDGE_ERROR,
        Outcome.WINDOW_FULL,
    ]
    assert (estimate.mean, estimate.std_error, estimate.used, estimate.failed) == (6.0, None, 1, 3)
    errors = [future.error for future in estimate.futures]
    assert errors[0] is not None and "fell out" in errors[0]
    assert errors[1] is not None and "went away" in errors[1]
    assert errors[2] is not None and "no verdict" in errors[2]
    assert errors[3] is None


async def test_when_every_future_fails_there_is_no_mr() -> None:
    estimate = await MultiturnReward(scripted_environment(goes_on, sum_of_replies), scripted_policy(failing)).estimate(
        START, TASK
    )
    assert (estimate.mean, estimate.std_error, estimate.components) == (None, None, {})
    assert (estimate.used, estimate.failed) == (0, 3)


async def test_what_the_policy_did_earns_its_score_however_bad() -> None:
    reward = MultiturnReward(
        scripted_environment(goes_on, lambda conversation: float(len(conversation))),
        scripted_policy(lambda request, rng: "  "),
        num_samples=2,
    )
    estimate = await reward.estimate(START, TASK)
    assert [future.outcome for future in estimate.futures] == [Outcome.POLICY_ERROR] * 2
    assert (estimate.mean, estimate.failed) == (4.0, 0)  # the empty reply stands in the scored conversation


async def test_nobody_answers_an_empty_candidate() -> None:
    policy = scripted_policy(failing)
    reward = MultiturnReward(scripted_environment(goes_on, lambda conversation: -1.0), policy, num_samples=2)
    estimate = await reward.estimate(says("do it", " "), TASK)
    assert estimate.mean == -1.0
    assert all(not future.future.steps for future in estimate.futures)


async def test_a_configuration_error_ends_the_estimate() -> None:
    def script(request: ChatRequest, rng: random.Random) -> str:
        raise ConfigurationError("the key is wrong")

    with pytest.raises(ConfigurationError, match="key is wrong"):
        await MultiturnReward(scripted_environment(goes_on, sum_of_replies), scripted_policy(script)).estimate(START, TASK)


async def test_window_zero_is_the_immediate_reward() -> None:
    def say(conversation: Conversation, seed: int) -> UserTurn:
        raise AssertionError("window 0 asks nobody")

    scored: list[Conversation] = []

    def scorer(conversation: Conversation) -> float:
        scored.append(conversation)
        return 0.25

    reward = MultiturnReward(scripted_environment(say, scorer), scripted_policy(failing), window_turns=0, num_samples=7)
    estimate = await reward.estimate(START, TASK)
    assert (estimate.mean, estimate.used, estimate.futures[0].outcome) == (0.25, 1, Outcome.WINDOW_FULL)
    assert scored == [START]  # once, and as it stands


@pytest.mark.parametrize("window", [1, 2, 3])
async def test_a_window_is_so_many_turns_and_the_last_reply_is_scored(window: int) -> None:
    scored: list[Conversation] = []

    def scorer(conversation: Conversation) -> float:
        scored.append(conversation)
        return 0.0

    reward = MultiturnReward(scripted_environment(goes_on, scorer), scripted_policy(lambda request, rng: "ok"), window, 1)
    await reward.estimate(START, TASK)
    (conversation,) = scored
    assert len(conversation) == 2 + 2 * window
    assert conversation[-1] == Message("assistant", "ok")


async def test_all_candidates_of_a_turn_face_the_same_users() -> None:
    seeds_of_users: dict[str, list[int]] = defaultdict(list)
    seeds_of_policy: dict[str, list[int]] = defaultdict(list)

    def say(conversation: Conversation, seed: int) -> UserTurn:
        seeds_of_users[conversation[1].content].append(seed)
        return UserTurn("and then?")

    def script(request: ChatRequest, rng: random.Random) -> str:
        seeds_of_policy[request.messages[1].content].append(request.seed)
        return "1"

    reward = MultiturnReward(scripted_environment(say, sum_of_replies), scripted_policy(script), 2, num_samples=3)
    for index, text in enumerate(("1", "2", "3")):
        await reward.estimate(says("do it", text), TASK, candidate_index=index)
    drawn = [sorted(seeds) for seeds in seeds_of_users.values()]
    assert drawn[0] == drawn[1] == drawn[2]
    assert len(set(drawn[0])) == 6  # but each future and turn meets its own
    everything = [seed for seeds in seeds_of_policy.values() for seed in seeds]
    assert len(set(everything)) == len(everything) == 18


def test_settings_that_make_no_sense_are_refused() -> None:
    environment, policy = scripted_environment(goes_on, sum_of_replies), scripted_policy(failing)
    with pytest.raises(ValueError, match="window_turns is -1"):
        MultiturnReward(environment, policy, window_turns=-1)
    with pytest.raises(ValueError, match="num_samples is 0"):
        MultiturnReward(environment, policy, num_samples=0)


@pytest.mark.parametrize("conversation", [(), says("do it")])
async def test_mr_is_of_a_reply(conversation: Conversation) -> None:
    with pytest.raises(ValueError, match="reply"):
        await MultiturnReward(scripted_environment(goes_on, sum_of_replies), scripted_policy(failing)).estimate(
            conversation, TASK
        )


def test_from_plain_code() -> None:
    reward = MultiturnReward(scripted_environment(goes_on, sum_of_replies), scripted_policy(lambda request, rng: "2"), 1, 2)
    assert reward.estimate_blocking(START, TASK).mean == 3.0


async def test_from_inside_a_running_loop_as_in_a_notebook_cell() -> None:
    reward = MultiturnReward(scripted_environment(goes_on, sum_of_replies), scripted_policy(lambda request, rng: "2"), 1, 2)
    assert reward.estimate_blocking(START, TASK).mean == 3.0
    with pytest.raises(ValueError, match="reply"):
        reward.estimate_blocking(says("do it"), TASK)


async def test_an_estimate_in_a_tree_can_be_traced_to_its_messages() -> None:
    def say(conversation: Conversation, seed: int) -> UserTurn:
        return UserTurn("", ends=True) if seed % 2 else UserTurn("and then?")

    reward = MultiturnReward(scripted_environment(say, sum_of_replies), scripted_policy(noise), 1, num_samples=4)
    estimate = await reward.estimate(START, TASK)
    assert {future.outcome for future in estimate.futures} == {Outcome.ENDED, Outcome.WINDOW_FULL}
    tree = ConversationTree("t")
    candidate = tree.extend(None, START)
    assert candidate is not None
    leaves = estimate.graft(tree, candidate)
    record = tree.nodes[candidate].annotations["mr"]
    assert record["mean"] == estimate.mean
    for future, leaf, entry in zip(estimate.futures, leaves, record["futures"], strict=True):
        assert tree.conversation(leaf) == future.future.conversation
        assert (entry["leaf"], entry["reward"], entry["outcome"]) == (leaf, future.reward, future.outcome.value)
        assert (leaf == candidate) == (not future.future.steps)
    json.dumps(tree.to_record())


# ---------------------------------------------------------------- R*, equations 2 to 4


def judge_that_says(rating: int) -> ScriptedChatModel:
    return ScriptedChatModel(lambda request, rng: json.dumps({"reason": "so", "rating": rating}), name="judge")


async def score_of(conversation: Conversation, rating: int | None = None, penalty: float | None = None) -> Score:
    judge = None if rating is None else judge_that_says(rating)
    environment = load_environment("math_chat", Resources(count_words, judge_model=judge, token_penalty=penalty))
    return await environment.reward.score(conversation, Task("m", goal="3 + 4?", reference="7"))


async def test_r_star_by_hand() -> None:
    conversation = says("What is it?", "Which numbers do you mean?", "3 and 4", "The answer is 7.")  # 3 + 5 + 3 + 4 words
    score = await score_of(conversation, rating=4)
    assert score.components == {"accuracy": 1.0, "token_cost": -(5e-4 * 15), "interactivity": 0.75}
    assert score.total == 1.0 + -(5e-4 * 15) + 0.75


async def test_r_star_of_a_wrong_answer_without_a_judge() -> None:
    score = await score_of(says("What is it?", "The answer is 8."), penalty=1e-2)
    assert score.components == {"accuracy": 0.0, "token_cost": -0.07}
    assert score.total == -0.07


async def test_the_token_cost_is_capped_at_one_and_counts_no_system_prompt() -> None:
    long = says("What is it?", "word " * 5000 + "The answer is 7.")
    assert (await score_of(long)).components["token_cost"] == -1.0
    short = (Message("system", "word " * 5000), *says("What is it?", "The answer is 7."))
    assert (await score_of(short)).components["token_cost"] == -(5e-4 * 7)


async def test_a_judge_without_a_verdict_leaves_the_conversation_unscored() -> None:
    environment = load_environment(
        "math_chat", Resources(count_words, judge_model=ScriptedChatModel(lambda request, rng: "no idea", name="judge"))
    )
    score = await environment.reward.score(says("What is it?", "The answer is 7."), Task("m", goal="3 + 4?", reference="7"))
    assert score.total is None
    assert score.failure is Outcome.JUDGE_ERROR
    assert score.components["accuracy"] == 1.0  # what could be measured still is


# ---------------------------------------------------------------- asking beats guessing (Figure 6)

ERRAND = Task(
    "e",
    goal="Write a reminder for my dentist appointment on Monday at 9 am.",
    reference="Monday at 9 am",
    opening="Write a reminder for my dentist appointment.",
    metadata={"lacking": True, "told": "It is on Monday at 9 am.", "kind": "reminder"},
)


def copies_what_it_was_told(request: ChatRequest, rng: random.Random) -> str:
    told = [message.content for message in request.messages if message.content.startswith("It is on")]
    return f"Dentist {told[-1]}" if told else "Dentist on Friday."


async def test_asking_beats_guessing_under_mr_and_not_under_the_immediate_reward() -> None:
    environment = load_environment("errands", Resources(count_words))
    policy = Policy(ScriptedChatModel(copies_what_it_was_told))
    replies = [(ERRAND, "asking", "When is it, please?"), (ERRAND, "guessing", "Dentist on Friday.")]
    results = await rewards_under_windows(environment, policy, replies, windows=(0, 1, 2), num_samples=2)
    reward, accuracy = mean_by_window(results), mean_by_window(results, "accuracy")
    assert reward["asking"][0] < reward["guessing"][0]
    assert accuracy["asking"] == {0: 0.0, 1: 1.0, 2: 1.0}
    assert accuracy["guessing"] == {0: 0.0, 1: 0.0, 2: 0.0}
    for window in (1, 2):
        words = count_words(f"{ERRAND.opening} When is it, please? It is on Monday at 9 am. Dentist It is on Monday at 9 am.")
        assert reward["asking"][window] == pytest.approx(1 - 5e-3 * words, rel=1e-12)
        assert reward["asking"][window] > reward["guessing"][window]


async def test_where_nothing_is_missing_asking_costs_tokens_and_wins_nothing() -> None:
    told = Task(
        "e2", goal=ERRAND.goal, reference=ERRAND.reference, opening=ERRAND.goal, metadata={**ERRAND.metadata, "lacking": False}
    )
    environment = load_environment("errands", Resources(count_words))
    policy = Policy(ScriptedChatModel(lambda request, rng: "Dentist, Monday at 9 am."))
    replies = [(told, "asking", "When is it?"), (told, "answering", "Dentist, Monday at 9 am.")]
    reward = mean_by_window(await rewards_under_windows(environment, policy, replies, windows=(1,), num_samples=1))
    assert reward["asking"][1] < reward["answering"][1]
