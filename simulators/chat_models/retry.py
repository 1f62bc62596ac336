"""When to try again: jittered exponential back-off, and what a server's Retry-After header asks for."""

from __future__ import annotations

import email.utils
import random
import time

LONGEST_BACKOFF_S = 20.0


def backoff_s(failures: int, first_s: float, rng: random.Random) -> float:
    """Return how long to wait after the `failures`-th failure in a row (from 1), in seconds.

    Doubles from `first_s` up to `LONGEST_BACKOFF_S`; a random half of it is dropped, so that calls that failed together do not
    come back together.
    """
    longest = min(LONGEST_BACKOFF_S, first_s * 2.0 ** min(failures - 1, 30))
    return longest * rng.uniform(0.5, 1.0)


def retry_after_s(header: str | None, now: float | None = None) -> float | None:
    """Return the wait that a Retry-After header asks for, in seconds from now; None when there is none to be read.

    Both forms of RFC 9110 section 10.2.3 are read, seconds and HTTP dates; decimals are accepted because servers send them.
    `now` is the wall-clock time in seconds since the epoch.
    """
    if header is None:
        return None
    header = header.strip()
    if header.isascii() and header.replace(".", "", 1).isdigit() and len(header) <= 12:
        return float(header)
    try:
        moment = email.utils.parsedate_to_datetime(header)
        return max(0.0, moment.timestamp() - (time.time() if now is None else now))
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
