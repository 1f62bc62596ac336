import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from simulators.chat_models.protocol import ChatRequest, Completion, SamplingSettings
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.conversation import Conversation, ConversationTree, Departure, Message, Outcome, Usage, departures
from simulators.errors import (
    BudgetExhausted,
    ChatModelError,
    CollabError,
    ConfigurationError,
    ContextOverflow,
    SimulatorError,
    StorageError,
)
from simulators.forward_sampling import Future, future_seeds, policy_turn, sample_future
from simulators.policy import Policy
from simulators.users.protocol import UserTurn

HISTORY = (Message("user", "hi"), Message("assistant", "what is it?"))
SEEDS = future_seeds(0, "task", 0)


class Says:
    """A user that makes given moves: texts, turns or errors to raise; the last one again and again."""

    def __init__(self, *moves: str | UserTurn | Exception) -> None:
        self.moves = moves
        self.seeds: list[int] = []
        self.heard: list[Conversation] = []

    async def next_turn(self, conversation: Conversation, seed: int) -> UserTurn:
        self.seeds.append(seed)
        self.heard.append(conversation)
        move = self.moves[min(len(self.seeds), len(self.moves)) - 1]
        if isinstance(move, Exception):
            raise move
        return UserTurn(move) if isinstance(move, str) else move


def policy(reply: str | Exception | Callable[[ChatRequest], str] = "an answer", **options: object) -> Policy:
    def script(request: ChatRequest, rng: random.Random) -> str:
        if isinstance(reply, Exception):
            raise reply
        return reply(request) if callable(reply) else reply

    return Policy(ScriptedChatModel(script), **options)  # type: ignore[arg-type]


def roles(future: Future) -> list[str]:
    return [step.author for step in future.steps]


async def test_a_full_window_is_that_many_turns() -> None:
    for window in (1, 2, 5):
        future = await sample_future(HISTORY, Says("go on"), policy(), window, SEEDS)
        assert roles(future) == ["user", "policy"] * window
        assert (future.outcome, future.error) == (Outcome.WINDOW_FULL, None)
        assert future.conversation[:2] == HISTORY
        assert future.first_user_turn is future.steps[0]
        assert len(future.policy_steps) == window


async def test_window_0_scores_the_conversation_as_it_stands() -> None:
    user = Says("never asked")
    future = await sample_future(HISTORY, user, policy(), 0, SEEDS)
    assert (future.conversation, future.outcome, user.seeds) == (HISTORY, Outcome.WINDOW_FULL, [])
    assert future.first_user_turn is None


async def test_a_whole_conversation_begins_with_the_users_opening() -> None:
    user = Says("hello", "thanks")
    future = await sample_future((), user, policy(), 2, SEEDS)
    assert user.heard[0] == ()
    assert [message.content for message in future.conversation] == ["hello", "an answer", "thanks", "an answer"]


async def test_whoever_has_not_spoken_last_is_next() -> None:
    user = Says("thanks")
    future = await sample_future(HISTORY[:1], user, policy(), 2, SEEDS)
    assert roles(future) == ["policy", "user", "policy"]


async def test_impossible_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="window_turns is -1"):
        await sample_future(HISTORY, Says("x"), policy(), -1, SEEDS)


async def test_a_user_that_leaves_ends_the_future() -> None:
    wordless = await sample_future(HISTORY, Says("more", UserTurn("", ends=True)), policy(), 5, SEEDS)
    assert (wordless.outcome, roles(wordless)) == (Outcome.ENDED, ["user", "policy"])
    polite = await sample_future(HISTORY, Says(UserTurn("thanks!", ends=True)), policy(), 5, SEEDS)
    assert (polite.outcome, roles(polite)) == (Outcome.ENDED, ["user"])
    assert polite.conversation[-1] == Message("user", "thanks!")
    assert polite.departure is None


