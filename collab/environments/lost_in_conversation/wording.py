"""The texts that this environment puts before an assistant: task prompts and full instructions.

All of it is our own wording. The assistant is never told that information is missing or that more will come: what it does then is
what is measured. The one exception is the ablation of the system prompt, `WARNING`, which says so on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from simulators.users.sharded import bullets

SYSTEM_PROMPTS: dict[str, str] = {
    "math": "You are a helpful assistant. When you answer a math problem, end with a line 'Answer: ' followed by the number.",
    "code": (
        "You are a helpful assistant who writes Python. When you answer, give one complete function in one Python code block; "
        "it must not read input or print."
    ),
    "database": "You are a helpful assistant who writes SQL for SQLite. When you answer, give one query in one SQL code block.",
    "actions": (
        "You are a helpful assistant who calls functions. When you answer, give all the calls in one list on one line, in "
        "Python syntax with named arguments, such as [f(a=1), g(b='x')], and nothing else."
    ),
    "data2text": "You are a helpful assistant who describes tables.",
    "summary": "You are a helpful assistant who summarises documents.",
}

WARNING = (
    "The user may reveal what they want bit by bit over several messages. Do not assume what has not been said: ask, or wait, "
    "until you know enough, and when something new is said, work the whole problem out again from the start."
)
"""Ablation of the system prompt (section 7.3): tells the assistant what the simulations otherwise never tell it."""


def code_full(prompt: str) -> str:
    """The full instruction of a code problem whose prompt is a signature with its docstring, or a text."""
    return f"Write the Python function that is described here:\n\n{prompt.strip()}"


def database_context(schema_sql: str) -> str:
    """What the assistant knows of the database, whatever the simulation."""
    return f"The database has this schema:\n\n{schema_sql.strip()}"


def actions_context(functions_json: str) -> str:
    """What the assistant knows of the functions, whatever the simulation."""
    return f"You can call these functions (JSON):\n\n{functions_json}"


def data2text_full(table_html: str, facts: Mapping[str, str], examples: str | None) -> str:
    """The full instruction of a table-to-text problem: the table with its highlights, where it is from, and examples."""
    parts = [
        "Describe the highlighted cells of this table in one sentence of at most 30 words. Reply with the sentence only.",
        f"Table:\n{table_html.strip()}",
        "About the table:\n" + bullets([f"{name}: {value}" for name, value in facts.items()]),
    ]
    if examples and examples.strip():
        parts.append(f"Descriptions of other tables, to show the style:\n{examples.strip()}")
    return "\n\n".join(parts)


def summary_request(query: str) -> str:
    """What is asked of a summary."""
    return (
        f"Summarise what the documents say about this question: {query.strip()}\n"
        "Write one bullet point for each finding, at most 300 words in all, and cite the numbers of the documents that a point "
        "rests on in square brackets, as in [3] or [3, 7]."
    )


def documents(numbered: Iterable[tuple[int, str]]) -> str:
    """Lay out documents under their numbers."""
    return "\n\n".join(f"Document {number}:\n{text.strip()}" for number, text in numbered)


def summary_full(query: str, numbered: Iterable[tuple[int, str]]) -> str:
    """The full instruction of a summary problem."""
    return f"{summary_request(query)}\n\n{documents(numbered)}"


def summary_first(query: str, numbered: Iterable[tuple[int, str]]) -> str:
    """The first shard of a summary problem: the request with the first documents."""
    return summary_full(query, numbered)


def summary_more(numbered: Iterable[tuple[int, str]]) -> str:
    """A later shard of a summary problem."""
    return f"Please update the summary with these documents as well.\n\n{documents(numbered)}"
