"""Sharded users: what they say, when they leave, and that they hold no state."""

import json
import random

import pytest

from simulators.chat_models.scripted import ScriptedChatModel
from simulators.conversation import Message
from simulators.errors import ConfigurationError
from simulators.users.guards import ROLE_FLIP
from simulators.users.shard_tracking import SNOWBALL_NEW, hidden_shards, told_by_turn
from simulators.users.sharded import (
    FELL_BACK,
    INVALID_SHARD_ID,
    INVENTED_NUMBER,
    NOT_RECOGNISABLE,
    RECAP_HEADER,
    UNUSABLE_REPLY,
    ModelShardedUser,
    RecapUser,
    ShardedUser,
    SingleTurnUser,
    SnowballUser,
    concat,
    recap,
)

SHARDS = ("How many rolls are left?", "The baker fills 12 trays.", "Each tray holds 6 rolls.", "She sells 40 of the rolls.")


async def play(user, reply="I see.", turns=20, seed=0):
    """Play a conversation whose assistant always replies the same (or with `reply(conversation)`); return it."""
    conversation = ()
    for turn in range(turns):
        said = await user.next_turn(conversation, seed + turn)
        if said.ends:
            break
        conversation += (Message("user", said.text),)
        conversation += (Message("assistant", reply(conversation) if callable(reply) else reply),)
    return conversation


def user_texts(conversation):
    return [message.content for message in conversation if message.role == "user"]


async def test_the_rule_user_tells_the_shards_in_order_and_leaves_after_the_last_reply():
    conversation = await play(ShardedUser(SHARDS))
    assert user_texts(conversation) == list(SHARDS)
    assert conversation[-1].role == "assistant"


async def test_the_rule_user_answers_what_it_is_asked():
    conversation = await play(ShardedUser(SHARDS), reply="How many rolls does she sell?")
    assert user_texts(conversation)[:2] == [SHARDS[0], SHARDS[3]]


async def test_the_rule_user_puts_its_preamble_before_the_opening_only():
    conversation = await play(ShardedUser(SHARDS, preamble="SCHEMA\n\n"))
    assert user_texts(conversation) == [f"SCHEMA\n\n{SHARDS[0]}", *SHARDS[1:]]


async def test_forks_need_no_copied_state():
    """One user object carries on two forks and an unrelated conversation, each from its own text."""
    user = ShardedUser(SHARDS)
    trunk = (Message("user", SHARDS[0]),)
    asks_sales = (*trunk, Message("assistant", "How many does she sell?"))
    says_nothing = (*trunk, Message("assistant", "Go on."))
    assert (await user.next_turn(asks_sales, 0)).text == SHARDS[3]
    assert (await user.next_turn(says_nothing, 0)).text == SHARDS[1]
    longer = (*asks_sales, Message("user", SHARDS[3]), Message("assistant", "Go on."))
    assert (await user.next_turn(longer, 0)).text == SHARDS[1]
    assert (await user.next_turn((), 0)).text == SHARDS[0]


@pytest.mark.parametrize("shards", [(), ("How many?", " ")])
def test_empty_shards_are_refused(shards):
    with pytest.raises(ConfigurationError, match="at least one shard"):
        ShardedUser(shards)


async def test_single_turn_users_say_everything_once():
    assert user_texts(await play(SingleTurnUser("All at once."))) == ["All at once."]
    (text,) = user_texts(await play(SingleTurnUser(concat(SHARDS), preamble="P: ")))
    assert text.startswith("P: ") and all(f"- {shard}" in text for shard in SHARDS)


async def test_shuffled_points_keep_the_intent_in_front_and_depend_on_the_seed_alone():
    user = SingleTurnUser(points=tuple(f"point {number}" for number in range(8)))
    texts = [(await user.next_turn((), seed)).text for seed in range(20)]
    assert all(text.splitlines()[1] == "- point 0" for text in texts)
    assert all(sorted(text.splitlines()) == sorted(texts[0].splitlines()) for text in texts)
    assert len(set(texts)) > 10
    assert texts[3] == (await user.next_turn((), 3)).text


