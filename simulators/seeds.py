"""Seeds derived from what a call *is*, never from when it happens.

Two runs with the same run seed draw the same numbers whatever order their calls finish in. A user's seed does not depend on
the candidate it answers, so that all candidates of a turn face the same users: common random numbers, which is what makes the
difference between two Multiturn-aware Rewards far less noisy than either of them.
"""

import hashlib


def derive_seed(*parts: str | int) -> int:
    """Return a 63-bit seed: the first 8 bytes of SHA-256 over `parts`, which name the draw (run, task, turn, role, ...)."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
