"""What was told is read from the conversation alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.conversation import Message
from simulators.users.shard_tracking import (
    SNOWBALL_NEW,
    best_answer,
    hidden_shards,
    numbers,
    told_by_message,
    told_by_turn,
)

SHARDS = (
    "how many racquets can Andy string?",
    "Andy works at the pro shop of a tennis resort.",
    "he needs to restring 12 racquets in total.",
    "3 racquets will use synthetic gut string.",
    "5 racquets will be strung with polyester string.",
    "stringing with synthetic gut takes him 15 minutes per racquet on average.",
)


def said(*texts: str) -> tuple[Message, ...]:
    """User messages with an assistant's "ok" between them."""
    return tuple(message for text in texts for message in (Message("user", text), Message("assistant", "ok")))


def test_the_opening_tells_the_intent_and_nothing_else():
    assert told_by_turn(said(SHARDS[0]), SHARDS) == [{0}]
    assert hidden_shards(said(SHARDS[0]), SHARDS) == [1, 2, 3, 4, 5]
    assert hidden_shards((), SHARDS) == [0, 1, 2, 3, 4, 5]


def test_word_for_word_in_any_order():
    turns = told_by_turn(said(SHARDS[0], SHARDS[4], SHARDS[2]), SHARDS)
    assert turns == [{0}, {4}, {2}]


@pytest.mark.parametrize(
    ("message", "position"),
    [
        ("oh, and 3 of the racquets use synthetic gut", 3),
        ("There are twelve racquets to restring in total.", 2),
        ("Polyester string goes on 5 racquets", 4),
        ("Synthetic gut takes 15 minutes for each racquet, on average", 5),
        ("He works at a tennis resort, in the pro shop", 1),
    ],
)
def test_a_light_rephrasing_is_recognised(message, position):
    assert told_by_message(message, SHARDS, range(1, 6)) == {position}


@pytest.mark.parametrize(
    "message",
    [
        "I don't know that, sorry.",
        "Yes, that is what I mean.",
        "some racquets will use synthetic gut string",  # the number is missing
        "4 racquets will use synthetic gut string",  # another number
        "12",
        "",
    ],
)
def test_other_messages_tell_nothing(message):
    assert told_by_message(message, SHARDS, range(1, 6)) == frozenset()


def test_two_shards_that_fit_equally_well_are_not_guessed_between():
    shards = ("how many?", "The cat eats 3 fish.", "The dog eats 3 fish.")
    assert told_by_message("it eats 3 fish", shards, [1, 2]) == frozenset()
    assert told_by_message("the dog, it eats 3 fish", shards, [1, 2]) == {2}


def test_quoted_texts_and_identifiers_must_stay():
    shards = ("make a plot", "Use the 'create_histogram' function to create the plot", "load data_set.csv first")
    assert told_by_message("please create the plot using the 'create_histogram' function", shards, [1, 2]) == {1}
    assert told_by_message("please create the plot using the histogram function", shards, [1, 2]) == frozenset()
    assert told_by_message("first load the data", shards, [1, 2]) == frozenset()


def test_a_shard_inside_a_longer_one_is_not_told_with_it():
    shards = ("how many?", "Dad gave Olaf 10 cars", "Dad gave Olaf 10 cars, 5 less than Mum.")
    assert told_by_turn(said(shards[0], shards[2], shards[1]), shards) == [{0}, {2}, {1}]


def test_a_shard_does_not_end_inside_a_number_or_word():
    shards = ("how many?", "He has 1", "He has 12 cats")
    assert told_by_turn(said(shards[0], "He has 12 cats"), shards) == [{0}, {2}]


def test_equal_shards_are_told_one_by_one():
    shards = ("how many?", "Two more.", "Two more.")
    assert told_by_turn(said(shards[0], "Two more.", "Two more."), shards) == [{0}, {1}, {2}]


def test_a_list_of_all_shards_tells_all_and_a_restatement_tells_nothing_new():
    everything = "All of it:\n" + "\n".join(f"- {shard}" for shard in SHARDS)
    assert told_by_turn(said(everything), SHARDS) == [set(range(6))]
    restated = f"So far:\n- {SHARDS[0]}\n- {SHARDS[1]}\n\n{SNOWBALL_NEW}\n{SHARDS[2]}"
    assert told_by_turn(said(SHARDS[0], SHARDS[1], restated), SHARDS) == [{0}, {1}, {2}]


def test_a_preamble_tells_nothing():
    preamble = "Andy works at the pro shop of a tennis resort. (schema)\n\n"
    assert told_by_turn(said(preamble + SHARDS[0]), SHARDS, preamble) == [{0}]


def test_numbers_have_one_spelling():
    assert numbers("$1,000.50, twelve and 5.0 and 50%") == {"1000.5", "12", "5", "50"}
    assert numbers("one of them") == frozenset()


def test_the_best_answer_shares_the_rarest_words():
    assert best_answer("How long does synthetic gut take per racquet?", SHARDS, [2, 3, 4, 5]) == 5
    assert best_answer("What about polyester?", SHARDS, [2, 3, 4, 5]) == 4
    assert best_answer("What is your name?", SHARDS, [2, 3, 4, 5]) is None
    assert best_answer("Synthetic gut is nice.", SHARDS, [2, 3, 4, 5]) is None, "nothing was asked"
    assert best_answer("Please tell me about the resort.", SHARDS, [1, 2]) == 1
    assert best_answer("What now?", SHARDS, []) is None


words = st.text(alphabet="abcdefghij ", min_size=1, max_size=30)


@given(st.lists(words.filter(str.strip), min_size=2, max_size=6), st.randoms())
@settings(max_examples=200, deadline=None)
def test_shards_told_word_for_word_are_always_read_back(texts, rng):
    """Whatever the shards are and in whatever order they come, each turn tells exactly one, and in the end none is hidden."""
    shards = tuple(f"{text.strip()} {number}" for number, text in enumerate(texts))
    order = list(range(1, len(shards)))
    rng.shuffle(order)
    turns = told_by_turn(said(shards[0], *(shards[position] for position in order)), shards)
    assert turns == [{0}, *({position} for position in order)]


@given(st.text(max_size=400))
@settings(max_examples=200, deadline=None)
def test_any_text_can_be_read(text):
    assert told_by_message(text, SHARDS, range(1, 6)) <= set(range(1, 6))
    assert best_answer(text, SHARDS, range(1, 6)) in {None, 1, 2, 3, 4, 5}
