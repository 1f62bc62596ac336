"""Reference solvers of the LLM builder: a model that solves requests, and the domain's own way to compare solutions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from collab.environments.evolving_intent.conversion import SourceTask
from collab.environments.evolving_intent.sql.domain import QueryVerifier
from collab.rewards.accuracy import compare
from collab.rewards.extraction import answer, sql_query
from collab.tasks.task import Task
from simulators.chat_models.protocol import ChatModel, ChatRequest, SamplingSettings
from simulators.conversation import Message


@dataclass(frozen=True, slots=True)
class ModelSolver:
    """Solves with a model; `extract` cuts the solution out of its reply, `equal(one, other, task)` compares two solutions."""

    model: ChatModel
    instructions: str
    extract: Callable[[str], str | None]
    equal: Callable[[str, str, SourceTask], Awaitable[bool]]
    sampling: SamplingSettings = field(default_factory=lambda: SamplingSettings(max_tokens=1024, temperature=0.0))

    async def solve(self, request: str, task: SourceTask, seed: int) -> str | None:
        """Return the solution in the model's reply, None where there is none.

        Raises:
            ChatModelError, ConfigurationError: as the model does.
        """
        preamble = str(task.details.get("preamble", ""))
        content = f"{preamble}\n\n{request}" if preamble else request
        messages = (Message("system", self.instructions), Message("user", content))
        (completion,) = await self.model.complete(ChatRequest(messages, self.sampling, seed=seed, role="judge"))
        return self.extract(completion.text)

    async def same(self, one: str, other: str, task: SourceTask) -> bool:
        """Return whether two solutions are the same."""
        return await self.equal(one, other, task)


def number_solver(model: ChatModel) -> ModelSolver:
    """Return a solver of word problems."""

    async def equal(one: str, other: str, task: SourceTask) -> bool:
        return compare(one, other) is True

    return ModelSolver(model, "Solve the problem step by step, then end with: The answer is N.", answer, equal)


def query_solver(model: ChatModel, verifier: QueryVerifier | None = None) -> ModelSolver:
    """Return a solver of text-to-SQL requests; solutions are compared by running them.

    Raises (when comparing):
        ScoringError: as `QueryVerifier` does.
    """
    runs = verifier or QueryVerifier()

    async def equal(one: str, other: str, task: SourceTask) -> bool:
        asked = Task(task.id, task.text, one, metadata=dict(task.details["verifier"]))
        return await runs.gives(f"```sql\n{other}\n```", one, asked)

    return ModelSolver(model, "Write one SQLite SELECT statement in a ```sql block.", sql_query, equal)
