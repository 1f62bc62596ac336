"""Table 2 from evaluated conversations: who asked when it was right, and who answered."""

from typing import Any

import pytest

from collab.evaluation.clarification import action_counts, clarification_figures
from collab.evaluation.run import EvaluatedConversation
from simulators.conversation import Outcome


def conversation(ambiguous: Any, right: float | None, run: int = 0) -> EvaluatedConversation:
    components = {} if right is None else {"action_accuracy": right}
    return EvaluatedConversation("t", run, Outcome.ENDED, 0.0, components, (True,), 3, {"ambiguous": ambiguous})


CONVERSATIONS = [
    *(conversation(True, 1.0) for _ in range(3)),
    conversation(True, 0.0),
    *(conversation(False, 1.0) for _ in range(4)),
    conversation(False, 0.0),
]


def test_counts_are_by_kind_of_question() -> None:
    counts = action_counts("ours", CONVERSATIONS)
    assert counts is not None
    assert (counts.ambiguous, counts.ambiguous_asked, counts.clear, counts.clear_answered) == (4, 3, 5, 4)


def test_the_figures_are_those_of_table_2() -> None:
    figures = clarification_figures(CONVERSATIONS)
    assert figures["ambiguous_accuracy"] == 0.75
    assert figures["clear_accuracy"] == 0.8
    assert figures["macro_accuracy"] == pytest.approx(0.775)
    asks, answers = 2 * 3 / (2 * 3 + 1 + 1), 2 * 4 / (2 * 4 + 1 + 1)
    assert figures["macro_f1"] == pytest.approx((asks + answers) / 2)


def test_actions_that_could_not_be_told_are_left_out() -> None:
    counts = action_counts("ours", [*CONVERSATIONS, conversation(True, None), conversation(None, 1.0)])
    assert counts is not None and counts.ambiguous + counts.clear == 9


def test_conversations_about_something_else_have_no_such_figures() -> None:
    assert action_counts("ours", [conversation(None, None)]) is None
    assert clarification_figures([]) == {}
    only_clear = clarification_figures([conversation(False, 1.0)])
    assert only_clear == {"clear_accuracy": 1.0}
