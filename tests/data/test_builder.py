"""The dataset builder: which reply is chosen, what the conversation goes on with, and when it ends."""

import asyncio
import random
from collections.abc import Callable

import pytest

from collab.data.builder import CandidateSource, DatasetBuilder
from collab.data.candidate_note import candidate_note
from collab.data.views import candidates, dpo_rows, kept_nodes, mr_of
from collab.environments.domain import Environment
from collab.mr import MultiturnReward, ScoredFuture
from collab.tasks.task import Task
from simulators.chat_models.protocol import ChatRequest, SamplingSettings
from simulators.chat_models.scripted import Script, ScriptedChatModel
from simulators.conversation import Conversation, ConversationTree, Node, Outcome
from simulators.errors import ChatModelError, ConfigurationError, ContextOverflow, SimulatorError
from simulators.policy import Policy
from simulators.seeds import derive_seed
from simulators.users.protocol import UserTurn
from tests.scripted_environment import assistant_texts, failing, scripted_environment, scripted_policy

TASK = Task("t", goal="have it done")


def one_of(*texts: str) -> Script:
    return lambda request, rng: rng.choice(texts)


def answers_the_reply(conversation: Conversation, seed: int) -> UserTurn:
    """A user whose words tell which reply and which seed they answer."""
    return UserTurn(f"{seed % 1000} after {conversation[-1].content}" if conversation else "do it")


def first_number(conversation: Conversation) -> float:
    return float(assistant_texts(conversation)[0])


def last_digits(conversation: Conversation) -> float:
    return float(sum(int(text) for text in assistant_texts(conversation)))


def builder(
    environment: Environment,
    policy: Policy,
    *,
    count: int = 4,
    window_turns: int = 1,
    num_samples: int = 2,
    seed: int = 0,
    max_turns: int | None = 3,
    futures_with: Policy | None = None,
) -> DatasetBuilder:
    reward = MultiturnReward(environment, futures_with or policy, window_turns, num_samples, seed)
    return DatasetBuilder(environment, reward, [CandidateSource(policy, count)], seed, max_turns)


def texts(nodes: list[Node]) -> list[str]:
    return [node.message.content for node in nodes]


def replies(tree: ConversationTree, turn: int = 1) -> list[Node]:
    users = [node for node in kept_nodes(tree) if node.message.role == "user"]
    return candidates(tree, users[turn - 1].id)


def numbered_candidates() -> Policy:
    """Candidates 0, 1, 2, ... in the order they are sampled, and then always 0."""
    counter = iter(range(1000))
    return scripted_policy(lambda request, rng: str(next(counter)))


async def test_the_conversation_goes_on_with_the_best_reply_and_its_own_future() -> None:
    environment = scripted_environment(answers_the_reply, last_digits)
    tree = await builder(environment, scripted_policy(one_of("1", "2", "3", "4", "5")), count=6).build(TASK)
    kept = kept_nodes(tree)
    assert [node.message.role for node in kept] == ["user", "assistant"] * 3
    assert kept[0].message.content == "do it"
    for place in (1, 3, 5):
        scored = candidates(tree, kept[place - 1].id)
        assert len(scored) >= 2
        assert mr_of(kept[place]) == max(mr for node in scored if (mr := mr_of(node)) is not None)
        assert kept[place].annotations["candidate"]["rank"] == 0
        assert kept[place].annotations["candidate"]["role"] == "chosen"
        if place < 5:
            first_future = kept[place].annotations["mr"]["futures"][0]
            assert kept[place + 1] in tree.path(first_future["leaf"])  # the very node, no copy of it
            assert kept[place + 1].message.content.endswith(f"after {kept[place].message.content}")


async def test_ranks_follow_mr_and_the_worst_is_rejected() -> None:
    environment = scripted_environment(answers_the_reply, first_number)
    futures = scripted_policy(lambda request, rng: "0")
    tree = await builder(environment, numbered_candidates(), futures_with=futures, max_turns=1).build(TASK)
    found = [(node.message.content, node.annotations["candidate"]) for node in replies(tree)]
    assert [text for text, _ in found] == ["0", "1", "2", "3"]
    assert [note["rank"] for _, note in found] == [3, 2, 1, 0]
    assert [note.get("role") for _, note in found] == ["rejected", None, None, "chosen"]


