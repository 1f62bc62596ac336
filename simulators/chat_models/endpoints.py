"""The servers behind one model: which of them takes a call, how many calls each carries, and which of them are out of order.

Requests that share a prefix have the same favourite server (rendezvous hashing), so that its prefix cache is hit. Calls beyond a
server's limit queue at their favourite; a server with room and no queue of its own takes from the longest queue, so prefixes
stay together under load and no server idles. All state belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from dataclasses import dataclass, field

from simulators.chat_models.concurrency_limit import AdaptiveLimit
from simulators.errors import ChatModelError

_LONGEST_CLOSING_S = 8.0
_SLACK_CALLS = 8
_FAIR_SHARE = 1.5  # a favourite may carry this many times the mean, plus the slack, before others help out


@dataclass(slots=True, eq=False)
class Endpoint:
    """One server. `url` ends in the API's version (`.../v1`); `root` is the server itself.

    `closed_until` (monotonic seconds) is when calls may go there again. `failing_since` is when its present series of failures
    began, None while it answers.
    """

    url: str
    root: str
    limit: AdaptiveLimit
    in_flight: int = 0
    has_answered: bool = False
    answered: int = 0
    failed: int = 0
    closed_until: float = 0.0
    failing_since: float | None = None
    last_failure: float = 0.0
    unreachable_in_a_row: int = 0
    waiting: deque[asyncio.Future[Endpoint]] = field(default_factory=deque)
    reopening: asyncio.TimerHandle | None = None
    hash_key: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.hash_key = hashlib.blake2b(self.url.encode(), digest_size=16).digest()

    def has_room(self, now: float) -> bool:
        """True where one more call may be sent right now."""
        return self.in_flight < self.limit.limit and now >= self.closed_until


class EndpointPool:
    """Hands out places at endpoints: `acquire`, then `release`, whatever happens in between.

    `patience_s`: an endpoint that has answered nothing for so long is given up; what waits for it fails, and only a probe now
    and then finds out whether it is back.
    """

    def __init__(self, endpoints: list[Endpoint], patience_s: float) -> None:
        self.endpoints = endpoints
        self._patience_s = patience_s

    def reset(self) -> None:
        """Forget places and queues: the event loop they belonged to is gone."""
        for endpoint in self.endpoints:
            endpoint.in_flight = 0
            endpoint.waiting.clear()
            endpoint.reopening = None

    async def acquire(self, affinity: bytes, *, again: bool = False) -> Endpoint:
        """Return an endpoint with a place taken on it. Requests with equal `affinity` get the same one where they can.

        A call that was tried before (`again`) goes to the head of the queue.

        Raises:
            ChatModelError: every endpoint has been given up.
        """
        now = time.monotonic()
        order = self._by_preference(affinity)
        favourite = order[0]
        if len(order) > 1:
            favourite = next((endpoint for endpoint in order if now >= endpoint.closed_until), order[0])
            heaviest = _FAIR_SHARE * sum(endpoint.in_flight for endpoint in order) / len(order) + _SLACK_CALLS
            for endpoint in order:
                if endpoint.has_room(now) and not endpoint.waiting and endpoint.in_flight < heaviest:
                    favourite = endpoint
                    break
        if favourite.has_room(now) and not favourite.waiting:
            favourite.in_flight += 1
            return favourite
        if self._given_up(favourite, now) and now < favourite.closed_until:
            raise _gone(favourite, now)
        place: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()
        if again:
            favourite.waiting.appendleft(place)
        else:
            favourite.waiting.append(place)
        self._serve_when_open(favourite, now)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self.release(place.result())
            raise

    def release(self, endpoint: Endpoint) -> None:
        """Give a place back and let the next call have it."""
        endpoint.in_flight -= 1
        self._serve(endpoint)

    def note_answer(self, endpoint: Endpoint) -> None:
        """Note that an endpoint answered a call well; call it before `release`."""
        endpoint.answered += 1
        endpoint.has_answered = True
        endpoint.failing_since = None
        endpoint.unreachable_in_a_row = 0
        endpoint.limit.answered(endpoint.in_flight)

    def note_failure(self, endpoint: Endpoint, *, unreachable: bool, closed_s: float | None) -> None:
        """Note a failed attempt. `closed_s` is how long the server asked to be left alone."""
        now = time.monotonic()
        endpoint.failed += 1
        if endpoint.failing_since is None or now - endpoint.last_failure > 2 * self._patience_s:
            endpoint.failing_since = now  # an old failure that nothing followed is not the beginning of this one
        endpoint.last_failure = now
        if not unreachable:
            endpoint.has_answered = True
        elif now >= endpoint.closed_until:  # many calls find out together; the wait grows once
            endpoint.unreachable_in_a_row += 1
            closed_s = max(closed_s or 0.0, min(_LONGEST_CLOSING_S, 0.25 * 2 ** min(endpoint.unreachable_in_a_row, 10)))
        if closed_s:
            endpoint.closed_until = max(endpoint.closed_until, now + min(closed_s, self._patience_s))
        if self._given_up(endpoint, now):
            while endpoint.waiting:
                place = endpoint.waiting.popleft()
                if not place.done():
                    place.set_exception(_gone(endpoint, now))

    def _given_up(self, endpoint: Endpoint, now: float) -> bool:
        return endpoint.failing_since is not None and now - endpoint.failing_since > self._patience_s

    def _by_preference(self, affinity: bytes) -> list[Endpoint]:
        if len(self.endpoints) == 1:
            return self.endpoints
        return sorted(
            self.endpoints, key=lambda endpoint: hashlib.blake2b(affinity, key=endpoint.hash_key, digest_size=8).digest()
        )

    def _serve(self, endpoint: Endpoint) -> None:
        now = time.monotonic()
        while endpoint.has_room(now):
            queue = endpoint.waiting or max((other.waiting for other in self.endpoints), key=len)
            if not queue:
                return
            place = queue.popleft()
            if not place.done():  # a cancelled call's place is skipped
                endpoint.in_flight += 1
                place.set_result(endpoint)
        self._serve_when_open(endpoint, now)

    def _serve_when_open(self, endpoint: Endpoint, now: float) -> None:
        if endpoint.closed_until > now and endpoint.waiting and endpoint.reopening is None:
            loop = asyncio.get_running_loop()
            endpoint.reopening = loop.call_later(endpoint.closed_until - now + 0.001, self._reopen, endpoint)

    def _reopen(self, endpoint: Endpoint) -> None:
        endpoint.reopening = None
        self._serve(endpoint)


def _gone(endpoint: Endpoint, now: float) -> ChatModelError:
    since = now - (endpoint.failing_since or now)
    return ChatModelError(f"the server at {endpoint.url} has answered nothing for {since:.0f} s")
