"""Users: scheduled, reworded by a model, and with a persona's style; what none of them may lose."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collab.environments.evolving_intent.conversations import evolve
from collab.environments.evolving_intent.critical_tokens import critical_tokens, lost_meaning
from collab.environments.evolving_intent.personas import PERSONAS, in_style, persona_named
from collab.environments.evolving_intent.reader import meaning_kept
from collab.environments.evolving_intent.rendering import MATH
from collab.environments.evolving_intent.reworded_user import FALLBACK, RewordedUser
from collab.environments.evolving_intent.schedule import Shape
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.conversation import Message
from simulators.errors import ChatModelError, ConfigurationError
from simulators.seeds import derive_seed
from simulators.users.protocol import User
from simulators.users.scheduled import ScheduledUser
from tests.evolving_intent.tasks import conversions

POINT = 'Correction: it is $80, not $90. Ann Miller has $80 and a "blue card".'


async def test_a_scheduled_user_says_its_messages_and_leaves():
    user = ScheduledUser(("one", "two"))
    assert isinstance(user, User)
    assert (await user.next_turn((), 0)).text == "one"
    after = (Message("user", "one"), Message("assistant", "hm"))
    assert (await user.next_turn(after, 9)).text == "two"
    last = await user.next_turn((*after, Message("user", "two"), Message("assistant", "ok")), 0)
    assert last.ends and not last.text


@pytest.mark.parametrize("messages", [(), ("one", " ")])
def test_a_scheduled_user_needs_something_to_say(messages):
    with pytest.raises(ValueError, match="at least one message"):
        ScheduledUser(messages)


@pytest.mark.parametrize(
    ("rewording", "loss"),
    [
        ('Oops: Ann Miller has $80 rather than $90, on her "blue card".', None),
        ('oops, ann miller has eighty, not ninety dollars, "blue card"', None),
        ('Oops, Ann Miller has $80 on her "blue card".', "the value 90 is missing"),
        ('Ann Miller has $80, not $90, since 3 days, "blue card".', "the value 3 was never there"),
        ('Ann has $80, not $90, "blue card".', "'ann miller' is missing"),
        ("Ann Miller has $80, not $90.", "'blue card' is missing"),
        ("", "the value 80 is missing"),
        ('Ann Miller has $80, not $90, "blue card"' + " and so on" * 50, "it is empty or far too long"),
    ],
)
def test_lost_meaning_is_named(rewording, loss):
    assert lost_meaning(POINT, rewording) == loss


def test_a_question_must_stay_one():
    assert lost_meaning("How many cats?", "There are cats.") == "the question is missing"
    assert lost_meaning("How many cats?", "tell me the cats") is None


def test_critical_tokens_are_numbers_strings_and_long_names():
    found = critical_tokens("We met Ann Miller of New York at 5, with 'a card' and `code`.")
    assert set(found.values) == {5}
    assert found.quoted == {"a card", "code"}
    assert "ann miller of new york" in found.names


def _model(*texts: str) -> ScriptedChatModel:
    queue = list(texts)

    def script(request, rng):
        return json.dumps({"message": queue.pop(0) if len(queue) > 1 else queue[0]})

    return ScriptedChatModel(script)


async def test_a_reworded_user_takes_the_models_words_when_they_keep_the_meaning():
    user = RewordedUser(_model("hey, how many cats r there?"), ("How many cats are there?",))
    turn = await user.next_turn((), 1)
    assert turn.text == "hey, how many cats r there?" and turn.completion is not None and not turn.flags
    assert (await user.next_turn((Message("user", "x"), Message("assistant", "y")), 1)).ends


async def test_a_second_attempt_is_made_before_the_rules_words_are_used():
    model = _model("it is 90", 'Ann Miller: $80, not $90, "blue card"')
    turn = await RewordedUser(model, (POINT,)).next_turn((), 1)
    assert turn.text == 'Ann Miller: $80, not $90, "blue card"' and model.calls == 2
    hopeless = _model("it is 90")
    turn = await RewordedUser(hopeless, (POINT,)).next_turn((), 1)
    assert turn.text == POINT and turn.flags == (FALLBACK,) and hopeless.calls == 2


@pytest.mark.parametrize("text", ["How can I help you today? How many cats?", "   "])
async def test_words_that_are_out_of_role_or_empty_are_not_used(text):
    turn = await RewordedUser(_model(text), ("How many cats are there?",)).next_turn((), 1)
    assert turn.flags == (FALLBACK,)


async def test_unusable_replies_count_as_failures_but_a_broken_model_does_not_hide():
    turn = await RewordedUser(ScriptedChatModel(lambda request, rng: "no json"), (POINT,)).next_turn((), 1)
    assert turn.flags == (FALLBACK,)

    def broken(request, rng):
        raise ChatModelError("down")

    with pytest.raises(ChatModelError):
        await RewordedUser(ScriptedChatModel(broken), (POINT,)).next_turn((), 1)


async def test_the_model_sees_the_point_and_the_last_reply_but_no_other_message():
    seen = []

    def script(request, rng):
        seen.append(request)
        return json.dumps({"message": "and two?"})

    user = RewordedUser(ScriptedChatModel(script), ("How many cats have six toes?", "What about two?"), persona_named("hasty"))
    await user.next_turn((Message("user", "How many cats have six toes?"), Message("assistant", "Nine do.")), 1)
    text = "\n".join(message.content for message in seen[0].messages)
    assert "What about two?" in text and "Nine do." in text and "six toes" not in text and "on a phone" in text
    assert seen[0].role == "user"


@pytest.mark.parametrize("name", sorted(PERSONAS))
def test_personas_change_the_words_and_keep_the_meaning(name):
    changed = kept = total = 0
    for conversion in conversions():
        for seed in range(4):
            messages = evolve(conversion, Shape(7, 2, 2), MATH, seed).messages
            styled = [in_style(text, PERSONAS[name], derive_seed(seed, number)) for number, text in enumerate(messages)]
            assert styled == [in_style(text, PERSONAS[name], derive_seed(seed, n)) for n, text in enumerate(messages)]
            assert all(lost_meaning(text, other) is None for text, other in zip(messages, styled, strict=True))
            changed += styled != list(messages)
            kept += meaning_kept(conversion, styled)
            total += 1
    assert changed >= total - 2
    assert kept / total >= 0.95


def test_slips_spare_names_numbers_and_quotes():
    text = 'Charlotte bought "several blankets" and seventeen lanterns in Portsmouth yesterday.'
    for seed in range(60):
        styled = in_style(text, PERSONAS["careless"], seed)
        assert "Charlotte" in styled and "Portsmouth" in styled and '"several blankets"' in styled and "seventeen" in styled
    assert len({in_style(text, PERSONAS["careless"], seed) for seed in range(60)}) > 5


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=120), st.sampled_from(sorted(PERSONAS)), st.integers(0, 2**32))
def test_no_style_ever_loses_what_is_checked(text, name, seed):
    styled = in_style(text, PERSONAS[name], seed)
    assert styled == text or lost_meaning(text, styled) is None


def test_an_unknown_persona_is_refused():
    with pytest.raises(ConfigurationError, match="option persona is 'pirate'; it must be one of"):
        persona_named("pirate")