async def test_among_equals_the_first_sampled_is_chosen_and_gives_no_pair() -> None:
    environment = scripted_environment(answers_the_reply, lambda conversation: 1.0)
    futures = scripted_policy(lambda request, rng: "0")
    tree = await builder(environment, numbered_candidates(), futures_with=futures, max_turns=1).build(TASK)
    assert kept_nodes(tree)[1].message.content == "0"
    assert [node.annotations["candidate"]["rank"] for node in replies(tree)] == [0, 1, 2, 3]
    assert list(dpo_rows([tree])) == []


async def test_equal_replies_count_once_whatever_source_they_come_from() -> None:
    environment = scripted_environment(answers_the_reply, first_number)
    first, second = (scripted_policy(lambda request, rng: "7", name=name) for name in ("plain", "proactive"))
    third = scripted_policy(lambda request, rng: "9", name="other")
    reward = MultiturnReward(environment, first, 1, 1)
    sources = [CandidateSource(first, 2), CandidateSource(second, 2), CandidateSource(third, 1)]
    tree = await DatasetBuilder(environment, reward, sources, max_turns=1).build(TASK)
    assert [(node.message.content, node.annotations["candidate"]["source"]) for node in replies(tree)] == [
        ("7", "plain"),
        ("9", "other"),
    ]
    assert [node.annotations["candidate"]["index"] for node in replies(tree)] == [0, 4]


async def test_when_all_replies_are_the_same_the_conversation_goes_on_without_a_pair() -> None:
    environment = scripted_environment(answers_the_reply, first_number)
    tree = await builder(environment, scripted_policy(lambda request, rng: "7"), max_turns=2).build(TASK)
    assert len(kept_nodes(tree)) == 4
    assert "role" not in replies(tree)[0].annotations["candidate"]
    assert list(dpo_rows([tree])) == []


# ---------------------------------------------------------------- what the conversation goes on with

Chooser = Callable[[Conversation, int], UserTurn]


def by_future(*turns: UserTurn | Exception, then: UserTurn = UserTurn("and?")) -> Chooser:  # noqa: B008
    """The user's first move after the reply of turn 1, by the future it is made in."""
    seeds = {derive_seed(0, "t", 2, "user", index): turn for index, turn in enumerate(turns)}

    def say(conversation: Conversation, seed: int) -> UserTurn:
        if not conversation:
            return UserTurn("do it")
        turn = seeds.get(seed, then)
        if isinstance(turn, Exception):
            raise turn
        return turn

    return say


async def built(say: Chooser, **settings: int) -> ConversationTree:
    environment = scripted_environment(say, first_number)
    return await builder(environment, scripted_policy(one_of("1", "2")), **{"count": 8, **settings}).build(TASK)


async def test_the_next_user_turn_is_that_of_the_first_future() -> None:
    tree = await built(by_future(UserTurn("first"), UserTurn("second")), max_turns=2)
    assert kept_nodes(tree)[2].message.content == "first"


async def test_a_failed_first_future_does_not_speak_for_the_user() -> None:
    tree = await built(by_future(SimulatorError("out of role"), UserTurn("second")), max_turns=2)
    assert kept_nodes(tree)[2].message.content == "second"


async def test_a_future_that_failed_after_its_user_turn_does_not_either() -> None:
    def script(request: ChatRequest, rng: random.Random) -> str:
        if request.messages[-1].content == "first":
            raise ChatModelError("gone")
        return rng.choice(("1", "2"))

    environment = scripted_environment(by_future(UserTurn("first"), UserTurn("second")), first_number)
    tree = await builder(environment, scripted_policy(script), count=8, max_turns=2).build(TASK)
    assert kept_nodes(tree)[2].message.content == "second"


