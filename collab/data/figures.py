"""The figures of a dataset: CollabLLM's Table 5, what the MR gap is made of, how lengths differ, how the simulator behaved."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from collab.data.views import Pair, candidates, components_of, kept_nodes, mr_of
from simulators.conversation import ConversationTree, departures
from simulators.users.guards import FlagCounter

DATASETS = ("sft", "dpo", "public")
"""The datasets that a build can give, in the order in which a card lists them."""
FAULT_RATE = 0.1
"""A simulated user that raises a flag in a larger share of its turns is worth a warning."""


@dataclass(frozen=True, slots=True)
class DatasetStatistics:
    """The columns of CollabLLM's Table 5, and what happened to the futures.

    `chosen_mr` and `rejected_mr` are (mean, standard deviation) over the pairs, in units of R*; None without any pair.
    `length_gap` is the mean number of characters by which chosen replies are longer than rejected ones, `chosen_longer` the share
    of pairs in which they are. `gap_shares` says what the MR gap is made of: each reward component's part of it, which add up to
    1 where every component has a mean for every reply. `duplicates` are rows left out because an equal one was there.
    `user_faults` are the rates of the flags that simulated user turns raised; a leaving without a word is a turn, too. `rows`
    counts rows by dataset and split.
    """

    conversations: int
    turns: int
    pairs: int
    chosen_mr: tuple[float, float] | None
    rejected_mr: tuple[float, float] | None
    length_gap: float | None
    futures: int
    failed_futures: int
    stopped_tasks: int
    chosen_longer: float | None = None
    gap_shares: dict[str, float] = field(default_factory=dict)
    duplicates: int = 0
    user_faults: dict[str, float] = field(default_factory=dict)
    rows: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def turns_per_conversation(self) -> float:
        return self.turns / self.conversations if self.conversations else 0.0

    @property
    def warnings(self) -> list[str]:
        """What a reader must know before anything else: how far the simulated user is to be trusted."""
        return [
            f"the simulated user raised the flag {flag} in {rate:.0%} of its turns; look at its conversations before you train"
            for flag, rate in self.user_faults.items()
            if rate > FAULT_RATE
        ]


class Figures:
    """Collects the figures of a dataset while its rows are made, one tree at a time."""

    def __init__(self) -> None:
        self._turns: list[int] = []
        self._chosen: list[float] = []
        self._rejected: list[float] = []
        self._length_gaps: list[int] = []
        self._component_gaps: defaultdict[str, list[float]] = defaultdict(list)
        self._futures = self._failed = self._stopped = 0
        self._flags = FlagCounter()
        self._rows: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.duplicates = 0

    def add_tree(self, tree: ConversationTree) -> None:
        """Count a tree's futures and its simulated user's turns."""
        self._stopped += "stopped" in tree.metadata
        for node in tree.nodes:
            if node.author == "user":
                self._flags.add(node.annotations.get("flags", ()))
            for departure in departures(node):
                self._flags.add(departure.flags)
        for node in kept_nodes(tree):
            if node.message.role != "user":
                continue
            for reply in candidates(tree, node.id):
                estimate = reply.annotations["mr"]
                self._futures += estimate["used"] + estimate["failed"]
                self._failed += estimate["failed"]
                for future in estimate.get("extra_futures", ()):
                    self._futures += 1
                    self._failed += future["reward"] is None

    def add_conversation(self, row: Mapping[str, Any], split: str) -> None:
        """Count an SFT row."""
        self._turns.append(row["turns"])
        self._rows["sft"][split] += 1

    def add_pair(self, pair: Pair, tree: ConversationTree, split: str) -> None:
        """Count a DPO row."""
        better, worse = mr_of(pair.chosen), mr_of(pair.rejected)
        assert better is not None and worse is not None
        self._chosen.append(better)
        self._rejected.append(worse)
        self._length_gaps.append(len(pair.chosen.message.content) - len(pair.rejected.message.content))
        weights = tree.metadata.get("reward")
        chosen, rejected = components_of(pair.chosen), components_of(pair.rejected)
        for name in chosen.keys() & rejected.keys():
            weight = weights.get(name, 1.0) if isinstance(weights, Mapping) else 1.0
            self._component_gaps[name].append(weight * (chosen[name] - rejected[name]))
        self._rows["dpo"][split] += 1

    def add_row(self, dataset: str, split: str) -> None:
        """Count a row of any other dataset."""
        self._rows[dataset][split] += 1

    def statistics(self) -> DatasetStatistics:
        """Return the figures of everything that was added."""
        pairs = len(self._chosen)
        gap = math.fsum(self._chosen) - math.fsum(self._rejected)
        return DatasetStatistics(
            conversations=len(self._turns),
            turns=sum(self._turns),
            pairs=pairs,
            chosen_mr=_mean_and_deviation(self._chosen),
            rejected_mr=_mean_and_deviation(self._rejected),
            length_gap=_mean(self._length_gaps),
            futures=self._futures,
            failed_futures=self._failed,
            stopped_tasks=self._stopped,
            chosen_longer=_mean([float(each > 0) for each in self._length_gaps]),
            gap_shares={name: math.fsum(gaps) / gap for name, gaps in sorted(self._component_gaps.items())} if gap > 0 else {},
            duplicates=self.duplicates,
            user_faults=self._flags.rates(),
            rows={name: dict(sorted(self._rows[name].items())) for name in DATASETS if name in self._rows},
        )


def candidate_mrs(trees: Iterable[ConversationTree]) -> list[float]:
    """Return the MR of every scored candidate, for a distribution plot."""
    return [
        worth
        for tree in trees
        for node in kept_nodes(tree)
        if node.message.role == "user"
        for reply in candidates(tree, node.id)
        if (worth := mr_of(reply)) is not None
    ]


def as_plain(figures: DatasetStatistics) -> dict[str, Any]:
    """Return the statistics as plain data, for metrics.jsonl."""
    return asdict(figures) | {"turns_per_conversation": figures.turns_per_conversation}


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _mean_and_deviation(values: Sequence[float]) -> tuple[float, float] | None:
    mean = _mean(values)
    if mean is None:
        return None
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
