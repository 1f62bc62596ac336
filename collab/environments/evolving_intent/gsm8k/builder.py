"""The rules builder of GSM8K: from a problem with its annotated solution to ingredients, without any model.

Records that carry LLM-made `shards` (shard 1 is the question) skip the extraction rules, unless that question holds values, is
none, or is not the only one: such shards are not believed. Their solution is used as any other.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from collab.environments.domain import BadRecord
from collab.environments.evolving_intent.answers import KnownAnswers
from collab.environments.evolving_intent.conversion import BOOKS, Conversion, Rejected, SourceTask
from collab.environments.evolving_intent.gsm8k.calculator import (
    Calculation,
    NotComputable,
    accounted_values,
    binding_fault,
    implied_constants,
    read_calculation,
)
from collab.environments.evolving_intent.gsm8k.counterfactuals import Exchange, exchanges
from collab.environments.evolving_intent.gsm8k.counts import holds_values
from collab.environments.evolving_intent.gsm8k.extraction import Extraction, NotExtractable, extract
from collab.environments.evolving_intent.gsm8k.questions import step_questions
from collab.environments.evolving_intent.gsm8k.resemblance import alike
from collab.environments.evolving_intent.intent import SOURCE, Argument, Function, Ingredients
from collab.language.numbers import find_numbers
from collab.language.sentences import tidy
from simulators.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class CalculationAnswers:
    """Answers from the calculation of a solution.

    `steps` maps a function to the step that answers it. `exchanged` maps an argument to what each of its versions from 1 on
    exchanges: (old literal, new value), None where that cannot be computed with certainty. `first` are the arguments that must be
    told before any answer is given: all of them where operands could not be bound with certainty, so that needs may be missed.
    """

    solution: str
    calculation: Calculation
    steps: Mapping[str, int]
    exchanged: Mapping[str, tuple[tuple[Fraction, Fraction] | None, ...]]
    first: frozenset[str] = frozenset()

    def answer(self, function: Function, versions: Mapping[str, int]) -> str | None:
        """Return the step's value with the given versions; None where it is not certain or not everything is told."""
        if function.key not in self.steps or not (function.needs | self.first) <= versions.keys():
            return None
        exchanged: dict[Fraction, Fraction] = {}
        for key, version in versions.items():
            if version:
                pair = self.exchanged[key][version - 1]
                if pair is None:
                    return None
                exchanged[pair[0]] = pair[1]
        try:
            return plain(self.calculation.compute(exchanged)[self.steps[function.key]])
        except NotComputable:
            return None

    def to_record(self) -> dict[str, Any]:
        """Return what `read_answers` needs; the calculation is read again from the solution."""
        pairs = {
            key: [None if pair is None else [str(pair[0]), str(pair[1])] for pair in versions]
            for key, versions in self.exchanged.items()
        }
        record = {"kind": "calculation", "solution": self.solution, "gold": str(self.calculation.gold)}
        return record | {"steps": dict(self.steps), "exchanged": pairs, "first": sorted(self.first)}


def read_answers(data: Mapping[str, Any]) -> CalculationAnswers:
    """Rebuild `CalculationAnswers` from its record.

    Raises:
        ValueError: when the solution does not give the gold answer any more.
    """
    calculation = read_calculation(data["solution"], Fraction(data["gold"]))
    if calculation is None:
        raise ValueError("the solution's annotations do not give the gold answer")
    exchanged = {
        key: tuple(None if pair is None else (Fraction(pair[0]), Fraction(pair[1])) for pair in versions)
        for key, versions in data["exchanged"].items()
    }
    return CalculationAnswers(data["solution"], calculation, data["steps"], exchanged, frozenset(data["first"]))


BOOKS["calculation"] = read_answers


def plain(value: Fraction) -> str:
    """Return a value as people write it: 18, 2.5, or a fraction where decimals do not end."""
    if value.denominator == 1:
        return str(value.numerator)
    return str(value) if 10**6 % value.denominator else f"{float(value):.6f}".rstrip("0")


def gold_answer(solution: str) -> str:
    """Return the number after "####".

    Raises:
        BadRecord: when there is none.
    """
    _, mark, written = solution.rpartition("####")
    text = written.strip().replace(",", "").replace("$", "")
    try:
        Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise BadRecord("field 'answer' must end with '#### <number>', as GSM8K's do") from None
    if not mark:
        raise BadRecord("field 'answer' must end with '#### <number>', as GSM8K's do")
    return text


def source_task(record: Mapping[str, Any], default_id: str) -> SourceTask:
    """Return the single-turn task of a GSM8K record (question, answer; optionally id, shards).

    Raises:
        BadRecord: when a field is missing or of the wrong kind.
    """
    for column in ("question", "answer"):
        if not isinstance(record.get(column), str) or not record[column].strip():
            raise BadRecord(f"field {column!r} must be a text that is not empty")
    details: dict[str, Any] = {"solution": record["answer"]}
    if shards := record.get("shards"):
        details["shards"] = [shard["shard"] if isinstance(shard, Mapping) else str(shard) for shard in shards]
    task_id = str(record.get("id") or record.get("task_id") or default_id)
    return SourceTask(task_id, record["question"].strip(), gold_answer(record["answer"]), details)


