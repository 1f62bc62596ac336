"""The answer in a reply, by the rules of its task (section 4.2): always a piece of the reply, never repaired.

The rules are those of `collab.rewards.extraction`, with what this benchmark adds: in the sharded simulations the name of the
function under test is never told, so code may define another one, and queries or calls may stand inside a sentence.
"""

from __future__ import annotations

import ast
import re

from collab.environments.lost_in_conversation.schema import Instruction, TaskKind
from collab.environments.lost_in_conversation.strategy import visible_text
from collab.rewards.extraction import answer, call_list, code_defining, sql_query

_INLINE_SQL = re.compile(r"\b(?:SELECT\b|WITH\s+\w+\s+AS\s*\()[^;`]{1,4000}", re.IGNORECASE)
_FIRST_DEFINITION = re.compile(r"^(?:from\s+\w|import\s+\w|def\s+\w)", re.MULTILINE)
_LONGEST_PARSED = 40_000
_LABEL = re.compile(r"^(?:\*\*)?(?:sentence|description|answer|summary)(?:\*\*)?\s*:\s*(?:\*\*)?", re.IGNORECASE)


def extract_answer(reply: str, instruction: Instruction) -> str | None:
    """Return the answer that a reply gives, None where it has none."""
    text = visible_text(reply)
    if not text:
        return None
    match instruction.kind:
        case TaskKind.MATH:
            return answer(text)
        case TaskKind.CODE:
            return _code(text, str(instruction.record["metadata"]["func_name"]))
        case TaskKind.DATABASE:
            return _query(text)
        case TaskKind.ACTIONS:
            return call_list(text)
        case TaskKind.DATA2TEXT:
            return _LABEL.sub("", text).strip().strip('"“”*') or None
        case TaskKind.SUMMARY:
            return text


def _code(text: str, name: str) -> str | None:
    """Return the code, with its last function also under the name that the tests call where nothing has that name."""
    code = code_defining(name)(text)
    if code is None and (start := _FIRST_DEFINITION.search(text)) is not None:
        code = text[start.start() :]
    if code is None or len(code) > _LONGEST_PARSED:
        return code
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    if functions and name not in _names_bound(tree):
        return f"{code.rstrip()}\n\n{name} = {functions[-1]}\n"
    return code


def _names_bound(tree: ast.Module) -> set[str]:
    bound = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    return bound | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _query(text: str) -> str | None:
    if (query := sql_query(text)) is not None:
        return query
    inline = _INLINE_SQL.findall(text)
    return inline[-1].strip() if inline else None
