"""The five properties of a sharding (section 3.1), checked as far as rules can.

P1 nothing is lost or added, P2 the first shard is the intent and gives nothing else away, P3 the others can come in any order,
P4 as many shards as possible, P5 as few changes of wording as possible. A finding on P1, or too few shards, is a `fault`: the
sharding must not be used. Everything else is a `remark` for the person who reviews.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from collab.environments.lost_in_conversation.sharding.segmentation import FEWEST_SEGMENTS
from collab.language.numbers import values_in
from collab.language.sentences import tidy
from simulators.users.shard_tracking import content_words

_ORDERED = re.compile(
    r"\b(?:then|afterwards?|after that|next|the (?:rest|remaining|remainder|others?)|remaining|the former|the latter|"
    r"finally|this (?:amount|number|total)|that (?:amount|number|total)|these|those)\b",
    re.I,
)
_UNRESOLVED = re.compile(r"^(?:he|she|it|they|his|her|its|their|this|that|these|those)\b", re.I)
_LONGEST_OPENER = 25
"""Words; a longer opener is seldom only an intent."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One observation about a sharding: which property, how bad, and what it is."""

    code: Literal["P1", "P2", "P3", "P4", "P5"]
    severity: Literal["fault", "remark"]
    text: str

    def __str__(self) -> str:
        return f"{self.code} {self.severity}: {self.text}"


def check(original: str, shards: Sequence[str]) -> tuple[Finding, ...]:
    """Return what is to be said about a sharding of `original`; the first shard is the intent."""
    findings: list[Finding] = []
    if len(shards) < FEWEST_SEGMENTS:
        findings.append(Finding("P4", "fault", f"{len(shards)} shards; a conversation needs {FEWEST_SEGMENTS}"))
    findings += _numbers_kept(original, shards)
    findings += _opener(shards)
    for number, shard in enumerate(shards[1:], start=2):
        if _UNRESOLVED.match(shard):
            findings.append(Finding("P3", "remark", f"shard {number} opens with {shard.split()[0]!r}: who or what is it?"))
        elif (word := _ORDERED.search(shard)) is not None:
            findings.append(Finding("P3", "remark", f"shard {number} has {word.group()!r}, which needs an order"))
    findings += _wording(original, shards)
    return tuple(findings)


def has_fault(findings: Sequence[Finding]) -> bool:
    """True where the sharding must not be used."""
    return any(finding.severity == "fault" for finding in findings)


def _numbers_kept(original: str, shards: Sequence[str]) -> list[Finding]:
    """Every number of the original stands in exactly one shard, as often as it stood there."""
    before = Counter(values_in(tidy(original)))
    after = Counter(value for shard in shards for value in values_in(tidy(shard)))
    found = []
    if lost := before - after:
        found.append(Finding("P1", "fault", f"numbers lost: {', '.join(str(value) for value in lost.elements())}"))
    if added := after - before:
        found.append(Finding("P1", "fault", f"numbers added or repeated: {', '.join(str(value) for value in added.elements())}"))
    return found


def _opener(shards: Sequence[str]) -> list[Finding]:
    if not shards:
        return []
    opener = shards[0]
    found = []
    if values_in(opener):
        found.append(Finding("P2", "remark", "the opener holds a number: does it give a fact away?"))
    if len(opener.split()) > _LONGEST_OPENER:
        found.append(Finding("P2", "remark", f"the opener has {len(opener.split())} words; it should be short"))
    return found


def _wording(original: str, shards: Sequence[str]) -> list[Finding]:
    before, after = content_words(original), content_words(" ".join(shards))
    lost, added = sorted(before - after), sorted(after - before)
    found = []
    if len(lost) > 0.2 * len(before):
        found.append(Finding("P1", "remark", f"words of the original that no shard has: {', '.join(lost)}"))
    if len(added) > 0.3 * len(before):
        found.append(Finding("P5", "remark", f"words that the original does not have: {', '.join(added)}"))
    return found
