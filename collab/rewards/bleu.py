"""BLEU of the extracted document against the reference, with sacrebleu and its signature on record.

The reference implementation calls a tokenised-input function on raw strings, so that it measures *characters*: unrelated texts
score about 0.2 and a paraphrase about 0.6. That variant is kept as `CharacterBleu`, for the `upstream` preset only.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from collab.rewards.component import ScoringError, reference_of
from collab.rewards.extraction import Extract, by_rule, document
from collab.rewards.worker_pool import WorkerFailure, WorkerPool, WorkerUnavailable, shared_worker_pool
from collab.tasks.task import Task
from simulators.conversation import Conversation, Outcome

MAX_ORDER = 4


@dataclass(frozen=True, slots=True)
class Bleu:
    """Sentence BLEU in [0, 1] (sacrebleu / 100, effective order, so that short texts are not 0 by definition).

    References are `task.metadata["references"]` where there are several (ToTTo), else `task.reference`. The tokenising runs in a
    worker process: a reply may be long.
    """

    extract: Extract = field(default_factory=lambda: by_rule(document))
    deadline_s: float = 30.0
    pool: WorkerPool | None = None
    name: str = "bleu"
    source: str = "CollabLLM section 4 (MediumDocEdit-Chat); Lost in Conversation, data-to-text"
    value_range: tuple[float, float] = (0.0, 1.0)

    _function = "collab.rewards.bleu:sentence_bleu"

    async def score(self, conversation: Conversation, task: Task) -> float:
        """Return BLEU / 100; no document at all scores 0.

        Raises:
            ScoringError: the worker failed.
            ConfigurationError: the task has no reference.
        """
        references = references_of(task, self.name)
        text = await self.extract(conversation)
        if text is None:
            return 0.0
        try:
            value = await (self.pool or shared_worker_pool()).call(
                self._function, {"text": text, "references": references}, self.deadline_s
            )
        except WorkerFailure as error:
            outcome = Outcome.INFRA_ERROR if isinstance(error, WorkerUnavailable) else Outcome.JUDGE_ERROR
            raise ScoringError(f"{self.name}: {error}", outcome) from None
        return float(value)


@dataclass(frozen=True, slots=True)
class CharacterBleu(Bleu):
    """BLEU over characters, as the reference implementation computes it. See the module; do not use it for anything new."""

    source: str = "CollabLLM reference implementation"

    _function = "collab.rewards.bleu:character_bleu"


def references_of(task: Task, component: str) -> list[str]:
    """Return all reference texts of a task."""
    several = task.metadata.get("references")
    if isinstance(several, Sequence) and not isinstance(several, str) and several:
        return [str(reference) for reference in several]
    return [reference_of(task, component)]


@functools.cache
def _metric():  # type: ignore[no-untyped-def]  # sacrebleu is imported where it is used
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(effective_order=True)


def sentence_bleu(request: dict[str, object]) -> float:
    """Return BLEU / 100 of `request["text"]` against `request["references"]`, in [0, 1]."""
    return _unit(_metric().sentence_score(request["text"], request["references"]).score)


def corpus_bleu(texts: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    """Return corpus BLEU / 100 over whole conversations' documents, and sacrebleu's signature.

    `references[i]` are the references of `texts[i]`; where their numbers differ, the missing ones are left out.
    """
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    most = max(len(each) for each in references)
    streams = [[each[index] if index < len(each) else None for each in references] for index in range(most)]
    score = metric.corpus_score(list(texts), streams).score
    return _unit(score), str(metric.get_signature())


def bleu_signature() -> str:
    """Return sacrebleu's signature of `Bleu`, to be stored with every figure made with it."""
    metric = _metric()
    metric.sentence_score("", [""])  # the signature knows the number of references only after a score
    return str(metric.get_signature())


def character_bleu(request: dict[str, object]) -> float:
    """Return BLEU over characters (orders 1 to 4, no smoothing, brevity penalty) against the closest reference in length."""
    text, references = request["text"], request["references"]
    assert isinstance(text, str) and isinstance(references, list)
    if not text:
        return 0.0
    logs = 0.0
    for order in range(1, MAX_ORDER + 1):
        counts = _ngrams(text, order)
        allowed: Counter[str] = Counter()
        for reference in references:
            allowed |= _ngrams(reference, order)
        matched = sum((counts & allowed).values())
        if not matched:
            return 0.0
        logs += math.log(matched / counts.total()) / MAX_ORDER
    closest = min((abs(len(reference) - len(text)), len(reference)) for reference in references)[1]
    brevity = 0.0 if len(text) > closest else 1 - closest / len(text)
    return math.exp(logs + brevity)


def _ngrams(text: str, order: int) -> Counter[str]:
    return Counter(text[start : start + order] for start in range(len(text) - order + 1))


def _unit(percent: float) -> float:
    return min(1.0, max(0.0, percent / 100))  # rounding makes a perfect score 100.00000000000004
