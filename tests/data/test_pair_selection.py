"""Which pairs a dataset gets: thresholds on components, ranks of adaptive sampling, and balance by length."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collab.data.length_balance import LengthPair, balanced_by_length, share_below
from collab.data.views import PairSettings, dpo_rows, sft_rows
from simulators.conversation import ConversationTree
from simulators.errors import ConfigurationError
from tests.data.small_trees import small_tree


def with_components(tree: ConversationTree, **by_text: dict[str, float]) -> ConversationTree:
    """The tree with reward components on the replies of these texts."""
    for node in tree.nodes:
        if node.message.content in by_text:
            node.annotations["mr"]["components"] = by_text[node.message.content]
    return tree


def pairs(trees: list[ConversationTree], settings: PairSettings) -> list[tuple[str, str]]:
    return [(row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in dpo_rows(trees, settings)]


def test_a_threshold_on_any_component_drops_pairs_and_cuts_conversations() -> None:
    tree = with_components(
        small_tree("t", [("one", [("a", 1.0), ("b", 0.0)]), ("two", [("c", 0.9), ("d", 0.1)])]),
        a={"accuracy": 1.0, "interactivity": 0.4}, c={"accuracy": 0.0, "interactivity": 0.9},
    )  # fmt: skip
    assert pairs([tree], PairSettings()) == [("a", "b"), ("c", "d")]
    assert pairs([tree], PairSettings(min_components={"accuracy": 0.5})) == [("a", "b")]
    assert pairs([tree], PairSettings(min_components={"interactivity": 0.5})) == [("c", "d")]
    assert pairs([tree], PairSettings(min_components={"accuracy": 0.5, "interactivity": 0.5})) == []
    assert pairs([tree], PairSettings(min_components={"clarity": 0.0})) == []  # missing is not 0
    assert [row["turns"] for row in sft_rows([tree])] == [2]


def test_ranks_decide_where_the_builder_gave_them() -> None:
    tree = small_tree("t", [("one", [("looks best", 0.9), ("is best", 0.8), ("is worst", 0.1)])])
    for text, rank in (("looks best", 1), ("is best", 0), ("is worst", 2)):
        node = next(node for node in tree.nodes if node.message.content == text)
        node.annotations["candidate"]["rank"] = rank
    assert pairs([tree], PairSettings()) == [("is best", "is worst")]
    assert pairs([tree], PairSettings(pairs_per_turn=2)) == [("is best", "is worst")]  # the other gap is below 0
    assert pairs([tree], PairSettings(min_gap=0.7)) == [("is best", "is worst")]


@pytest.mark.parametrize("settings", [{"pairs_per_turn": 0}, {"length_quantiles": 1}, {"length_quantiles": 0}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        PairSettings(**settings)  # type: ignore[arg-type]


# ---------------------------------------------------------------- balance by length


def replies(*lengths_and_worths: tuple[int, float]) -> list[tuple[str, float | None]]:
    return [(f"{number}".ljust(length, "x"), worth) for number, (length, worth) in enumerate(lengths_and_worths)]


def test_where_length_alone_decides_nothing_is_left() -> None:
    trees = [small_tree(f"t{n}", [("q", replies((10 + n, 0.1), (60 + n, 0.5), (61 + n, 0.6)))]) for n in range(6)]
    assert len(pairs(trees, PairSettings())) == 6
    assert pairs(trees, PairSettings(length_quantiles=2)) == []


def test_long_and_short_replies_win_equally_often() -> None:
    longer = [small_tree(f"l{n}", [("q", replies((50, 0.1), (55, 0.2 + n / 100)))]) for n in range(5)]
    shorter = [small_tree(f"s{n}", [("q", replies((55, 0.1), (50, 0.5 + n / 100)))]) for n in range(3)]
    found = pairs(longer + shorter, PairSettings(length_quantiles=2))
    assert Counter(len(chosen) > len(rejected) for chosen, rejected in found) == {True: 3, False: 3}
    kept = [row["task_id"] for row in dpo_rows(longer + shorter, PairSettings(length_quantiles=2))]
    assert kept == ["l2", "l3", "l4", "s0", "s1", "s2"]  # of the longer ones those with the largest gaps


def test_a_turn_gives_its_best_pair_of_like_length_even_if_neither_is_the_best_reply() -> None:
    trees = [
        small_tree("a", [("q", replies((200, 0.9), (50, 0.6), (55, 0.1)))]),
        small_tree("b", [("q", replies((200, 0.9), (55, 0.6), (50, 0.1)))]),
        small_tree("c", [("q", replies((201, 0.9), (202, 0.9)))]),
        small_tree("d", [("q", replies((100, 0.9), (120, 0.9), (140, 0.9)))]),
    ]
    found = pairs(trees, PairSettings(length_quantiles=4))
    assert [(len(chosen), len(rejected)) for chosen, rejected in found] == [(50, 55), (55, 50)]


def test_thresholds_hold_for_balanced_pairs_too() -> None:
    trees = [
        small_tree("a", [("q", replies((50, 0.6), (55, 0.1)))]),
        small_tree("b", [("q", replies((55, 0.6), (50, 0.1)))]),
    ]
    for settings in (PairSettings(0.55, length_quantiles=2), PairSettings(0.0, 0.7, length_quantiles=2)):
        assert pairs(trees, settings) == []
    assert len(pairs(trees, PairSettings(0.5, 0.6, length_quantiles=2))) == 2


turns = st.lists(
    st.lists(st.tuples(st.integers(1, 300), st.floats(-1, 1).map(lambda worth: round(worth, 3))), min_size=2, max_size=5),
    min_size=1,
    max_size=12,
)


@given(turns, st.integers(2, 6), st.integers(1, 3))
def test_length_never_tells_chosen_from_rejected(drawn: list[list[tuple[int, float]]], quantiles: int, per_turn: int) -> None:
    possible, lengths = [], []
    for number, turn in enumerate(drawn):
        lengths += [length for length, _ in turn]
        for better, (length, worth) in enumerate(turn):
            for worse, (other, less) in enumerate(turn):
                if worth > less:
                    possible.append(LengthPair((f"t{number}", 0), better, worse, worth - less, length, other))
    kept = balanced_by_length(possible, lengths, quantiles, per_turn)
    assert sum(pair.longer for pair in kept) == 0
    assert max(Counter(pair.turn for pair in kept).values(), default=0) <= per_turn
    assert set(kept) <= set(possible)
    ordered = sorted(lengths)
    for pair in kept:
        shares = [share_below(ordered, length) for length in (pair.chosen_length, pair.rejected_length)]
        assert abs(shares[0] - shares[1]) <= 1 / quantiles + 1e-9
    assert balanced_by_length(possible, lengths, quantiles, per_turn) == kept
