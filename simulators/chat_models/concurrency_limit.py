"""How many calls may be under way at one endpoint: a limit that finds its own size.

Additive increase, multiplicative decrease, as in TCP congestion control (Jacobson 1988): the limit grows while calls are
answered and it is the limit that holds them back, and is halved when the endpoint says that it has too much to do (429, 503,
time-outs). Until the first such sign it doubles each round trip, after that it grows by one.
"""

from __future__ import annotations


class AdaptiveLimit:
    """A limit between 1 and `maximum`, starting at `initial` (both in calls)."""

    def __init__(self, initial: int, maximum: int) -> None:
        self._limit = float(min(initial, maximum))
        self._maximum = float(maximum)
        self._starting = True
        self.epoch = 0

    @property
    def limit(self) -> int:
        """Calls that may be under way at once."""
        return int(self._limit)

    def answered(self, in_flight: int) -> None:
        """Note a good answer while `in_flight` calls (this one included) were under way."""
        if in_flight < int(self._limit):
            return  # the limit held nobody back, so the answer says nothing about a higher one
        self._limit = min(self._maximum, self._limit + (1.0 if self._starting else 1.0 / self._limit))

    def congested(self, epoch: int) -> None:
        """Note a sign of congestion from a call that was sent when `epoch` was this value.

        All calls that were under way at the last decrease meet the same congestion: they decrease the limit once, together.
        """
        if epoch != self.epoch:
            return
        self.epoch += 1
        self._starting = False
        self._limit = max(1.0, self._limit / 2)
