"""An evaluation as one Parquet file: one row a conversation, with everything a table or a plot of it needs.

Components of R* are columns named `component.NAME`; what a conversation has no value for is null, never 0.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collab.evaluation.comparison import Cell, seconds
from collab.evaluation.run import EvaluatedConversation
from simulators.metering import Spent
from simulators.whole_file import write_whole

ROLES = ("policy", "user", "judge")
_COUNTS = ("calls", "prompt_tokens", "cached_tokens", "completion_tokens")
_COLUMNS = {
    "environment": "string",
    "user": "string",
    "policy": "string",
    "baseline": "bool",
    "trained_with": "string",
    "seed": "int64",
    "run": "int64",
    "task_id": "string",
    "outcome": "string",
    "error": "string",
    "r_star": "float64",
    "task_score": "float64",
    "success": "bool",
    "turns": "int64",
    "asked": "list<bool>",
    "by_turn": "list<float64>",
    "policy_tokens": "int64",
    **{f"{role}_{count}": "int64" for role in ROLES for count in _COUNTS},
    "seconds": "float64",
    "cost": "float64",
    "leaf": "int64",
}
COMPONENT = "component."


def conversation_row(cell: Cell, conversation: EvaluatedConversation) -> dict[str, Any]:
    """Return one conversation as a flat mapping of plain values."""
    row: dict[str, Any] = {
        "environment": cell.environment,
        "user": cell.user or None,
        "policy": cell.policy,
        "baseline": cell.baseline,
        "trained_with": cell.trained_with,
        "seed": conversation.seed,
        "run": conversation.run,
        "task_id": conversation.task_id,
        "outcome": conversation.outcome.value,
        "error": conversation.error,
        "r_star": conversation.reward,
        "task_score": cell.score(conversation),
        "success": cell.success(conversation),
        "turns": conversation.turns,
        "asked": list(conversation.asked),
        "by_turn": list(conversation.by_turn),
        "policy_tokens": conversation.policy_tokens,
        "seconds": seconds(conversation),
        "cost": cell.cost(conversation),
        "leaf": conversation.leaf,
    }
    for role in ROLES:
        spent = conversation.spent.get(role, Spent())
        row |= {f"{role}_{count}": getattr(spent, count) for count in _COUNTS}
    return row | {f"{COMPONENT}{name}": value for name, value in conversation.components.items()}


def write_conversations(cells: Sequence[Cell], path: Path) -> None:
    """Write all conversations to a Parquet file, in one step.

    Raises:
        StorageError: when the disk refuses.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"list<bool>": pa.list_(pa.bool_()), "list<float64>": pa.list_(pa.float64())}
    rows = [conversation_row(cell, conversation) for cell in cells for conversation in cell.conversations]
    components = sorted({name for row in rows for name in row if name.startswith(COMPONENT)})
    columns = [*_COLUMNS.items(), *((name, "float64") for name in components)]
    schema = pa.schema([(name, types.get(kind) or pa.type_for_alias(kind)) for name, kind in columns])
    data = {name: [_clean(row.get(name)) for row in rows] for name in schema.names}
    stream = io.BytesIO()
    pq.write_table(pa.table(data, schema=schema), stream)
    write_whole(path, stream.getvalue())


def _clean(value: Any) -> Any:
    """Return the value; half characters (lone surrogates), which a model may write into an error, have no place in Parquet."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