async def test_snowball_restates_everything_told_and_adds_one():
    conversation = await play(SnowballUser(ShardedUser(SHARDS), SHARDS))
    texts = user_texts(conversation)
    assert texts[0] == SHARDS[0] and len(texts) == len(SHARDS)
    for turn, text in enumerate(texts[1:], start=1):
        old, new = text.split(f"\n\n{SNOWBALL_NEW}\n")
        assert new == SHARDS[turn]
        assert old.splitlines()[1:] == [f"- {shard}" for shard in SHARDS[:turn]]
    assert told_by_turn(conversation, SHARDS) == [{0}, {1}, {2}, {3}]


def test_snowball_refuses_shards_that_hold_its_mark():
    shards = ("How many?", f"Look: {SNOWBALL_NEW}")
    with pytest.raises(ConfigurationError, match="rephrase it"):
        SnowballUser(ShardedUser(shards), shards)


async def test_recap_adds_one_turn_that_restates_everything():
    sharded = await play(ShardedUser(SHARDS))
    conversation = await play(RecapUser(ShardedUser(SHARDS), SHARDS))
    assert conversation[: len(sharded)] == sharded
    assert user_texts(conversation)[len(SHARDS) :] == [recap(SHARDS)]
    assert recap(SHARDS).startswith(RECAP_HEADER) and all(f"- {shard}" in recap(SHARDS) for shard in SHARDS)


def model_user(script, **settings):
    return ModelShardedUser(ScriptedChatModel(lambda request, rng: script(request, rng)), SHARDS, **settings)


def told(response, shard_id):
    return json.dumps({"response": response, "shard_id": shard_id})


REPHRASED = {
    1: "How many rolls are left over?",
    2: "the baker fills 12 of her trays",
    3: "and each of the trays holds 6 rolls",
    4: "oh, she sells 40 rolls",
}


def a_good_simulator(request, rng):
    left = request.messages[-1].content.rpartition("not told yet: ")[2].split("\n")[0]
    choice = rng.choice([int(each) for each in left.split(", ")])
    return f"Sure!\n```json\n{told(REPHRASED[choice], choice)}\n```"


async def test_the_model_user_rephrases_and_tells_every_shard_once():
    orders = set()
    for seed in range(12):
        conversation = await play(model_user(a_good_simulator), seed=seed * 100)
        texts = user_texts(conversation)
        assert texts[0] == SHARDS[0], "the opening is verbatim, without a model"
        assert sorted(texts[1:]) == sorted(REPHRASED[number] for number in (2, 3, 4))
        assert not hidden_shards(conversation, SHARDS)
        orders.add(tuple(texts))
    assert len(orders) > 1, "the seed decides"


async def test_the_model_user_is_stateless_too():
    user = model_user(a_good_simulator)
    for seed in range(6):
        conversation = await play(user, seed=seed * 100)
        for end in range(2, len(conversation), 2):
            turn = end // 2
            again = await model_user(a_good_simulator).next_turn(conversation[:end], seed * 100 + turn)
            assert again.text == conversation[end].content


async def test_the_model_is_never_shown_gold_and_sees_the_transcript():
    seen = []

    def script(request, rng):
        seen.append(request)
        return a_good_simulator(request, rng)

    await play(model_user(script, preamble="SCHEMA "), reply="What else?")
    assert seen[0].messages[0] == seen[-1].messages[0], "what never changes comes first, for prefix caches"
    assert "What else?" in seen[-1].messages[1].content and "SCHEMA" not in seen[-1].messages[1].content
    assert seen[0].role == "user" and seen[0].sampling.temperature == 1.0
    assert "Facts that you have not told yet: 2, 3, 4\n" in seen[0].messages[1].content


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("", UNUSABLE_REPLY),
        ("I fill 12 trays.", UNUSABLE_REPLY),
        ('{"response": "12 trays", "shard_id": "two"}', UNUSABLE_REPLY),
        (told("", 2), UNUSABLE_REPLY),
        (told("the baker fills 12 trays", 7), INVALID_SHARD_ID),
        (told("How many rolls are left?", 1), INVALID_SHARD_ID),  # told already
        (told("the baker fills 12 trays", 0), INVALID_SHARD_ID),
        (told("she has some trays", 2), NOT_RECOGNISABLE),
        (told("the baker fills 12 trays", 3), NOT_RECOGNISABLE),  # says one, claims another
        (told("The baker fills 12 trays. Each tray holds 6 rolls.", 2), NOT_RECOGNISABLE),  # tells two
        (told("the baker fills 12 trays", -1), NOT_RECOGNISABLE),  # tells one, claims none
        (told("the baker fills 12 trays of 7 kinds", 2), INVENTED_NUMBER),
        (told("the baker fills 12 trays, 6 each", 2), INVENTED_NUMBER),  # leaks a number of a hidden shard
    ],
)
async def test_a_bad_reply_is_flagged_and_never_costs_the_conversation(reply, reason):
    turn = await model_user(lambda request, rng: reply).next_turn((Message("user", SHARDS[0]), Message("assistant", "Ok")), 5)
    assert turn.text == SHARDS[1]
    assert turn.flags == (FELL_BACK, reason, reason, reason)
    conversation = await play(model_user(lambda request, rng: reply))
    assert user_texts(conversation)[:2] == list(SHARDS[:2])


