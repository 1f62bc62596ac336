"""The environment's entry in the registry: `evolving_sql`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from collab.environments.evolving_intent.conversion import Conversion
from collab.environments.evolving_intent.intent_domain import IntentDomain, domain_factory
from collab.environments.evolving_intent.rendering import Phrases
from collab.environments.evolving_intent.sql.builder import convert_record
from collab.rewards.extraction import sql_query
from collab.rewards.sql import SqlExecution
from collab.tasks.task import Task
from simulators.conversation import Message

SQL_PHRASES = Phrases(
    reveal=("One more thing: {}", "I should add this: {}", "You also need to know: {}"),
    reveal_many=("A few more things: {}", "I should add this: {}", "You also need to know: {}"),
    revision=("Sorry, that was wrong. {}", "Wait, I mixed something up. {}", "Correction: {new}, not {old}. {}"),
    switch=("Thanks. Now I need another query: {}", "OK, next query: {}", "Good. What I need now is this: {}"),
    switch_request=("Thanks. Now I need another query. {}", "OK, next query. {}", "Good. {}"),
    repeat=("Could you write that query again? {}", "Please check the query once more. {}"),
    function_first=True,
)


@dataclass(frozen=True, slots=True)
class QueryVerifier:
    """Compares the query in a reply with a target query, by running both."""

    execution: SqlExecution = field(default_factory=SqlExecution)

    async def gives(self, reply: str, target: str, task: Task) -> bool:
        """Return whether the reply's query returns the target's rows.

        Raises:
            ScoringError: as `SqlExecution` does.
        """
        asked = replace(task, metadata={**task.metadata, "reference_sql": target})
        return await self.execution.score((Message("assistant", reply),), asked) == 1.0

    def answers(self, reply: str) -> bool:
        """Return whether the reply holds a query."""
        return sql_query(reply) is not None


def _metadata(conversion: Conversion) -> Mapping[str, Any]:
    return dict(conversion.task.details["verifier"])


SQL = IntentDomain(
    name="evolving_sql",
    summary="Text-to-SQL (Spider, BIRD) whose user names values bit by bit, corrects them, and asks for other queries first.",
    phrases=SQL_PHRASES,
    convert=convert_record,
    verifier=SqlExecution,
    reply_verifier=QueryVerifier,
    metadata=_metadata,
)

domain = domain_factory(SQL)
"""The factory of `evolving_sql`; its options are `domain_of`'s."""
