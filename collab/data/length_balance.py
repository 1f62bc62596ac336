"""Pairs that do not teach length: chosen and rejected replies of about the same length, as often longer as shorter.

Chosen replies differ from rejected ones in length on average, and DPO learns the shorter road: to write longer, or shorter. So,
over a whole dataset, with F the share of all scored replies that are shorter than a reply (ties count half),

1. only pairs are possible whose two replies differ by at most 1/n in F: of one n-quantile of lengths, wherever it starts;
2. of these, each turn gives the ones with the largest MR gaps;
3. the pairs are put into n strata by their length, and in each, of those whose chosen reply is the longer one and those where it
   is the shorter one, the more frequent kind loses its pairs with the smallest gaps until there are as many of both.

What is left is worth less than it was: where MR follows length alone, nothing but pairs of equal length remains.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LengthPair:
    """A possible pair, without its texts: where it stands (task, user node), its nodes, MR gap and lengths in characters."""

    turn: tuple[str, int]
    chosen: int
    rejected: int
    gap: float
    chosen_length: int
    rejected_length: int

    @property
    def longer(self) -> int:
        """1 where the chosen reply is the longer one, -1 where it is the shorter one, 0 for equals."""
        return (self.chosen_length > self.rejected_length) - (self.chosen_length < self.rejected_length)


def balanced_by_length(
    pairs: Sequence[LengthPair], lengths: Sequence[int], quantiles: int, pairs_per_turn: int
) -> list[LengthPair]:
    """Return the balanced choice of `pairs`, in their order. `lengths` are those of all scored replies."""
    ordered = sorted(lengths)
    by_turn: dict[tuple[str, int], list[LengthPair]] = defaultdict(list)
    for pair in pairs:
        if abs(share_below(ordered, pair.chosen_length) - share_below(ordered, pair.rejected_length)) <= 1 / quantiles + 1e-9:
            by_turn[pair.turn].append(pair)
    strata: dict[int, list[LengthPair]] = defaultdict(list)
    for turn in by_turn.values():
        for pair in sorted(turn, key=_largest_gap)[:pairs_per_turn]:
            middle = share_below(ordered, pair.chosen_length) + share_below(ordered, pair.rejected_length)
            strata[min(int(middle / 2 * quantiles), quantiles - 1)].append(pair)
    kept: set[LengthPair] = set()
    for stratum in strata.values():
        longer = sorted((pair for pair in stratum if pair.longer > 0), key=_largest_gap)
        shorter = sorted((pair for pair in stratum if pair.longer < 0), key=_largest_gap)
        both = min(len(longer), len(shorter))
        kept.update(longer[:both], shorter[:both], (pair for pair in stratum if not pair.longer))
    return [pair for pair in pairs if pair in kept]


def share_below(ordered: Sequence[int], length: int) -> float:
    """Return the share of the ordered lengths that are below `length`, those equal to it counting half."""
    return (bisect.bisect_left(ordered, length) + bisect.bisect_right(ordered, length)) / 2 / len(ordered)


def _largest_gap(pair: LengthPair) -> tuple[float, tuple[str, int], int, int]:
    return (-pair.gap, pair.turn, pair.chosen, pair.rejected)
