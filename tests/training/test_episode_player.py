"""Episodes: exact tokens, masks, outcomes and seeds of conversations with a simulated user; no model is needed."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collab.environments.domain import Environment, Resources
from collab.tasks.task import Task
from collab.training.episode import Episode, EpisodeStart
from collab.training.episode_player import EpisodePlayer
from collab.training.event_loop import gather_all
from collab.training.token_policy import TokenPolicy
from collab.training.turn_tokens import TurnTokens
from simulators.chat_models.protocol import SamplingSettings
from simulators.chat_models.template_model import TemplateChatModel
from simulators.conversation import Message, Outcome
from simulators.errors import ChatModelError, ConfigurationError, SimulatorError
from tests.training import toy
from tests.training.runs import ScriptedSampler, rollout, wait
from tests.training.tiny_models import tiny_tokenizer

TOKENS = TurnTokens.of(tiny_tokenizer(), None)


def player(
    script: Callable[[str, int], str], environment: Environment | None = None, limit: int = 400, **changes: Any
) -> EpisodePlayer:
    sampler = ScriptedSampler(TOKENS, script)
    own = rollout(**changes)
    sampling = SamplingSettings(own.max_tokens, own.temperature, own.top_p)
    policy = TokenPolicy(sampler, TOKENS, sampling, limit, lambda: "step0", own.system_prompt)
    model = TemplateChatModel(sampler, TOKENS, "policy", lambda: "step0")
    return EpisodePlayer(environment or toy.environment(), policy, model, own, seed=5)


def play(playing: EpisodePlayer, task: Task, sample: int = 0, turn_worths: bool = False, history: Any = ()) -> Episode:
    async def run() -> Episode:
        start = EpisodeStart(task, history)
        return await playing.play(start, await playing.open(start, "train0"), "train0", sample, turn_worths=turn_worths)

    return wait(run())


def branch(playing: EpisodePlayer, task: Task, size: int = 3) -> list[Episode]:
    async def run() -> list[Episode]:
        start = EpisodeStart(task)
        return await playing.branch(start, await playing.open(start, "train0"), "train0", size)

    return wait(run())


def ask_then_say(letter: str) -> Callable[[str, int], str]:
    return lambda prompt, seed: letter if f"It is {letter}." in prompt else "Which?"


def segments(episode: Episode) -> list[tuple[bool, str]]:
    """The completion as (policy's own, text) pieces."""
    pieces: list[tuple[bool, list[int]]] = []
    for token, mask in zip(episode.completion_ids, episode.policy_mask, strict=True):
        if not pieces or pieces[-1][0] != bool(mask):
            pieces.append((bool(mask), []))
        pieces[-1][1].append(token)
    return [(own, TOKENS.tokenizer.decode(ids)) for own, ids in pieces]


def test_policy_tokens_are_its_replies_with_their_stop_tokens_and_nothing_else() -> None:
    episode = play(player(ask_then_say("A")), toy.tasks(1)[0])
    assert TOKENS.tokenizer.decode(episode.prompt_ids) == "<|im_start|>user\nPick.<|im_end|>\n<|im_start|>assistant\n"
    assert segments(episode) == [
        (True, "Which?<|im_end|>"),
        (False, "\n<|im_start|>user\nIt is A.<|im_end|>\n<|im_start|>assistant\n"),
        (True, "A<|im_end|>"),
    ]
    assert [TOKENS.text(episode.completion_ids[turn.start : turn.end]) for turn in episode.turns] == ["Which?", "A"]
    assert episode.logprobs == [-1.0 * mask for mask in episode.policy_mask]
    assert (episode.outcome, episode.reward) == (Outcome.WINDOW_FULL, 1.0)


def test_sampled_ids_are_never_made_from_text_again() -> None:
    """A reply whose text would tokenise otherwise keeps its ids (trl#5224), here a stop token written out in pieces."""
    odd = [TOKENS.encode("<")[0], *TOKENS.encode("|im_end|>"), *TOKENS.encode("?")]
    assert TOKENS.encode(TOKENS.tokenizer.decode(odd)) != odd
    playing = player(ask_then_say("A"))
    sampled = playing.policy.sampler._reply
    playing.policy.sampler._reply = lambda ids, seed: (
        reply
        if (reply := sampled(ids, seed)).text != "Which?"
        else type(reply)((*odd, TOKENS.stop_id), tuple([-1.0] * (len(odd) + 1)), TOKENS.tokenizer.decode(odd), "stop")
    )
    episode = play(playing, toy.tasks(1)[0])
    assert episode.completion_ids[: len(odd)] == odd
    assert playing.policy.sampler.prompts[1][len(episode.prompt_ids) :][: len(odd)] == odd


def test_a_cut_reply_is_closed_by_a_masked_stop_token() -> None:
    episode = play(player(lambda prompt, seed: "A" if "No." in prompt else "Let me th..."), toy.tasks(1)[0])
    assert segments(episode) == [
        (True, "Let me th"),
        (False, "<|im_end|>\n<|im_start|>user\nNo.<|im_end|>\n<|im_start|>assistant\n"),
        (True, "A<|im_end|>"),
    ]
    assert episode.reward == 1.0


def test_an_episode_that_ends_in_a_cut_reply_is_truncated_and_scored_as_it_stands() -> None:
    episode = play(player(lambda prompt, seed: "Let me th...", max_turns=1), toy.tasks(1)[0])
    assert (episode.outcome, episode.reward, segments(episode)) == (Outcome.TRUNCATED, 0.0, [(True, "Let me th")])


def test_the_user_leaves_and_the_episode_ends() -> None:
    episode = play(player(lambda prompt, seed: "A"), toy.tasks(1)[0])
    assert (episode.outcome, episode.reward, len(episode.turns)) == (Outcome.ENDED, 1.0, 1)


def test_a_token_limit_ends_the_conversation_after_a_whole_turn() -> None:
    script = ask_then_say("A")
    whole = play(player(script), toy.tasks(1)[0])
    for limit in range(len(whole.prompt_ids) + 7, len(whole.prompt_ids) + len(whole.completion_ids)):
        episode = play(player(script, limit=limit), toy.tasks(1)[0])
        if len(episode.turns) == 2:  # the last reply was given less room
            continue
        assert segments(episode) == [(True, "Which?<|im_end|>")], limit
        assert episode.outcome is Outcome.TRUNCATED
        assert len(episode.completion_ids) == len(episode.policy_mask) == len(episode.logprobs)
        assert episode.completion_ids[-1] == TOKENS.stop_id


def test_no_conversation_is_ever_asked_to_pass_the_token_limit() -> None:
    for limit in (60, 65, 100):
        playing = player(ask_then_say("A"), limit=limit)
        play(playing, toy.tasks(1)[0])
        assert 50 < playing.policy.sampler.longest <= limit


def test_a_prompt_without_room_earns_nothing_and_is_left_out() -> None:
    episode = play(player(ask_then_say("A"), limit=5), toy.tasks(1)[0])
    assert (episode.outcome, episode.reward, episode.turns) == (Outcome.TRUNCATED, None, [])


@pytest.mark.parametrize("where", ["opening", "reply"])
def test_a_failed_user_is_no_reward_of_zero(where: str) -> None:
    class Failing(toy.LetterUser):
        async def next_turn(self, conversation: Any, seed: int) -> Any:
            if not conversation:
                raise ChatModelError("the server is away")
            return await super().next_turn(conversation, seed)

    if where == "opening":
        environment = toy.environment(user=lambda task, resources: Failing(task.reference))
    else:
        environment = toy.environment(failing="A")
    episode = play(player(ask_then_say("A"), environment), toy.tasks(1)[0])
    assert episode.reward is None and episode.error
    assert episode.outcome is (Outcome.INFRA_ERROR if where == "opening" else Outcome.USER_ERROR)


def test_a_failed_judge_and_a_reward_that_is_no_number_are_missing() -> None:
    for component in (toy.SaidLetter(fail_on="A"), toy.SaidLetter(nan_on="A")):
        episode = play(player(ask_then_say("A"), toy.environment(component=component)), toy.tasks(1)[0])
        assert episode.reward is None


def test_an_empty_reply_is_the_policys_own_doing() -> None:
    episode = play(player(lambda prompt, seed: ""), toy.tasks(1)[0])
    assert (episode.outcome, episode.reward, len(episode.turns)) == (Outcome.POLICY_ERROR, 0.0, 1)


def test_misconfiguration_stops_the_run() -> None:
    def script(prompt: str, seed: int) -> str:
        raise ConfigurationError("no such model")

    with pytest.raises(ConfigurationError, match="no such model"):
        play(player(script), toy.tasks(1)[0])


def test_samples_of_a_task_differ_and_are_the_same_each_time() -> None:
    def script(prompt: str, seed: int) -> str:
        return random.Random(seed).choice(toy.LETTERS)

    def texts(sample: int) -> list[str]:
        return [message.content for message in play(player(script), toy.tasks(1)[0], sample).conversation]

    assert texts(1) == texts(1)
    assert len({tuple(texts(sample)) for sample in range(6)}) > 3


def test_samples_of_a_task_face_the_same_user() -> None:
    seeds: dict[int, list[int]] = {}

    def user(task: Task, resources: Resources) -> Any:
        class Noting(toy.LetterUser):
            async def next_turn(self, conversation: Any, seed: int) -> Any:
                seeds.setdefault(len(conversation), []).append(seed)
                return await super().next_turn(conversation, seed)

        return Noting(task.reference)

    for sample in (0, 1):
        play(player(lambda prompt, seed: "B", toy.environment(user=user)), toy.tasks(1)[0], sample)
    assert all(len(set(found)) == 1 for found in seeds.values()) and len(seeds) == 2


def test_the_system_prompt_is_seen_but_not_part_of_the_conversation() -> None:
    episode = play(player(ask_then_say("A"), system_prompt="Ask first."), toy.tasks(1)[0])
    assert TOKENS.tokenizer.decode(episode.prompt_ids).startswith("<|im_start|>system\nAsk first.<|im_end|>\n")
    assert [message.role for message in episode.conversation] == ["user", "assistant"] * 2


def test_a_stored_history_is_gone_on_from() -> None:
    history = (Message("user", "Pick."), Message("assistant", "Hm?"), Message("user", "It is A."))
    episode = play(player(ask_then_say("A"), toy.environment(max_turns=3)), toy.tasks(1)[0], history=history)
    assert [message.content for message in episode.conversation] == ["Pick.", "Hm?", "It is A.", "A"]
    assert (len(episode.turns), episode.reward) == (1, 1.0)


def test_a_stored_history_must_end_with_the_user() -> None:
    with pytest.raises(ConfigurationError, match="must end with a user message"):
        EpisodeStart(toy.tasks(1)[0], (Message("user", "Pick."), Message("assistant", "Hm?")))


def test_mr_of_one_reply_plays_futures_with_the_policy() -> None:
    """CollabLLM's own online setting: one reply, rewarded by what becomes of the conversation."""
    asking = play(player(ask_then_say("A"), max_turns=1, reward="mr"), toy.tasks(1)[0])
    guessing = play(player(lambda prompt, seed: "B", max_turns=1, reward="mr"), toy.tasks(1)[0])
    at_once = play(player(ask_then_say("A"), max_turns=1, reward="mr", window_turns=0), toy.tasks(1)[0])
    assert (asking.reward, guessing.reward, at_once.reward) == (1.0, 0.0, 0.0)
    assert len(asking.turns) == 1


def test_worths_are_mr_after_every_turn_and_the_reward_after_the_last() -> None:
    episode = play(player(ask_then_say("A"), toy.environment(max_turns=3)), toy.tasks(1)[0], turn_worths=True)
    assert episode.outcome is Outcome.ENDED
    assert episode.worths == [1.0, 1.0]
    guessed = play(player(lambda prompt, seed: "B", toy.environment(max_turns=3)), toy.tasks(1)[0], turn_worths=True)
    assert guessed.worths == [0.0, 0.0, 0.0]


def test_the_last_reply_is_worth_what_the_conversation_earned_and_nobody_estimates_it() -> None:
    class Polite(toy.LetterUser):
        async def next_turn(self, conversation: Any, seed: int) -> Any:
            said = await super().next_turn(conversation, seed)
            return replace(said, text="Thanks!") if said.ends else said

    environment = toy.environment(max_turns=3, user=lambda task, resources: Polite(task.reference))
    episode = play(player(ask_then_say("A"), environment), toy.tasks(1)[0], turn_worths=True)
    assert [message.content for message in episode.conversation][-2:] == ["A", "Thanks!"]
    assert ["mr" in node.annotations for node in episode.played if node.author == "policy"] == [True, False]


def test_a_branching_conversation_never_goes_on_from_a_reply_without_a_word() -> None:
    class Terse:
        name, value_range, source = "terse", (0.0, 1.0), "toy"

        async def score(self, conversation: Any, task: Task) -> float:
            return float(not any(message.content for message in conversation if message.role == "assistant"))

    playing = player(lambda prompt, seed: random.Random(seed).choice(["", "Which?"]), toy.environment(component=Terse()))
    rows = branch(playing, toy.tasks(1)[0], size=6)
    assert {row.conversation[1].content for row in rows[:6]} == {"", "Which?"} and len(rows) == 12
    assert {row.conversation[1].content for row in rows[6:]} == {"Which?"}


def test_branches_are_replies_to_one_history_and_the_best_goes_on() -> None:
    playing = player(lambda prompt, seed: "A" if "It is A." in prompt else random.Random(seed).choice(["Which?", "B", "C"]))
    rows = branch(playing, toy.tasks(1)[0], size=6)
    first, second = rows[:6], rows[6:]
    assert len(second) == 6 and {row.turn for row in first} == {1} and {row.turn for row in second} == {2}
    assert {TOKENS.tokenizer.decode(row.prompt_ids) for row in first} == {
        "<|im_start|>user\nPick.<|im_end|>\n<|im_start|>assistant\n"
    }
    assert {row.reward for row in first if row.conversation[-1].content == "Which?"} == {1.0}
    assert {row.reward for row in first if row.conversation[-1].content != "Which?"} == {0.0}
    assert all("Which?<|im_end|>\n<|im_start|>user\nIt is A." in TOKENS.tokenizer.decode(row.prompt_ids) for row in second)
    assert all(row.policy_mask == [1] * len(row.completion_ids) for row in rows)


def test_branching_can_go_on_from_a_drawn_reply() -> None:
    """With a high temperature every reply is gone on from about as often."""
    from dataclasses import replace

    def went_on(seed: int) -> bool:
        playing = player(lambda prompt, seed: "A" if "It is A." in prompt else random.Random(seed).choice(["Which?", "B"]))
        playing = replace(playing, continue_from="softmax", softmax_temperature=50.0, seed=seed)
        rows = branch(playing, toy.tasks(1)[0], size=4)
        assert len({row.conversation[1].content for row in rows[4:]}) == 1
        return rows[4].conversation[1].content == "Which?"

    assert 5 < sum(went_on(seed) for seed in range(30)) < 25


def test_branching_with_window_0_asks_the_user() -> None:
    rows = branch(player(ask_then_say("A"), window_turns=0), toy.tasks(1)[0], size=2)
    assert [row.reward for row in rows] == [0.0, 0.0, 1.0, 1.0]


def test_branching_without_any_mr_ends() -> None:
    environment = toy.environment(component=toy.SaidLetter(fail_on="A"))
    rows = branch(player(ask_then_say("A"), environment), toy.tasks(1)[0], size=2)
    assert [row.reward for row in rows] == [None, None]
    assert {row.outcome for row in rows} == {Outcome.JUDGE_ERROR}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(20, 150))