async def test_the_next_turn_is_found_when_an_earlier_future_said_nothing_at_all() -> None:
    """A failed future without a message has no node below the candidate; the one after it must not be taken for it."""
    say = by_future(SimulatorError("out of role"), SimulatorError("again"), UserTurn("third"), UserTurn("fourth"))
    tree = await built(say, max_turns=2, num_samples=4)
    assert kept_nodes(tree)[2].message.content == "third"


@pytest.mark.parametrize("farewell", ["", "thanks, bye"])
async def test_it_ends_when_that_user_left(farewell: str) -> None:
    """Even though another future of the same reply is longer: going on with the longest is biased against ending."""
    tree = await built(by_future(UserTurn(farewell, ends=True), UserTurn("more, please")), max_turns=3)
    assert [node.message.role for node in kept_nodes(tree)] == ["user", "assistant"]
    assert "stopped" not in tree.metadata


async def test_a_user_who_leaves_later_in_its_future_is_still_asked_on() -> None:
    def say(conversation: Conversation, seed: int) -> UserTurn:
        if len(conversation) == 4:
            return UserTurn("", ends=True)
        return UserTurn("more" if conversation else "do it")

    tree = await built(say, max_turns=2, window_turns=2)
    assert texts(kept_nodes(tree))[::2] == ["do it", "more"]


async def test_an_empty_reply_is_never_chosen_whatever_it_saves() -> None:
    environment = scripted_environment(answers_the_reply, lambda conversation: 1.0 if not conversation[1].content else 0.0)
    tree = await builder(environment, scripted_policy(one_of("", "1")), count=8, max_turns=3).build(TASK)
    assert texts(kept_nodes(tree))[:2] == ["do it", "1"]
    first = {node.message.content: candidate_note(node) for node in tree.children(0)}
    assert (first[""].rank, first[""].role, first["1"].role) == (1, "rejected", "chosen")


async def test_where_every_reply_is_empty_the_conversation_stops_and_says_why() -> None:
    environment = scripted_environment(answers_the_reply, lambda conversation: 1.0)
    tree = await builder(environment, scripted_policy(one_of(""))).build(TASK)
    assert tree.metadata["stopped"] == "turn 1: no candidate could be scored (the policy's reply was empty)"


# ---------------------------------------------------------------- where it stops


async def test_a_user_who_cannot_open_stops_the_task_and_says_why() -> None:
    def say(conversation: Conversation, seed: int) -> UserTurn:
        raise SimulatorError("no usable reply")

    tree = await builder(scripted_environment(say, first_number), scripted_policy(one_of("1"))).build(TASK)
    assert (len(tree), tree.metadata["stopped"]) == (0, "turn 1: the user failed: no usable reply")


@pytest.mark.parametrize(
    ("opening", "stopped"),
    [
        (UserTurn("  "), "turn 1: the user failed: the simulated user sent an empty message"),
        (UserTurn("", ends=True), "turn 1: the user failed: the simulated user left before it said anything"),
    ],
)
async def test_an_opening_without_words_is_none(opening: UserTurn, stopped: str) -> None:
    environment = scripted_environment(lambda conversation, seed: opening, first_number)
    tree = await builder(environment, scripted_policy(failing)).build(TASK)
    assert (len(tree), tree.metadata["stopped"]) == (0, stopped)


@pytest.mark.parametrize("error", [ChatModelError("gone"), ContextOverflow("too long")])
async def test_failed_candidates_are_left_out_and_noted(error: Exception) -> None:
    lost = derive_seed(0, "t", 1, "candidate", 1)

    def script(request: ChatRequest, rng: random.Random) -> str:
        if request.seed == lost:
            raise error
        return str(rng.randrange(10**6))

    environment = scripted_environment(answers_the_reply, first_number)
    tree = await builder(environment, scripted_policy(script), max_turns=1).build(TASK)
    assert [node.annotations["candidate"]["index"] for node in replies(tree)] == [0, 2, 3]
    assert tree.metadata["failed_candidates"] == [{"turn": 1, "source": "policy", "error": str(error)}]
    assert "stopped" not in tree.metadata


