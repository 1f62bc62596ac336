"""Views: the rows that trees give, written out in full, and what each setting leaves out."""

import copy

from collab.data.views import PairSettings, candidates, dpo_rows, kept_nodes, mr_of, sft_rows
from simulators.conversation import ConversationTree, Message
from tests.data.small_trees import TREES


def test_kept_conversations_and_candidates() -> None:
    tree = TREES[0]
    kept = kept_nodes(tree)
    assert [node.message.content for node in kept] == ["book a table", "For when?", "Monday", "Booked for Monday."]
    assert [mr_of(node) for node in candidates(tree, kept[0].id)] == [0.5, -0.25, None, 0.0]
    assert kept_nodes(ConversationTree("empty")) == []


def test_sft_rows_in_full() -> None:
    assert list(sft_rows(TREES)) == [
        {
            "messages": [
                {"role": "user", "content": "book a table"},
                {"role": "assistant", "content": "For when?"},
                {"role": "user", "content": "Monday"},
                {"role": "assistant", "content": "Booked for Monday."},
            ],
            "task_id": "a",
            "mr": 0.75,
            "turns": 2,
        },
        {
            "messages": [{"role": "user", "content": "write a label"}, {"role": "assistant", "content": "To whom?"}],
            "task_id": "b",
            "mr": 0.75,
            "turns": 1,
        },
        {
            "messages": [{"role": "user", "content": "a sum"}, {"role": "assistant", "content": "4"}],
            "task_id": "d",
            "mr": -0.5,
            "turns": 1,
        },
    ]


def test_sft_conversations_are_cut_before_the_first_reply_that_is_not_good_enough() -> None:
    assert [row["task_id"] for row in sft_rows(TREES, min_chosen_mr=0.0)] == ["a", "b"]
    assert [row["task_id"] for row in sft_rows(TREES, min_chosen_mr=-0.5)] == ["a", "b", "d"]  # the bound itself is kept
    assert [row["task_id"] for row in sft_rows(TREES, min_chosen_mr=0.6)] == ["b"]
    falling = copy.deepcopy(TREES[0])
    kept_nodes(falling)[3].annotations["mr"]["mean"] = 0.25
    (row,) = sft_rows([falling], min_chosen_mr=0.5)
    assert ([message["content"] for message in row["messages"]], row["mr"]) == (["book a table", "For when?"], 0.5)


def test_a_conversation_does_not_end_in_a_user_message() -> None:
    tree = copy.deepcopy(TREES[1])
    last = kept_nodes(tree)[-1]
    tree.add(last.id, Message("user", "thanks"), "user").annotations["kept"] = True
    (row,) = sft_rows([tree])
    assert row["messages"][-1]["role"] == "assistant"


def test_dpo_rows_in_full() -> None:
    opening = {"role": "user", "content": "book a table"}
    assert list(dpo_rows(TREES)) == [
        {
            "prompt": [opening],
            "chosen": [{"role": "assistant", "content": "For when?"}],
            "rejected": [{"role": "assistant", "content": "Done."}],
            "task_id": "a",
            "turn": 1,
            "mr_chosen": 0.5,
            "mr_rejected": -0.25,
            "chosen_node": 1,
            "rejected_node": 2,
        },
        {
            "prompt": [opening, {"role": "assistant", "content": "For when?"}, {"role": "user", "content": "Monday"}],
            "chosen": [{"role": "assistant", "content": "Booked for Monday."}],
            "rejected": [{"role": "assistant", "content": "Booked for Friday."}],
            "task_id": "a",
            "turn": 2,
            "mr_chosen": 1.0,
            "mr_rejected": 0.25,
            "chosen_node": 6,
            "rejected_node": 7,
        },
        {
            "prompt": [{"role": "user", "content": "a sum"}],
            "chosen": [{"role": "assistant", "content": "4"}],
            "rejected": [{"role": "assistant", "content": "5"}],
            "task_id": "d",
            "turn": 1,
            "mr_chosen": -0.5,
            "mr_rejected": -1.0,
            "chosen_node": 1,
            "rejected_node": 2,
        },
    ]


def test_pairs_are_dropped_by_gap_and_by_worth() -> None:
    def pairs(settings: PairSettings) -> list[tuple[str, int]]:
        return [(row["task_id"], row["turn"]) for row in dpo_rows(TREES, settings)]

    assert pairs(PairSettings(min_gap=0.75)) == [("a", 1), ("a", 2)]  # a gap of just min_gap is kept
    assert pairs(PairSettings(min_gap=0.76)) == []
    assert pairs(PairSettings(min_chosen_mr=0.5)) == [("a", 1), ("a", 2)]
    assert pairs(PairSettings(min_chosen_mr=0.6)) == [("a", 2)]


def test_more_pairs_a_turn_are_the_next_worst() -> None:
    rows = [row for row in dpo_rows(TREES[:1], PairSettings(pairs_per_turn=5)) if row["turn"] == 1]
    assert [row["rejected"][0]["content"] for row in rows] == ["Done.", "Sure!"]
    assert {row["chosen"][0]["content"] for row in rows} == {"For when?"}


def test_the_rejected_reply_never_ties_with_the_chosen_one() -> None:
    assert list(dpo_rows(TREES[1:2], PairSettings(pairs_per_turn=3))) == []