def test_tokens_masks_and_logprobs_always_match(seed: int, turns: int, limit: int) -> None:
    rng = random.Random(seed)
    replies = ["Which?", "A", "B", "", "cut off...", "long " * 5]

    def script(prompt: str, seed: int) -> str:
        return rng.choice(replies)

    episode = play(player(script, toy.environment(max_turns=turns), limit=limit), toy.tasks(1)[0])
    size = len(episode.completion_ids)
    assert size == len(episode.policy_mask) == len(episode.logprobs)
    spans = [index for turn in episode.turns for index in range(turn.start, turn.end)]
    assert [index for index, mask in enumerate(episode.policy_mask) if mask] == spans
    assert not episode.policy_mask or episode.policy_mask[-1] == 1, "what follows the last reply is trained by nobody"
    assert len(episode.worths) == len(episode.turns)


async def test_a_failure_cancels_the_others() -> None:
    import asyncio

    cancelled = []

    async def waits() -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def fails() -> None:
        raise ConfigurationError("stop")

    with pytest.raises(ConfigurationError):
        await gather_all([waits(), fails(), waits()])
    assert cancelled == [True, True]


async def test_the_live_policy_is_a_chat_model_with_the_current_version() -> None:
    from simulators.chat_models.protocol import ChatRequest

    version = "step1"
    sampler = ScriptedSampler(TOKENS, lambda prompt, seed: f"{seed}")
    policy = TemplateChatModel(sampler, TOKENS, "policy", lambda: version)
    request = ChatRequest((Message("user", "Hi"),), SamplingSettings(4), n=2, seed=7, reply_prefix="")
    completions = await policy.complete(request)
    assert [completion.text for completion in completions] == ["7", "8"]
    assert {completion.weights_version for completion in completions} == {"step1"}
    version = "step2"
    assert policy.weights_version == "step2"