async def test_a_turn_without_any_candidate_stops_the_task() -> None:
    tree = await builder(scripted_environment(answers_the_reply, first_number), scripted_policy(failing)).build(TASK)
    assert tree.metadata["stopped"] == "turn 1: no candidate could be scored (the endpoint went away)"
    assert len(tree.metadata["failed_candidates"]) == 4
    assert texts(kept_nodes(tree)) == ["do it"]


async def test_a_turn_whose_candidates_have_no_score_stops_the_task() -> None:
    environment = scripted_environment(answers_the_reply, lambda conversation: None)
    tree = await builder(environment, scripted_policy(one_of("1", "2", "3")), count=8).build(TASK)
    assert tree.metadata["stopped"] == "turn 1: no candidate could be scored (the judge gave no verdict)"
    assert len(replies(tree)) >= 2
    assert all(node.annotations["candidate"]["rank"] is None and mr_of(node) is None for node in replies(tree))
    assert texts(kept_nodes(tree)) == ["do it"]


async def test_a_candidate_without_score_is_neither_best_nor_worst() -> None:
    def scorer(conversation: Conversation) -> float | None:
        return None if assistant_texts(conversation)[0] == "0" else first_number(conversation)

    environment = scripted_environment(answers_the_reply, scorer)
    futures = scripted_policy(lambda request, rng: "5")
    tree = await builder(environment, numbered_candidates(), futures_with=futures, max_turns=1).build(TASK)
    assert [node.annotations["candidate"].get("role") for node in replies(tree)] == [None, "rejected", None, "chosen"]


@pytest.mark.parametrize(
    ("error", "outcome"), [(ChatModelError("gone"), Outcome.INFRA_ERROR), (ContextOverflow("too long"), Outcome.TRUNCATED)]
)
async def test_whoever_counts_failures_hears_of_failed_candidates(error: Exception, outcome: Outcome) -> None:
    """No future follows a failed candidate, so it would pass unseen, and a run whose server died would end well."""

    def script(request: ChatRequest, rng: random.Random) -> str:
        raise error

    seen: list[ScoredFuture] = []
    environment, policy = scripted_environment(answers_the_reply, first_number), scripted_policy(script)
    reward = MultiturnReward(environment, policy, observe=seen.append)
    await DatasetBuilder(environment, reward, [CandidateSource(policy, 3)]).build(TASK)
    assert [(scored.outcome, scored.error, scored.reward) for scored in seen] == [(outcome, str(error), None)] * 3


async def test_whoever_counts_failures_hears_of_a_user_who_cannot_open() -> None:
    def say(conversation: Conversation, seed: int) -> UserTurn:
        raise SimulatorError("no usable reply")

    seen: list[ScoredFuture] = []
    environment, policy = scripted_environment(say, first_number), scripted_policy(failing)
    await DatasetBuilder(
        environment, MultiturnReward(environment, policy, observe=seen.append), [CandidateSource(policy, 2)]
    ).build(TASK)
    assert [(scored.outcome, scored.error) for scored in seen] == [(Outcome.USER_ERROR, "no usable reply")]


async def test_a_configuration_error_is_not_taken_for_a_bad_candidate() -> None:
    def script(request: ChatRequest, rng: random.Random) -> str:
        raise ConfigurationError("the key is wrong")

    with pytest.raises(ConfigurationError, match="key is wrong"):
        await builder(scripted_environment(answers_the_reply, first_number), scripted_policy(script)).build(TASK)


@pytest.mark.parametrize(("limit", "turns"), [(1, 1), (2, 2), (None, 4)])
async def test_the_turn_limit_is_ours_or_the_environments(limit: int | None, turns: int) -> None:
    environment = scripted_environment(answers_the_reply, first_number, max_turns=4)
    tree = await builder(environment, scripted_policy(one_of("1", "2")), max_turns=limit).build(TASK)
    assert len(kept_nodes(tree)) == 2 * turns


