"""One rollout: a batch of conversations with the current policy, the same for every online method.

The rollout runs on an event loop of its own, in a thread that lives as long as the trainer, so that the connections of users and
judges outlast one step. The training thread waits for it and samples meanwhile, with the policy in eval mode and no gradient
recorded.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from collab.training.episode import Episode, EpisodeStart, Opening
from collab.training.episode_player import EpisodePlayer
from collab.training.event_loop import EventLoopThread, TrainingThread, gather_all
from collab.training.rollout_journal import RolloutJournal
from simulators.conversation import Outcome

Gather = Callable[[list[Any]], list[Any]]
"""Concatenates a list over all ranks, in rank order, on every rank."""


@dataclass(slots=True)
class RolloutStats:
    """What one rollout did on this rank: seconds on the wall and in the engine, sampled tokens, episodes read back."""

    seconds: float = 0.0
    sampling_s: float = 0.0
    sampled_tokens: int = 0
    reused: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter)


class Rollout:
    """Plays batches of conversations; see the module.

    `gather` joins lists over ranks, so that all samples of a task start from one opening, wherever they are played. A sampler in
    this process does its work in `training_thread`.
    """

    def __init__(
        self,
        player: EpisodePlayer,
        journal: RolloutJournal | None,
        gather: Gather = list,
        training_thread: TrainingThread | None = None,
    ) -> None:
        self._player = player
        self._journal = journal
        self._gather = gather
        self._loop = EventLoopThread(training_thread or TrainingThread())
        self.stats = RolloutStats()

    def play(self, places: Sequence[tuple[EpisodeStart, int]], round_name: str, *, turn_worths: bool) -> list[Episode]:
        """Play one conversation for each (start, sample index) and return them in that order."""

        async def one(start: EpisodeStart, sample: int, opening: Opening) -> list[Episode]:
            return [await self._player.play(start, opening, round_name, sample, turn_worths=turn_worths)]

        played = self._run(places, round_name, one)
        return [episode for (episode,) in played]

    def branch(self, starts: Sequence[EpisodeStart], round_name: str, size: int) -> list[Episode]:
        """Play one branching conversation for each start: `size` rows a turn, in the order of starts and turns."""

        async def one(start: EpisodeStart, sample: int, opening: Opening) -> list[Episode]:
            return await self._player.branch(start, opening, round_name, size)

        return [episode for rows in self._run([(start, 0) for start in starts], round_name, one) for episode in rows]

    def _run(
        self,
        places: Sequence[tuple[EpisodeStart, int]],
        round_name: str,
        one: Callable[[EpisodeStart, int, Opening], Coroutine[Any, Any, list[Episode]]],
    ) -> list[list[Episode]]:
        started = time.perf_counter()
        counts = self._player.policy.sampler.counts
        counts.tokens, counts.busy_s = 0, 0.0
        if self._journal:
            self._journal.move_on()
        openings = self._openings([start for start, _ in places], round_name)

        async def finished(start: EpisodeStart, sample: int) -> list[Episode]:
            if self._journal and (recalled := self._journal.recall(round_name, start.id, sample)) is not None:
                return recalled
            episodes = await one(start, sample, openings[start.id])
            if self._journal:
                self._journal.record(round_name, start.id, sample, episodes)
            return episodes

        async def everything() -> list[list[Episode]]:
            return await gather_all([finished(start, sample) for start, sample in places])

        played = self._loop.run(everything())
        reused = self._journal.reused if self._journal else 0
        if self._journal:
            self._journal.reused = 0
        outcomes = Counter(episode.outcome for episodes in played for episode in episodes)
        self.stats = RolloutStats(time.perf_counter() - started, counts.busy_s, counts.tokens, reused, outcomes)
        return played

    def _openings(self, starts: Sequence[EpisodeStart], round_name: str) -> dict[str, Opening]:
        """Open every start once; where ranks share a start, all take the opening of the lowest rank."""
        distinct = {start.id: start for start in starts}

        async def everything() -> list[Opening]:
            return await gather_all([self._player.open(start, round_name) for start in distinct.values()])

        mine = list(zip(distinct, self._loop.run(everything()), strict=True))
        openings: dict[str, Opening] = {}
        for start_id, opening in self._gather(mine):
            openings.setdefault(start_id, opening)
        return openings

    def forget_finished(self) -> None:
        """Start the journal anew: a checkpoint holds everything that came before."""
        if self._journal:
            self._journal.forget()

    def close(self) -> None:
        """Release the sampler, the journal and the event loop."""
        self._loop.run(self._player.policy.sampler.aclose())
        self._loop.close()
        if self._journal:
            self._journal.close()


@contextmanager
def sampling_mode(model: Any) -> Iterator[None]:
    """Put a model into eval mode (LoRA dropout off) and back into the mode it was in."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
