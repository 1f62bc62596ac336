"""Gradual sharding (section 6.3): the same problem in 1 to n shards, so that only the number of turns changes.

Shards are merged, never cut anew, so nothing is lost and nothing is said in other words. The variants nest: each is the next
finer one with two neighbours merged, always the pair that makes the shortest shard, and never the intent.
"""

from __future__ import annotations

from collab.environments.lost_in_conversation.schema import Instruction
from simulators.errors import ConfigurationError


def merged(instruction: Instruction, count: int) -> Instruction:
    """Return the instruction in `count` shards: 1 is everything in one, 2 the intent and everything else, and so on.

    As many shards as it has give the instruction itself.

    Raises:
        ConfigurationError: for fewer than 1 or more than the instruction has.
    """
    texts = list(instruction.shard_texts)
    if not 1 <= count <= len(texts):
        raise ConfigurationError(f"{instruction.id} has {len(texts)} shards and cannot be told in {count}")
    if count == len(texts):
        return instruction
    if count == 1:
        return instruction.with_shards((_join(texts),), "/k1")
    while len(texts) > count:
        left = min(range(1, len(texts) - 1), key=lambda index: (len(texts[index]) + len(texts[index + 1]), index))
        texts[left : left + 2] = [_join(texts[left : left + 2])]
    return instruction.with_shards(tuple(texts), f"/k{count}")


def gradual_variants(instruction: Instruction, counts: tuple[int, ...] | None = None) -> dict[int, Instruction]:
    """Return the variants by their number of shards, by default 1 to all; counts above what the instruction has are left out."""
    most = len(instruction.shards)
    return {count: merged(instruction, count) for count in counts or range(1, most + 1) if count <= most}


def _join(texts: list[str]) -> str:
    """Put sentences side by side; one that ends without a stop gets one, so that they stay apart."""
    return " ".join(text if text.endswith((".", "?", "!", ">", ":")) or position == len(texts) - 1 else f"{text}."
                    for position, text in enumerate(texts))  # fmt: skip
