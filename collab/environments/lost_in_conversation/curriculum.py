"""In which order problems come: few shards first, more once the policy copes.

A level is a number of shards; an instruction that has more is told in that many (`sharding.gradual`), one that has fewer as it
is. Level 1 is everything at once, so the curriculum starts where the policy is good and adds turns only.

`schedule` is a fixed order, for trainers that read a dataset from front to back. `Curriculum` moves on when the mean score at
the current level is good enough (as RLAAR's does), for trainers that draw the next tasks and report how they went.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collab.environments.lost_in_conversation.schema import Instruction
from collab.environments.lost_in_conversation.sharding.gradual import merged
from collab.environments.lost_in_conversation.training import task_from_instruction
from collab.tasks.task import Task
from simulators.errors import ConfigurationError


def at_level(instruction: Instruction, level: int) -> Instruction:
    """Return the instruction told in at most `level` shards."""
    return merged(instruction, min(level, len(instruction.shards)))


def schedule(instructions: Sequence[Instruction], steps: int, *, first_level: int = 1, seed: int = 0) -> list[Task]:
    """Return `steps` tasks in order: the levels from `first_level` to the most shards there are, each for an equal share.

    Within a level the instructions come in random order, each once before any comes again.

    Raises:
        ConfigurationError: for no instructions, or a first level below 1.
    """
    most = _most_shards(instructions, first_level)
    levels = range(first_level, most + 1)
    rng = random.Random(seed)
    order: list[Instruction] = []
    tasks: list[Task] = []
    for step in range(steps):
        if not order:
            order = rng.sample(list(instructions), len(instructions))
        level = levels[step * len(levels) // steps]
        tasks.append(task_from_instruction(at_level(order.pop(), level)))
    return tasks


@dataclass(slots=True)
class Curriculum:
    """Draws tasks at the current level, and goes on when the mean of the last `window` scores there reaches `threshold`.

    A share `rehearsal` of draws comes from a random lower level, so that what was learned is kept. Its state is plain data, for
    checkpoints.

    Raises:
        ConfigurationError: for no instructions, or settings out of range.
    """

    instructions: Sequence[Instruction]
    first_level: int = 1
    threshold: float = 0.7
    window: int = 64
    rehearsal: float = 0.2
    level: int = field(init=False)
    _scores: deque[float] = field(init=False, repr=False)
    _most: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._most = _most_shards(self.instructions, self.first_level)
        if self.window < 1 or not 0 <= self.rehearsal < 1:
            raise ConfigurationError(f"curriculum: window {self.window} must be at least 1, rehearsal {self.rehearsal} in [0, 1)")
        self.level = self.first_level
        self._scores = deque(maxlen=self.window)

    def draw(self, rng: random.Random) -> tuple[Task, int]:
        """Return the next task and its level."""
        level = self.level
        if level > self.first_level and rng.random() < self.rehearsal:
            level = rng.randrange(self.first_level, level)
        return task_from_instruction(at_level(rng.choice(self.instructions), level)), level

    def report(self, level: int, score: float) -> None:
        """Take in how a task of some level went (0..1); only the current level's scores count."""
        if level != self.level:
            return
        self._scores.append(score)
        if len(self._scores) == self.window and sum(self._scores) >= self.threshold * self.window and self.level < self._most:
            self.level += 1
            self._scores.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"level": self.level, "scores": list(self._scores)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        self.level = int(state["level"])
        self._scores = deque(state["scores"], maxlen=self.window)


def _most_shards(instructions: Sequence[Instruction], first_level: int) -> int:
    if not instructions:
        raise ConfigurationError("a curriculum needs at least one instruction")
    most = max(len(instruction.shards) for instruction in instructions)
    if not 1 <= first_level <= most:
        raise ConfigurationError(f"curriculum: first_level is {first_level}; it must lie between 1 and {most}, the most shards")
    return most
