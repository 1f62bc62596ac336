"""Segments and rephrases with a chat model, and believes nothing it says without a check.

Two calls (section 3.2): the first copies segments out of the instruction, letter by letter; the second turns each into a shard.
Replies are lines, `INTENT: ...` and `FACT: ...`. A segment must stand in the instruction and must not overlap another; a shard
must keep exactly the numbers of its segment. What fails is asked for again with the reason, and given up after `attempts`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from collab.environments.lost_in_conversation.sharding.segmentation import FEWEST_SEGMENTS, NotShardable, Segments
from collab.language.numbers import values_in
from simulators.chat_models.protocol import ChatModel, ChatRequest, SamplingSettings
from simulators.conversation import Conversation, Message
from simulators.seeds import derive_seed

Parsed = TypeVar("Parsed")

_LINE = re.compile(r"^[ \t]*(?:[-*\d.)]+[ \t]*)?(INTENT|FACT)[ \t]*:[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ModelSharder:
    """Shards instructions with a chat model; the same instruction and seed give the same requests."""

    model: ChatModel
    attempts: int = 3
    seed: int = 0
    sampling: SamplingSettings = field(default_factory=lambda: SamplingSettings(max_tokens=1024, temperature=0.7))

    async def segment(self, text: str) -> Segments:
        """Return the verbatim segments of an instruction.

        Raises:
            NotShardable: no attempt gave segments that pass the checks, or the model finds fewer than three.
            ChatModelError: as the model does.
        """
        prompt = (Message("system", _SEGMENT), Message("user", text))
        return await self._ask(prompt, lambda reply: _checked_segments(reply, text), "segment")

    async def rephrase(self, text: str, segments: Segments) -> tuple[str, ...]:
        """Return the shards of an instruction, the intent first.

        Raises:
            NotShardable: no attempt gave shards that pass the checks.
            ChatModelError: as the model does.
        """
        listing = "\n".join([f"INTENT: {segments.intent}", *(f"FACT: {fact}" for fact in segments.facts)])
        prompt = (Message("system", _REPHRASE), Message("user", f"The whole text:\n{text}\n\nIts pieces:\n{listing}"))
        return await self._ask(prompt, lambda reply: _checked_shards(reply, segments), "rephrase")

    async def _ask(self, prompt: Conversation, read: Callable[[str], Parsed], purpose: str) -> Parsed:
        messages, reason = prompt, ""
        for attempt in range(self.attempts):
            seed = derive_seed(self.seed, purpose, prompt[-1].content, attempt)
            (completion,) = await self.model.complete(ChatRequest(messages, self.sampling, seed=seed, role="judge"))
            try:
                return read(completion.text)
            except _Unusable as error:
                reason = str(error)
            complaint = Message("user", f"That cannot be used: {reason}. Please do it again.")
            messages = (*prompt, Message("assistant", completion.text[:4000] or "(nothing)"), complaint)
        raise NotShardable(f"the model could not {purpose} it: {reason}")


class _Unusable(ValueError):
    """The text says what is wrong with a reply."""


def _lines(reply: str) -> tuple[str, list[str]]:
    found = _LINE.findall(reply)
    intents = [text for label, text in found if label == "INTENT"]
    if len(intents) != 1:
        raise _Unusable(f"it has {len(intents)} lines that start with INTENT:, and must have one")
    return intents[0], [text for label, text in found if label == "FACT"]


def _checked_segments(reply: str, text: str) -> Segments:
    intent, facts = _lines(reply)
    source = " ".join(text.split())
    taken: list[tuple[int, int]] = []
    for piece in (intent, *facts):
        wanted = " ".join(piece.split())
        start = source.find(wanted)
        while start >= 0 and any(start < end and begin < start + len(wanted) for begin, end in taken):
            start = source.find(wanted, start + 1)
        if start < 0:
            raise _Unusable(f"{piece[:60]!r} does not stand in the text word for word, or overlaps another piece")
        taken.append((start, start + len(wanted)))
    if lost := Counter(values_in(source)) - Counter(value for piece in (intent, *facts) for value in values_in(piece)):
        raise _Unusable(f"the number {next(iter(lost))} is in none of the pieces")
    if 1 + len(facts) < FEWEST_SEGMENTS:
        raise _Unusable(f"there are {1 + len(facts)} pieces, and at least {FEWEST_SEGMENTS} are needed")
    return Segments(intent, tuple(facts))


def _checked_shards(reply: str, segments: Segments) -> tuple[str, ...]:
    intent, facts = _lines(reply)
    if len(facts) != len(segments.facts):
        raise _Unusable(f"it has {len(facts)} FACT lines for {len(segments.facts)} facts")
    for shard, piece in zip((intent, *facts), (segments.intent, *segments.facts), strict=True):
        if Counter(values_in(shard)) != Counter(values_in(piece)):
            raise _Unusable(f"{shard[:60]!r} does not have exactly the numbers of {piece[:60]!r}")
    return (intent, *facts)


_SEGMENT = """\
You take a text apart in which somebody asks for something. Copy out its pieces, each word for word as it stands there:

INTENT: the piece that says what is asked for, without conditions or details
FACT: one piece of information
FACT: ...

One line for each piece. A piece holds one piece of information only; make as many as there are. Pieces do not overlap. Every
number must be in one of them. Do not change, add or leave out a word inside a piece, and write nothing but these lines."""

_REPHRASE = """\
You get a text in which somebody asks for something, cut into pieces. Write each piece as that person might say it in a chat, when
the pieces are said one at a time. Reply with the same lines in the same order:

INTENT: a short opening message that says what is wanted, and nothing else
FACT: ...

Each line must be understood without the others: say who or what is meant, not "he", "it" or "the rest". The facts must make sense
in any order. Stay close to the wording of the piece, keep every number as it is written, add no number and no information, and
write nothing but these lines."""
