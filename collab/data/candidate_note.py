"""What a tree notes about a candidate reply, beside its MR: where it comes from, and how it did among its turn's candidates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from simulators.conversation import Node

_KEY = "candidate"


@dataclass(frozen=True, slots=True)
class CandidateNote:
    """One candidate of a turn.

    `index` is its place in the order of sampling, `source` the name of what sampled it, `rank` its place by MR (0 is the best;
    None where it has no MR, or nothing was ranked). `role` is set for the best and the worst of two or more ranked candidates.
    """

    index: int
    source: str
    rank: int | None = None
    role: Literal["chosen", "rejected"] | None = None

    @classmethod
    def ranked(cls, index: int, source: str, rank: int | None, ranks: int) -> CandidateNote:
        """Return the note of a candidate with `rank` (None: none) among `ranks` ranked candidates."""
        if ranks < 2 or rank not in (0, ranks - 1):
            return cls(index, source, rank)
        return cls(index, source, rank, "chosen" if rank == 0 else "rejected")

    def write(self, node: Node) -> None:
        """Note it at the candidate's node."""
        node.annotations[_KEY] = {name: value for name, value in asdict(self).items() if name != "role" or value is not None}


def candidate_note(node: Node) -> CandidateNote | None:
    """Return what is noted at a node, None where it is no candidate."""
    noted = node.annotations.get(_KEY)
    if not isinstance(noted, Mapping):
        return None
    return CandidateNote(noted.get("index", 0), noted.get("source", ""), noted.get("rank"), noted.get("role"))
