"""Stops a run whose conversations fail too often, and says why.

A failed future is left out of every mean. That is right for a few; above some share the mean is over whatever happened to
survive, and the money is better kept.
"""

from __future__ import annotations

import re
from collections import Counter, deque

from simulators.conversation import Outcome
from simulators.errors import ConfigurationError, TooManyFailures

_KINDS_KEPT = 200
_DIGITS = re.compile(r"\d+(?:\.\d+)?")


class FailureShare:
    """Counts outcomes of conversations. `outcomes` are the counts so far, `errors` the error texts with numbers blanked out.

    The run stops when, of the last `window` conversations (at least `minimum`), a share above `max_share` failed: so a server
    that dies late in a long run is noticed as soon as one that was dead from the start.

    Raises:
        ConfigurationError: for a share outside [0, 1], or a minimum outside [1, window].
    """

    def __init__(self, max_share: float = 0.3, minimum: int = 20, window: int = 200) -> None:
        if not 0 <= max_share <= 1:
            raise ConfigurationError(f"max_failure_share is {max_share}; it must lie in [0, 1]")
        if not 1 <= minimum <= window:
            raise ConfigurationError(f"failure share: minimum is {minimum}; it must lie in [1, {window}], the window")
        self._max_share = max_share
        self._minimum = minimum
        self._recent: deque[bool] = deque(maxlen=window)
        self._recent_failures = 0
        self.outcomes: Counter[Outcome] = Counter()
        self.errors: Counter[str] = Counter()
        self._examples: dict[str, str] = {}

    @property
    def failed(self) -> int:
        """Conversations that ended in something the policy did not cause."""
        return sum(count for outcome, count in self.outcomes.items() if not outcome.earns_reward)

    def add(self, outcome: Outcome, error: str | None = None) -> None:
        """Count how one conversation ended.

        Raises:
            TooManyFailures: too many did not end by the policy's doing.
        """
        failed = not outcome.earns_reward
        self.outcomes[outcome] += 1
        if len(self._recent) == self._recent.maxlen:
            self._recent_failures -= self._recent[0]
        self._recent.append(failed)
        self._recent_failures += failed
        if failed:
            self._note(f"{outcome.value}: {error or 'no reason given'}")
        count = len(self._recent)
        if count >= self._minimum and self._recent_failures > self._max_share * count:
            raise TooManyFailures(
                f"{self._recent_failures} of the last {count} conversations failed, more than the {self._max_share:.0%} allowed; "
                f"most often {self.most_frequent_error()}"
            )

    def most_frequent_error(self) -> str | None:
        """Return the most frequent error with one example's numbers, and how often it happened; None without errors."""
        if not self.errors:
            return None
        ((kind, count),) = self.errors.most_common(1)
        return f"{self._examples[kind]} ({count} times)"

    def _note(self, text: str) -> None:
        kind = _DIGITS.sub("#", text[:500])  # one kind of error, whatever the port, the seconds or the turn
        if kind in self.errors or len(self.errors) < _KINDS_KEPT:
            self.errors[kind] += 1
            self._examples.setdefault(kind, text[:500])