async def test_a_second_attempt_may_mend_it_and_keeps_the_reason():
    def script(request, rng):
        return told(REPHRASED[2], 2) if rng.random() < 0.5 else "no json"

    turns = [
        await model_user(script, attempts=8).next_turn((Message("user", SHARDS[0]), Message("assistant", "Ok")), seed)
        for seed in range(20)
    ]
    assert all(turn.text == REPHRASED[2] for turn in turns)
    assert {turn.flags.count(UNUSABLE_REPLY) for turn in turns} >= {0, 1}
    assert all(FELL_BACK not in turn.flags for turn in turns)


async def test_minus_one_tells_nothing_and_the_conversation_goes_on():
    answers = iter([told("Hm, I do not know that.", -1), told(REPHRASED[2], 2)])
    user = model_user(lambda request, rng: next(answers))
    first = await user.next_turn((Message("user", SHARDS[0]), Message("assistant", "Who is she?")), 0)
    assert first.text == "Hm, I do not know that." and not first.flags
    later = (Message("user", SHARDS[0]), Message("assistant", "Who?"), Message("user", first.text), Message("assistant", "Ok"))
    assert (await user.next_turn(later, 1)).text == REPHRASED[2]


async def test_a_user_that_sounds_like_an_assistant_is_flagged():
    flipped = "The baker fills 12 trays. How can I help you today?"
    turn = await model_user(lambda request, rng: told(flipped, 2)).next_turn(
        (Message("user", SHARDS[0]), Message("assistant", "Ok")), 0
    )
    assert turn.text == flipped and ROLE_FLIP in turn.flags


async def test_the_model_user_inside_snowball_and_recap():
    inner = model_user(a_good_simulator)
    conversation = await play(SnowballUser(inner, SHARDS), seed=3)
    assert not hidden_shards(conversation, SHARDS) and len(user_texts(conversation)) == len(SHARDS)
    conversation = await play(RecapUser(inner, SHARDS), seed=3)
    assert user_texts(conversation)[-1] == recap(SHARDS)


async def test_no_attempts_are_refused():
    with pytest.raises(ConfigurationError, match="attempts is 0"):
        model_user(a_good_simulator, attempts=0)


async def test_real_shards_are_all_told_word_for_word(collab_data):
    """Every record of the data folder, with an assistant that asks random things: one shard a turn, and none is lost."""
    from collab.environments.lost_in_conversation.loading import load_instructions

    paths = [*(collab_data / "lost-in-conversation").glob("*.jsonl")]
    instructions = [each for path in paths for each in load_instructions(path, "evaluation").instructions]
    instructions += load_instructions(collab_data / "lic-sharded-gsm8k" / "sharded_gsm8k_v2.json", "train").instructions
    rng = random.Random(0)
    for instruction in instructions:
        shards = instruction.shard_texts
        asked = [f"What about {' '.join(shard.split()[-3:])}?" for shard in shards]
        conversation = await play(ShardedUser(shards), reply=lambda _, asked=asked: rng.choice(asked), turns=40)
        assert sorted(user_texts(conversation)) == sorted(shards), instruction.id