@pytest.mark.parametrize("settings", [{"count": 1}, {"max_turns": 0}, {"max_turns": -2}])
def test_settings_that_can_build_nothing_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        builder(scripted_environment(answers_the_reply, first_number), scripted_policy(failing), **settings)


# ---------------------------------------------------------------- window 0


async def test_under_window_zero_the_user_is_asked_for_its_next_turn() -> None:
    tree = await built(answers_the_reply, window_turns=0, max_turns=2)
    kept = kept_nodes(tree)
    assert [node.message.role for node in kept] == ["user", "assistant"] * 2
    assert kept[2].message.content.endswith(f"after {kept[1].message.content}")
    assert all(len(node.annotations["mr"]["futures"]) == 1 for node in replies(tree))


@pytest.mark.parametrize(
    ("turn", "stopped"),
    [
        (UserTurn("", ends=True), None),
        (SimulatorError("out of role"), "turn 2: the user failed: out of role"),
        (UserTurn(" "), "turn 2: the user failed: the simulated user sent an empty message"),
    ],
)
async def test_under_window_zero_a_user_may_leave_or_fail(turn: UserTurn | Exception, stopped: str | None) -> None:
    tree = await built(by_future(turn), window_turns=0)
    assert len(kept_nodes(tree)) == 2
    assert tree.metadata.get("stopped") == stopped


async def test_under_window_zero_nobody_is_asked_after_the_last_turn() -> None:
    asked: list[int] = []

    def say(conversation: Conversation, seed: int) -> UserTurn:
        asked.append(len(conversation))
        return UserTurn("and?")

    await built(say, window_turns=0, max_turns=2)
    assert asked == [0, 2]


# ---------------------------------------------------------------- the same seed gives the same tree


def jittery(request: ChatRequest, rng: random.Random) -> object:
    text = str(rng.randrange(5))

    async def later() -> str:
        await asyncio.sleep(random.random() * 0.004)
        return text

    return later()


async def test_the_tree_depends_on_the_seed_and_not_on_who_answers_first() -> None:
    environment = scripted_environment(answers_the_reply, last_digits)

    async def tree_of(seed: int) -> dict[str, object]:
        policy = scripted_policy(jittery)  # type: ignore[arg-type]
        return (await builder(environment, policy, count=6, seed=seed, num_samples=3).build(TASK)).fingerprint()

    first, again, other = await asyncio.gather(tree_of(1), tree_of(1), tree_of(2))
    assert first == again
    assert first["nodes"] != other["nodes"]


async def test_every_draw_in_the_tree_carries_its_seed() -> None:
    tree = await built(answers_the_reply, max_turns=2)
    assert tree.nodes[0].seed == derive_seed(0, "t", 1, "user", 0)
    assert replies(tree)[0].seed == derive_seed(0, "t", 1, "candidate", 0)
    below = [node for node in tree.nodes if node.parent == replies(tree)[0].id]
    assert [node.seed for node in below] == [derive_seed(0, "t", 2, "user", index) for index in (0, 1)]


async def test_futures_are_free_of_the_candidates_forced_start() -> None:
    prefixes: list[str] = []

    def script(request: ChatRequest, rng: random.Random) -> str:
        prefixes.append(request.reply_prefix)
        return str(rng.randrange(10))

    environment = scripted_environment(answers_the_reply, lambda conversation: float(len(conversation)))
    policy = Policy(ScriptedChatModel(script), SamplingSettings(), reply_prefix="What is the ")
    tree = await builder(environment, policy, max_turns=1, num_samples=1).build(TASK)
    assert prefixes[:4] == ["What is the "] * 4
    assert set(prefixes[4:]) == {""}
    assert all(node.message.content.startswith("What is the ") for node in replies(tree))


async def test_the_tree_survives_its_own_record() -> None:
    tree = await built(answers_the_reply)
    again = ConversationTree.from_record(tree.to_record())
    assert again.to_record() == tree.to_record()
    assert texts(kept_nodes(again)) == texts(kept_nodes(tree))