@pytest.mark.parametrize(
    ("user", "reply", "outcome", "steps"),
    [
        (Says(SimulatorError("mad")), "fine", Outcome.USER_ERROR, []),
        (Says("a", SimulatorError("mad")), "fine", Outcome.USER_ERROR, ["user", "policy"]),
        (Says(ChatModelError("gone")), "fine", Outcome.INFRA_ERROR, []),
        (Says("  \n"), "fine", Outcome.USER_ERROR, ["user"]),
        (Says("a"), ChatModelError("gone"), Outcome.INFRA_ERROR, ["user"]),
        (Says("a"), ContextOverflow("too long"), Outcome.TRUNCATED, ["user"]),
        (Says("a"), " \n ", Outcome.POLICY_ERROR, ["user", "policy"]),
    ],
)
async def test_what_fails_becomes_an_outcome_of_this_future_alone(
    user: Says, reply: str | Exception, outcome: Outcome, steps: list[str]
) -> None:
    future = await sample_future(HISTORY, user, policy(reply), 3, SEEDS)
    assert (future.outcome, roles(future)) == (outcome, steps)
    assert future.error
    assert future.outcome.earns_reward == (outcome in (Outcome.TRUNCATED, Outcome.POLICY_ERROR))


async def test_a_user_whose_model_overflows_is_no_fault_of_the_policy() -> None:
    future = await sample_future(HISTORY, Says(ContextOverflow("too long")), policy(), 3, SEEDS)
    assert future.outcome is Outcome.INFRA_ERROR


class CutShort(ScriptedChatModel):
    async def complete(self, request: ChatRequest) -> list[Completion]:
        return [Completion("and then", finish_reason="length")]


async def test_a_reply_cut_by_the_token_limit_truncates_and_is_talked_about_while_the_window_lasts() -> None:
    cut = Policy(CutShort(lambda request, rng: ""))
    future = await sample_future(HISTORY, Says("go on"), cut, 2, SEEDS)
    assert (future.outcome, roles(future)) == (Outcome.TRUNCATED, ["user", "policy"] * 2)
    assert future.outcome.earns_reward
    left = await sample_future(HISTORY, Says("go on", UserTurn("", ends=True)), cut, 2, SEEDS)
    assert left.outcome is Outcome.ENDED


@pytest.mark.parametrize("error", [ConfigurationError("wrong key"), BudgetExhausted("spent"), StorageError("full")])
@pytest.mark.parametrize("who", ["user", "policy"])
async def test_what_would_fail_every_future_stops_the_run(error: CollabError, who: str) -> None:
    user, reply = (Says(error), "fine") if who == "user" else (Says("a"), error)
    with pytest.raises(type(error)):
        await sample_future(HISTORY, user, policy(reply), 1, SEEDS)


async def test_one_failed_future_leaves_the_others_alone() -> None:
    def sometimes(request: ChatRequest) -> str:
        if request.seed % 2:
            raise ChatModelError("gone")
        return "fine"

    futures = await asyncio.gather(
        *(sample_future(HISTORY, Says("go on"), policy(sometimes), 1, future_seeds(0, "task", index)) for index in range(40))
    )
    outcomes = [future.outcome for future in futures]
    assert set(outcomes) == {Outcome.WINDOW_FULL, Outcome.INFRA_ERROR}
    assert all((future.error is None) == (future.outcome is Outcome.WINDOW_FULL) for future in futures)


async def test_users_draw_the_same_for_all_candidates_and_policies_do_not() -> None:
    drawn: dict[int | None, tuple[list[int], list[int]]] = {}
    for candidate in (0, 1, None):
        user, policy_seeds = Says("go on"), []
        seen = policy(lambda request, seeds=policy_seeds: seeds.append(request.seed) or "fine")
        await sample_future(HISTORY, user, seen, 3, future_seeds(5, "task", 2, candidate))
        drawn[candidate] = (user.seeds, policy_seeds)
    assert drawn[0][0] == drawn[1][0] == drawn[None][0]
    assert not set(drawn[0][1]) & set(drawn[1][1])


def test_every_draw_of_a_run_has_a_seed_of_its_own() -> None:
    seeds = {
        future_seeds(run, task, future)(author, turn)
        for run in range(2)
        for task in ("1", "11")
        for future in range(3)
        for author in ("user", "policy")
        for turn in range(1, 4)
    }
    assert len(seeds) == 2 * 2 * 3 * 2 * 3
    assert all(0 <= seed < 2**63 for seed in seeds)


async def test_the_same_run_twice_gives_the_same_tree() -> None:
    def fingerprint(future: Future) -> object:
        tree = ConversationTree("task")
        future.graft(tree, tree.extend(None, HISTORY))
        return tree.fingerprint()

    model = ScriptedChatModel(lambda request, rng: f"{rng.random()}")
    futures = [await sample_future(HISTORY, Says("go on"), Policy(model), 2, future_seeds(1, "task", 0)) for _ in range(2)]
    assert fingerprint(futures[0]) == fingerprint(futures[1])
    other = await sample_future(HISTORY, Says("go on"), Policy(model), 2, future_seeds(2, "task", 0))
    assert fingerprint(other) != fingerprint(futures[0])


