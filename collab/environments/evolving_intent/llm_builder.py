"""The LLM builder: a model proposes, rules and a reference solver accept or reject (paper, sections 4 and D).

Stages: extraction (up to five attempts), counterfactuals (up to four an argument), predecessors chained backwards. Every proposal
that falls is kept with its reason in the conversion's notes. Each draw has a seed of its own, so a run with a seeded or journaled
model gives the same pool again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from collab.environments.evolving_intent import briefs
from collab.environments.evolving_intent.acceptance import counterfactual_fault, extraction_fault, predecessor_fault
from collab.environments.evolving_intent.answers import KnownAnswers
from collab.environments.evolving_intent.conversion import Conversion, Rejected, SourceTask
from collab.environments.evolving_intent.intent import SOURCE, Argument, Counterfactual, Function, Ingredients
from simulators.chat_models.protocol import ChatModel, ChatRequest, SamplingSettings
from simulators.conversation import Message
from simulators.errors import UnusableReply
from simulators.seeds import derive_seed
from simulators.structured_reply import FieldValue, Schema, ask_structured, reply_format


class Solver(Protocol):
    """Solves requests, and says whether two solutions of a task are the same."""

    async def solve(self, request: str, task: SourceTask, seed: int) -> str | None:
        """Return the solution of a request, None where none came out.

        Raises:
            ChatModelError, ConfigurationError: as the model behind it does.
        """
        ...

    async def same(self, one: str, other: str, task: SourceTask) -> bool:
        """Return whether two solutions are the same, by the task's own verifier."""
        ...


