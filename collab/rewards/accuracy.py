r"""Is the answer right? S(Extract(t), y_g) of CollabLLM equation 3 for tasks with a short answer, by rules.

Numbers are compared exactly in this process (`plain_numbers`); everything else goes to math-verify in a worker process that is
killed when it hangs (`worker_pool`). The reference comes first: math-verify is not symmetric.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from collab.rewards.component import ScoringError, reference_of
from collab.rewards.extraction import Extract, answer, by_rule, final_reply, last_boxed
from collab.rewards.plain_numbers import PlainNumber, read_number, stated_number, tidy
from collab.rewards.worker_pool import WorkerFailure, WorkerPool, WorkerUnavailable, shared_worker_pool
from collab.tasks.task import Task
from simulators.conversation import Conversation, Outcome

MAX_ANSWER_CHARACTERS = 2_000
"""A longer "answer" is no answer."""

_LIST_WORDS = re.compile(r",(?!\d{3}\b)|;|\band\b|\bor\b|,\s")
_MATH_WORD_LIST = (
    "alpha and arccos arcsin arctan begin beta binom cos cot csc end exp frac gamma inf infinity infty ln log matrix max min "
    "oo or pi pmatrix sec sin sqrt tan theta"
)
_MATH_WORDS = frozenset(_MATH_WORD_LIST.split())


@dataclass(frozen=True, slots=True)
class MathAccuracy:
    """1 if the extracted answer equals the reference, else 0.

    `deadline_s` bounds one call of math-verify; a verifier that misses it is killed and the conversation is not scored.
    """

    extract: Extract = field(default_factory=lambda: by_rule(answer))
    deadline_s: float = 10.0
    pool: WorkerPool | None = None
    name: str = "accuracy"
    source: str = "CollabLLM equation 3; section 4 (MATH-Chat)"
    value_range: tuple[float, float] = (0.0, 1.0)

    async def score(self, conversation: Conversation, task: Task) -> float:
        """Return 1 or 0.

        Raises:
            ScoringError: the verifier hung, broke down, or could not be started.
            ConfigurationError: the task has no reference.
        """
        gold = gold_answer(reference_of(task, self.name))
        given = await self.extract(conversation)
        if given is None or len(given) > MAX_ANSWER_CHARACTERS:
            return 0.0
        if (verdict := compare(gold, given)) is not None:
            return float(verdict)
        pool = self.pool or shared_worker_pool()
        try:
            equal = await pool.call(
                "collab.rewards.math_verifier:verify_answer", {"gold": tidy(gold), "answer": tidy(given)}, self.deadline_s
            )
        except WorkerFailure as error:
            outcome = Outcome.INFRA_ERROR if isinstance(error, WorkerUnavailable) else Outcome.JUDGE_ERROR
            raise ScoringError(f"{self.name}: {error}", outcome) from None
        return float(equal)


@dataclass(frozen=True, slots=True)
class ContainsFact:
    """1 if the reference stands in the final reply as whole words, else 0. Case and white space do not matter."""

    name: str = "accuracy"
    source: str = "CollabLLM equation 3, with Extract(t) the final reply and S containment"
    value_range: tuple[float, float] = (0.0, 1.0)

    async def score(self, conversation: Conversation, task: Task) -> float:
        """Return 1 or 0.

        Raises:
            ConfigurationError: the task has no reference.
        """
        fact = " ".join(reference_of(task, self.name).casefold().split())
        reply = " ".join((final_reply(conversation) or "").casefold().split())
        start = reply.find(fact)
        while start >= 0:
            if _stands_alone(reply, start, start + len(fact)):
                return 1.0
            start = reply.find(fact, start + 1)
        return 0.0


def _stands_alone(text: str, start: int, end: int) -> bool:
    """True where text[start:end] is not a piece of a longer word or number ("12" in "12.5", "112", "12,000")."""
    before, after = text[max(0, start - 2) : start], text[end : end + 2]
    if before and _continues(before[-1], text[start]):
        return False
    if after and _continues(after[0], text[end - 1]):
        return False
    number_before = len(before) == 2 and before[1] in ".," and before[0].isdigit() and text[start].isdigit()
    number_after = len(after) == 2 and after[0] in ".," and after[1].isdigit() and text[end - 1].isdigit()
    return not (number_before or number_after)


def _continues(outside: str, inside: str) -> bool:
    return (outside.isalnum() or outside == "_") and (inside.isalnum() or inside == "_")


def gold_answer(reference: str) -> str:
    r"""Return the final answer of a reference solution: after GSM8K's `####`, in MATH's last `\boxed{}`, or all of it."""
    _, hashes, rest = reference.rpartition("####")
    if hashes and rest.strip():
        return rest.strip()
    return last_boxed(reference) or reference.strip()


def compare(gold: str, given: str) -> bool | None:
    """Return whether two answers are equal where that can be told by reading them, None where it takes algebra."""
    gold_number = read_number(gold)
    if gold_number is not None:
        given_number = stated_number(given)
        if given_number is not None:
            return gold_number.equals(given_number)
    if _same_text(gold, given):
        return True
    if _is_words(gold):
        return False
    gold_numbers = _numbers(gold)
    if gold_numbers is not None and (given_numbers := _numbers(given)) is not None:
        return _same_set(gold_numbers, given_numbers)
    return None


def _same_text(gold: str, given: str) -> bool:
    return _bare(gold) == _bare(given)


def _bare(text: str) -> str:
    text = re.sub(r"\s+", " ", tidy(text).casefold()).strip(" .")
    if len(text) > 2 and text[0] == "(" and text[-1] == ")" and text[1:-1].isalpha():  # a choice: "(A)" is "A"
        text = text[1:-1]
    return re.sub(r"\s*([^\w\s])\s*", r"\1", text)


def _is_words(gold: str) -> bool:
    """True for an answer in plain words, which algebra would take for a product of letters ("Evelyn", "odd")."""
    words = re.findall(r"[^\W\d_]+", tidy(gold))
    has_math = re.search(r"[\\^_=+*/<>|{}\d]", tidy(gold))
    return not has_math and any(len(word) > 1 for word in words) and not _MATH_WORDS.intersection(map(str.lower, words))


def _numbers(text: str) -> list[PlainNumber] | None:
    r"""Return the numbers of an unordered list ("3 and 5", "x = 3 or x = 5", "\{3, 5\}"), None when it is anything else."""
    text = tidy(text)
    if text.startswith("\\{") and text.endswith("\\}"):
        text = text[2:-2]
    elif text[:1] in ("(", "[", "{"):
        return None
    parts = [part for part in _LIST_WORDS.split(text) if part.strip()]
    if len(parts) < 2:
        return None
    numbers = [read_number(part) for part in parts]
    return [number for number in numbers if number is not None] if None not in numbers else None


def _same_set(gold: list[PlainNumber], given: list[PlainNumber]) -> bool:
    covered = all(any(number.equals(other) for other in given) for number in gold)
    return covered and all(any(number.equals(other) for number in gold) for other in given)