async def test_futures_are_played_without_the_forced_start_but_with_the_system_prompt() -> None:
    requests: list[ChatRequest] = []
    asked = policy(
        lambda request: requests.append(request) or "fine",
        system_prompt="Be brief.",
        reply_prefix="What is",
        sampling=SamplingSettings(max_tokens=7),
    )
    future = await sample_future(HISTORY, Says("go on"), asked, 1, SEEDS)
    (request,) = requests
    assert request.reply_prefix == ""
    assert request.messages[0] == Message("system", "Be brief.")
    assert request.sampling.max_tokens == 7
    assert Message("system", "Be brief.") not in future.conversation
    (step,) = [step async for step in policy_turn(Future(HISTORY[:1]), asked, SEEDS)]
    assert step.message.content == "What isfine"


async def test_a_graft_keeps_provenance_and_outcome() -> None:
    tree = ConversationTree("task")
    parent = tree.extend(None, HISTORY)
    turn = UserTurn("hm", flags=("role_flip",), completion=Completion("raw", token_ids=(1,), model="user model"))
    future = await sample_future(HISTORY, Says(turn), Policy(ScriptedChatModel(lambda request, rng: "fine")), 1, SEEDS)
    leaf = future.graft(tree, parent)
    assert leaf == 3
    said, replied = tree.nodes[2:]
    assert (said.author, said.model, said.token_ids, said.annotations) == ("user", "user model", None, {"flags": ["role_flip"]})
    assert (replied.author, replied.outcome, replied.finish_reason) == ("policy", Outcome.WINDOW_FULL, "stop")
    assert replied.seed == SEEDS("policy", 2)
    nothing = await sample_future(HISTORY, Says("x"), policy(), 0, SEEDS)
    assert nothing.graft(tree, parent) == parent
    assert tree.nodes[1].outcome is None


async def test_a_graft_notes_users_who_leave_without_a_word() -> None:
    completion = Completion("raw", usage=Usage(9, 1), model="user model", weights_version="3", latency_s=0.5)
    leaves = UserTurn("", ends=True, completion=completion, flags=("early_stop",))
    tree = ConversationTree("task")
    parent = tree.extend(None, HISTORY)
    later = await sample_future(HISTORY, Says("go on", leaves), policy(), 3, SEEDS)
    at_once = [await sample_future(HISTORY, Says(turn), policy(), 3, SEEDS) for turn in (leaves, UserTurn("", ends=True))]
    assert later.departure is not None and later.departure.flags == ("early_stop",)
    assert later.conversation[-1] == Message("assistant", "an answer")  # no message
    assert [future.graft(tree, parent) for future in (later, *at_once)] == [3, parent, parent]
    left = Departure(("early_stop",), "user model", "3", "stop", Usage(9, 1), 0.5, SEEDS("user", 3))
    assert departures(tree.nodes[3]) == [left]
    assert departures(tree.nodes[1]) == [replace(left, seed=SEEDS("user", 2)), Departure(seed=SEEDS("user", 2))]
    assert (len(tree), departures(tree.nodes[2])) == (4, [])
    assert tree.nodes[1].outcome is None
    assert (await sample_future((), Says(leaves), policy(), 1, SEEDS)).graft(ConversationTree("empty"), None) is None


async def test_turns_are_counted_from_the_conversations_beginning() -> None:
    user = Says("go on")
    await sample_future(HISTORY, user, policy(), 2, SEEDS)
    assert user.seeds == [SEEDS("user", 2), SEEDS("user", 3)]


async def test_ten_thousand_futures_are_open_at_once() -> None:
    gate = asyncio.Event()
    open_now = peak = 0

    async def wait(request: ChatRequest, rng: random.Random) -> str:
        nonlocal open_now, peak
        open_now += 1
        peak = max(peak, open_now)
        if open_now == 10_000:
            gate.set()
        await gate.wait()
        open_now -= 1
        return "fine"

    waiting = Policy(ScriptedChatModel(wait))
    futures = await asyncio.gather(
        *(sample_future(HISTORY, Says("go on"), waiting, 1, future_seeds(0, "t", index)) for index in range(10_000))
    )
    assert peak == 10_000
    assert all(future.outcome is Outcome.WINDOW_FULL for future in futures)