@dataclass(frozen=True, slots=True)
class ModelBuilder:
    """Converts tasks of any domain with a model; see the module.

    `predecessors` is how many are wanted at most, `alternatives` how many counterfactuals an argument gets, `votes` how many
    solver runs decide by majority.
    """

    model: ChatModel
    brief: briefs.Brief
    solver: Solver
    seed: int = 0
    attempts: int = 5
    alternatives: int = 2
    predecessors: int = 2
    votes: int = 3
    sampling: SamplingSettings = field(default_factory=lambda: SamplingSettings(max_tokens=800, temperature=0.7))

    @property
    def name(self) -> str:
        return f"llm:{self.model.name}"

    async def convert(self, task: SourceTask) -> Conversion:
        """Take one task apart.

        Raises:
            Rejected: stage "extraction", after the last attempt.
            ChatModelError, ConfigurationError: as the models do.
        """
        notes: list[str] = []
        function, statements = await self._extract(task, notes)
        arguments = [
            Argument(f"a{number}", text, tuple(await self._counterfactuals(task, number, statements, notes)))
            for number, text in enumerate(statements, start=1)
        ]
        source = Function(SOURCE, function, frozenset(argument.key for argument in arguments))
        chain, known = await self._chain(task, source, arguments, notes)
        ingredients = Ingredients(source, tuple(arguments), chain)
        return Conversion(task, ingredients, KnownAnswers(known | {SOURCE: task.reference}), notes=tuple(notes))

    async def _extract(self, task: SourceTask, notes: list[str]) -> tuple[str, list[str]]:
        for attempt in range(self.attempts):
            reply = await self._ask(briefs.extraction_prompt(self.brief), task.text, briefs.EXTRACTION, task, "extract", attempt)
            if isinstance(reply, str):
                notes.append(f"extraction: {reply}")
                continue
            function = str(reply["function"]).strip()
            statements = _texts(reply, "argument")
            fault = extraction_fault(task.text, function, statements)
            if fault is None and not await self._solves(" ".join([*statements, function]), task, attempt):
                fault = "the solver does not get the reference from function and arguments"
            if fault is None:
                return function, statements
            notes.append(f"extraction: {fault}")
        raise Rejected("extraction", notes[-1].removeprefix("extraction: "))

    async def _solves(self, request: str, task: SourceTask, attempt: int) -> bool:
        """True where the solver gets the reference, or what it gets for the original request."""
        seed = derive_seed(self.seed, task.id, "solve", attempt)
        found = await self.solver.solve(request, task, seed)
        if found is None:
            return False
        if await self.solver.same(task.reference, found, task):
            return True
        original = await self.solver.solve(task.text, task, seed)
        return original is not None and await self.solver.same(original, found, task)

    async def _counterfactuals(
        self, task: SourceTask, number: int, statements: Sequence[str], notes: list[str]
    ) -> list[Counterfactual]:
        argument = statements[number - 1]
        accepted: list[Counterfactual] = []
        for draw in range(2 * self.alternatives):
            told = "\n".join(f"{place}. {text}" for place, text in enumerate(statements, start=1))
            taken = "".join(f"\nTaken already: {other.new}" for other in accepted)
            request = f"The task:\n{told}\n\nThe sentence to change:\n{argument}{taken}"
            prompt = briefs.counterfactual_prompt(self.brief)
            reply = await self._ask(prompt, request, briefs.COUNTERFACTUAL, task, f"change {number}", draw)
            if isinstance(reply, str):
                notes.append(f"counterfactual of a{number}: {reply}")
                continue
            old, new, sentence = (str(reply[name]).strip() for name in ("old_value", "new_value", "sentence"))
            others = [*statements, *(other.text for other in accepted)]
            fault = counterfactual_fault(argument, old, new, sentence, others)
            if fault is None:
                accepted.append(Counterfactual(argument.replace(old, new), old, new))
                if len(accepted) == self.alternatives:
                    break
            else:
                notes.append(f"counterfactual of a{number}: {fault}")
        return accepted

    async def _chain(
        self, task: SourceTask, source: Function, arguments: Sequence[Argument], notes: list[str]
    ) -> tuple[tuple[Function, ...], dict[str, str]]:
        """Find predecessors backwards, each before the one found last; return them farthest first, with their answers."""
        chain: list[Function] = []
        known: dict[str, str] = {}
        for draw in range(2 * self.predecessors):
            if len(chain) == self.predecessors:
                break
            proposal = await self._predecessor(task, [source, *chain], arguments, draw)
            if isinstance(proposal, str):
                notes.append(f"predecessor: {proposal}")
                continue
            function, answer = proposal
            chain.append(function)
            if answer is not None:
                known[function.key] = answer
        return tuple(reversed(chain)), known

    async def _predecessor(
        self, task: SourceTask, later: Sequence[Function], arguments: Sequence[Argument], draw: int
    ) -> tuple[Function, str | None] | str:
        """Ask for one predecessor and test it; return it with its answer, or the reason why it falls."""
        told = "\n".join(f"{number}. {argument.text}" for number, argument in enumerate(arguments, start=1))
        request = f"The arguments:\n{told}\n\nThe later question:\n{later[-1].text}"
        prompt = briefs.predecessor_prompt(self.brief)
        reply = await self._ask(prompt, request, briefs.PREDECESSOR, task, "predecessor", draw)
        if isinstance(reply, str):
            return reply
        question, own = str(reply["question"]).strip(), _texts(reply, "new_argument")
        shared = {int(number) for number in re.findall(r"\d{1,2}", str(reply["shared"]))} & set(range(1, len(arguments) + 1))
        bounds = next((way.shared for way in self.brief.archetypes if way.name == reply["archetype"]), None)
        if bounds is None:
            return f"unknown archetype {str(reply['archetype'])[:40]!r}"
        if fault := predecessor_fault(question, own, len(shared), bounds, arguments, [function.text for function in later]):
            return fault
        judged = await self._judge(task, question, own, later, arguments, draw)
        if judged is not None:
            return judged
        if own and not await self._unchanged(task, later[0], own, arguments, draw):
            return "its own arguments change the final answer"
        rest = [arguments[number - 1].text for number in sorted(shared)]
        answer = await self._majority(" ".join([*rest, *own, question]), task, draw)
        if answer is not None and await self.solver.same(task.reference, answer, task):
            return "it has the answer of the source"
        key = f"f{draw + 1}"
        told_own = tuple(Argument(f"{key}own{place}", text) for place, text in enumerate(own, start=1))
        return Function(key, question, frozenset(f"a{number}" for number in shared), told_own), answer

    async def _judge(
        self,
        task: SourceTask,
        question: str,
        own: Sequence[str],
        later: Sequence[Function],
        arguments: Sequence[Argument],
        draw: int,
    ) -> str | None:
        """Have the model judge whether a question differs from every later one and leaves the arguments alone."""
        given = "\n".join(argument.text for argument in arguments)
        new = "\n".join(own) or "(none)"
        for place, function in enumerate(later):
            request = f"First: {question}\nThen: {function.text}\n\nGiven:\n{given}\n\nNew arguments of the first:\n{new}"
            prompt = briefs.judge_prompt(self.brief)
            reply = await self._ask(prompt, request, briefs.JUDGEMENT, task, f"judge {place}", draw)
            if isinstance(reply, str):
                return f"no judgement: {reply}"
            if not reply["different"]:
                return "it is judged to ask the same"
            if reply["contradicts"]:
                return "its own arguments are judged to contradict"
        return None

    async def _unchanged(
        self, task: SourceTask, source: Function, own: Sequence[str], arguments: Sequence[Argument], draw: int
    ) -> bool:
        """True where the final answer stays the reference with the new arguments added, by majority."""
        request = " ".join([*own, *(argument.text for argument in arguments), source.text])
        answer = await self._majority(request, task, draw)
        return answer is not None and await self.solver.same(task.reference, answer, task)

    async def _majority(self, request: str, task: SourceTask, draw: int) -> str | None:
        """Return the solution that more than half of the votes agree on, None where there is none."""
        groups: list[str] = []
        votes: Counter[int] = Counter()
        for vote in range(self.votes):
            found = await self.solver.solve(request, task, derive_seed(self.seed, task.id, "vote", request, draw, vote))
            if found is None:
                continue
            for place, seen in enumerate(groups):
                if await self.solver.same(seen, found, task):
                    votes[place] += 1
                    break
            else:
                votes[len(groups)] += 1
                groups.append(found)
        place, count = max(votes.items(), key=lambda entry: entry[1], default=(0, 0))
        return groups[place] if 2 * count > self.votes else None

    async def _ask(
        self, instructions: str, request: str, schema: Schema, task: SourceTask, stage: str, draw: int
    ) -> Mapping[str, FieldValue] | str:
        """Ask for a structured reply; return its fields, or why there are none."""
        messages = (Message("system", f"{instructions}\n\n{reply_format(schema)}"), Message("user", request))
        seed = derive_seed(self.seed, task.id, stage, draw)
        try:
            reply = await ask_structured(self.model, ChatRequest(messages, self.sampling, seed=seed, role="judge"), schema)
        except UnusableReply as error:
            return str(error)
        return reply.values


def _texts(reply: Mapping[str, FieldValue], name: str) -> list[str]:
    """Return the numbered fields of a reply (`argument_1`, ...) that say something."""
    found = [str(reply.get(f"{name}_{number}") or "").strip() for number in range(1, 6)]
    return [text for text in found if text]