def test_a_task_is_prepared_once_and_played_as_prepared() -> None:
    """MediumDocEdit writes a goal into each task with a model: the user, MR and the reward must see it."""
    calls: list[str] = []

    async def prepare(task: Task, resources: Resources) -> Task:
        calls.append(task.id)
        return replace(task, reference="B")

    plain = toy.environment()
    environment = Environment(replace(plain.domain, prepare=prepare), plain.resources)
    playing = player(ask_then_say("B"), environment)
    task = toy.tasks(1)[0]
    assert task.reference == "A"
    for _ in range(2):
        episode = play(playing, task, turn_worths=True)
        assert (episode.conversation[2].content, episode.reward) == ("It is B.", 1.0)
    assert all(row.conversation[0].content == "Pick." and row.reward is not None for row in branch(playing, task))
    assert calls == [task.id]


def test_a_task_that_cannot_be_prepared_is_the_users_error() -> None:
    async def prepare(task: Task, resources: Resources) -> Task:
        raise SimulatorError("no summary came")

    plain = toy.environment()
    playing = player(ask_then_say("A"), Environment(replace(plain.domain, prepare=prepare), plain.resources))
    episode = play(playing, toy.tasks(1)[0])
    assert (episode.outcome, episode.reward, episode.error) == (Outcome.USER_ERROR, None, "no summary came")