@dataclass(frozen=True, slots=True)
class RulesBuilder:
    """Converts GSM8K problems by rules; `seed` draws the counterfactual values."""

    seed: int = 0

    @property
    def name(self) -> str:
        return "rules"

    async def convert(self, task: SourceTask) -> Conversion:
        """Take a problem apart; see `convert_by_rules`."""
        return convert_by_rules(task, self.seed)


def convert_record(record: Mapping[str, Any], default_id: str, seed: int) -> Conversion:
    """Read a record and take it apart.

    Raises:
        BadRecord, Rejected: as `source_task` and `convert_by_rules` do.
    """
    return convert_by_rules(source_task(record, default_id), seed)


def convert_by_rules(task: SourceTask, seed: int = 0) -> Conversion:
    """Take a problem apart: statements, their counterfactual values, predecessor questions, answers.

    Raises:
        Rejected: by the stage "extraction", or "conflict" where stale values could give the right answer.
    """
    extraction = _extract(task)
    solution = str(task.details["solution"])
    gold = Fraction(task.reference)
    problem = tidy(" ".join([*extraction.statements, extraction.function]))
    calculation = read_calculation(solution, gold)
    numbers = find_numbers(problem)
    certain = calculation is not None and binding_fault(calculation, numbers, problem) is None
    found: dict[str, tuple[Exchange, ...]] = {}
    for index, statement in enumerate(extraction.statements, start=1):
        rng = random.Random(derive_seed(seed, task.id, f"a{index}"))
        found[f"a{index}"] = exchanges(statement, numbers, problem, calculation, certain, rng)
    if sum(_is_exact(entry) for entry in found.values()) >= 2:  # enough to revise: leave out what would cost the exact answers
        found = {key: entry if _is_exact(entry) else () for key, entry in found.items()}
    arguments = [
        Argument(key, statement, tuple(ex.counterfactual for ex in entry), informative=bool(find_numbers(statement)))
        for (key, entry), statement in zip(found.items(), extraction.statements, strict=True)
    ]
    source = Function(SOURCE, extraction.function, frozenset(argument.key for argument in arguments))
    if calculation is None:
        return Conversion(task, Ingredients(source, tuple(arguments)), KnownAnswers({SOURCE: task.reference}))
    predecessors, steps = _predecessors(extraction, problem, solution, calculation)
    exchanged = {
        key: tuple(None if ex.literal is None or ex.value is None else (ex.literal, ex.value) for ex in entry)
        for key, entry in found.items()
        if entry
    }
    first = frozenset() if certain else source.needs
    answers = CalculationAnswers(solution, calculation, steps | {SOURCE: len(calculation.steps) - 1}, exchanged, first)
    exact = certain and all(pair is not None for pairs in exchanged.values() for pair in pairs)
    return Conversion(task, Ingredients(source, tuple(arguments), predecessors), answers, exact)


def _is_exact(entry: tuple[Exchange, ...]) -> bool:
    return bool(entry) and all(exchange.literal is not None for exchange in entry)


def _extract(task: SourceTask) -> Extraction:
    question, *facts = [tidy(shard) for shard in task.details.get("shards", ()) if shard.strip()] or [""]
    if facts and question.endswith("?") and not holds_values(question) and not any(fact.endswith("?") for fact in facts):
        return Extraction(question, tuple(facts))
    try:
        return extract(task.text)
    except NotExtractable as error:
        raise Rejected("extraction", str(error)) from None


def _predecessors(
    extraction: Extraction, problem: str, solution: str, calculation: Calculation
) -> tuple[tuple[Function, ...], dict[str, int]]:
    """Return the predecessor functions and the step that answers each.

    A question qualifies when its answer differs from the final one and from those before it, it rests on at least one statement,
    and it is not the source's question in other punctuation.
    """
    functions: list[Function] = []
    steps: dict[str, int] = {}
    taken = {calculation.steps[-1].value}
    for question in step_questions(problem, solution, calculation):
        value = calculation.steps[question.step].value
        needs = _needs(extraction.statements, calculation, question.step)
        if value in taken or not needs or alike(question.text, extraction.function):
            continue
        taken.add(value)
        key = f"f{len(functions) + 1}"
        functions.append(Function(key, question.text, needs))
        steps[key] = question.step
    return tuple(functions), steps


def _needs(statements: tuple[str, ...], calculation: Calculation, step: int) -> frozenset[str]:
    """Return the statements that may hold an operand of a step: by its numbers, or by a word such as "twice" or "week"."""
    literals = calculation.literals_of(step)
    needs = set()
    for index, statement in enumerate(statements):
        numbers = find_numbers(statement)
        explained = set(accounted_values(numbers)) if numbers else set()
        if literals & (explained | implied_constants(statement)):
            needs.add(f"a{index + 1}")
    return frozenset(needs)
