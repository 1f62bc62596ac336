"""Does the query return what the gold query returns? Execution match over one or more databases.

The rule: same rows, as a bag unless the gold query orders; every database must agree; a query that fails, writes, or runs past
its limits scores 0. A gold query that fails, or a worker that hangs where SQLite cannot be interrupted and is killed, gives no
score at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from collab.rewards.component import ScoringError
from collab.rewards.database_schema import Schema
from collab.rewards.extraction import Extract, by_rule, sql_query
from collab.rewards.worker_pool import WorkerFailure, WorkerPool, WorkerUnavailable, shared_worker_pool
from collab.tasks.task import Task
from simulators.conversation import Conversation, Outcome
from simulators.errors import ConfigurationError

MAX_QUERY_CHARACTERS = 20_000


@dataclass(frozen=True, slots=True)
class SqlExecution:
    """1 if the extracted query returns the gold query's rows on every database, else 0.

    The gold query is `task.metadata["reference_sql"]`, else `task.reference`. Databases are the files that
    `task.metadata["database_files"]` names, else `fills` synthetic ones made from the task's schema (`Schema.from_metadata`).
    `seconds` bounds one query on one database, `deadline_s` the whole comparison in its worker.
    """

    extract: Extract = field(default_factory=lambda: by_rule(sql_query))
    fills: int = 3
    seed: int = 0
    any_column_order: bool = False
    seconds: float = 5.0
    deadline_s: float = 60.0
    pool: WorkerPool | None = None
    name: str = "execution_match"
    source: str = "Lost in Conversation, database (Spider); BIRD"
    value_range: tuple[float, float] = (0.0, 1.0)

    async def score(self, conversation: Conversation, task: Task) -> float:
        """Return 1 or 0; no query at all scores 0.

        Raises:
            ScoringError: the gold query does not run, or the worker hung or could not be started.
            ConfigurationError: the task has no gold query, no schema and no database.
        """
        request = self.request(task)
        query = await self.extract(conversation)
        if query is None or len(query) > MAX_QUERY_CHARACTERS:
            return 0.0
        pool = self.pool or shared_worker_pool()
        try:
            verdict = await pool.call("collab.rewards.sql_worker:match_execution", request | {"query": query}, self.deadline_s)
        except WorkerFailure as error:
            outcome = Outcome.INFRA_ERROR if isinstance(error, WorkerUnavailable) else Outcome.JUDGE_ERROR
            raise ScoringError(f"{self.name}: task {task.id}: {error}", outcome) from None
        return float(verdict["equal"])

    def request(self, task: Task) -> dict[str, Any]:
        """Return everything about a task that the worker needs, but the query.

        Raises:
            ConfigurationError: as `score` does.
        """
        gold = task.metadata.get("reference_sql") or task.reference
        if not gold:
            raise ConfigurationError(f"task {task.id} has no gold query; set `reference_sql` or the reference")
        files = [str(path) for path in task.metadata.get("database_files", ())]
        try:
            schema = None if files else Schema.from_metadata(task.metadata).as_plain()
        except ConfigurationError as error:
            raise ConfigurationError(f"task {task.id}: {error}") from None
        return {
            "gold": str(gold),
            "files": files,
            "schema": schema,
            "fills": self.fills,
            "seed": self.seed,
            "seconds": self.seconds,
            "any_column_order": self.any_column_order,
        }
