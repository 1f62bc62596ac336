import pytest

from simulators.conversation import Outcome
from simulators.errors import ConfigurationError, TooManyFailures
from simulators.failure_share import FailureShare


def test_the_run_stops_above_the_share_and_says_why() -> None:
    share = FailureShare(max_share=0.5, minimum=4)
    share.add(Outcome.INFRA_ERROR, "server at port 81 gone after 3.5 s")
    share.add(Outcome.INFRA_ERROR, "server at port 82 gone after 4 s")
    share.add(Outcome.USER_ERROR, "empty")
    with pytest.raises(TooManyFailures) as caught:
        share.add(Outcome.ENDED)
    text = str(caught.value)
    assert "3 of the last 4 conversations failed" in text and "50%" in text
    assert "infra_error: server at port 81 gone after 3.5 s (2 times)" in text
    assert share.failed == 3
    assert share.outcomes[Outcome.ENDED] == 1


def test_what_the_policy_caused_is_no_failure() -> None:
    share = FailureShare(max_share=0.0, minimum=1)
    for outcome in (Outcome.ENDED, Outcome.WINDOW_FULL, Outcome.TRUNCATED, Outcome.POLICY_ERROR):
        share.add(outcome, "whatever")
    assert share.failed == 0
    assert share.most_frequent_error() is None
    for outcome in (Outcome.USER_ERROR, Outcome.JUDGE_ERROR, Outcome.INFRA_ERROR):
        with pytest.raises(TooManyFailures):
            FailureShare(max_share=0.0, minimum=1).add(outcome)


def test_a_few_failures_do_not_stop_a_run() -> None:
    share = FailureShare(max_share=0.1, minimum=10)
    for number in range(1000):
        share.add(Outcome.USER_ERROR if number % 10 == 9 else Outcome.ENDED, "odd")
    assert share.failed == 100


def test_a_late_breakdown_is_noticed_soon() -> None:
    share = FailureShare(max_share=0.5, minimum=10, window=20)
    for _ in range(5000):
        share.add(Outcome.ENDED)
    with pytest.raises(TooManyFailures, match="11 of the last 20"):
        for _ in range(20):
            share.add(Outcome.INFRA_ERROR, "gone")


def test_endlessly_different_errors_take_no_endless_memory() -> None:
    share = FailureShare(max_share=1.0)
    for number in range(2000):
        share.add(Outcome.JUDGE_ERROR, "".join(chr(97 + int(digit)) for digit in str(number)) + "x" * 10_000)
    assert len(share.errors) <= 200
    assert share.failed == 2000


@pytest.mark.parametrize("wrong", [{"max_share": 1.5}, {"max_share": -0.1}, {"minimum": 0}, {"minimum": 30, "window": 20}])
def test_settings_must_make_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        FailureShare(**wrong)  # type: ignore[arg-type]
