"""Are these the right function calls? `[f(a=1), g(b="x")]` read with `ast`, never evaluated, and matched in any order.

BFCL's rule for parallel calls, as Lost in Conversation uses it: every expected call is met by exactly one given call. For each
parameter the reference lists the values that will do; "" among them says that it may be left out. Types are strict (True is
not 1, "5" is not 5), an int will do where a float is expected, and strings are compared without case, spaces and punctuation.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collab.rewards.component import ScoringError
from collab.rewards.extraction import Extract, by_rule, call_list
from collab.rewards.worker_pool import WorkerFailure, WorkerPool, WorkerUnavailable, shared_worker_pool
from collab.tasks.task import Task
from simulators.conversation import Conversation, Outcome
from simulators.errors import ConfigurationError

MAX_CHARACTERS = 20_000
MAX_DEPTH = 40

Call = tuple[str, dict[str, Any]]
"""A function's dotted name and its arguments; positional ones have names by the function's definition."""

_IGNORED = re.compile(r"[ ,./\-_*^'\"]")


@dataclass(frozen=True, slots=True)
class CallMatch:
    """1 if the extracted calls are the expected ones, else 0.

    `task.metadata["reference_answer"]` (else "ground_truth") lists the expected calls as `{name: {parameter: [values]}}`;
    `task.metadata["function"]` holds the definitions, which give positional arguments their names and parameters their types.
    """

    extract: Extract = field(default_factory=lambda: by_rule(call_list))
    deadline_s: float = 10.0
    pool: WorkerPool | None = None
    name: str = "call_match"
    source: str = "Lost in Conversation, actions (BFCL parallel)"
    value_range: tuple[float, float] = (0.0, 1.0)

    async def score(self, conversation: Conversation, task: Task) -> float:
        """Return 1 or 0; calls that cannot be read score 0.

        Raises:
            ScoringError: the worker failed.
            ConfigurationError: the task has no expected calls, or not in a known form.
        """
        expected = task.metadata.get("reference_answer") or task.metadata.get("ground_truth")
        functions = task.metadata.get("function") or []
        try:
            _check_expected(expected)
        except (TypeError, ValueError, AttributeError):
            raise ConfigurationError(
                f"task {task.id}: expected calls must be a list of {{name: {{parameter: [values]}}}} in `reference_answer`"
            ) from None
        text = await self.extract(conversation)
        if text is None or len(text) > MAX_CHARACTERS:
            return 0.0
        request = {"text": text, "expected": expected, "functions": functions}
        try:
            equal = await (self.pool or shared_worker_pool()).call(
                "collab.rewards.calls:match_text", json.loads(json.dumps(request)), self.deadline_s
            )
        except WorkerFailure as error:
            outcome = Outcome.INFRA_ERROR if isinstance(error, WorkerUnavailable) else Outcome.JUDGE_ERROR
            raise ScoringError(f"{self.name}: task {task.id}: {error}", outcome) from None
        return float(equal)


def match_text(request: dict[str, Any]) -> bool:
    """Return whether `request["text"]` holds the expected calls (in a worker: `ast` may exhaust the stack on hostile text)."""
    functions = {function["name"]: function for function in request["functions"]}
    try:
        calls = read_calls(request["text"], functions)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return match_calls(calls, request["expected"], functions)


def read_calls(text: str, functions: Mapping[str, Mapping[str, Any]]) -> list[Call]:
    """Return the calls of `[f(a=1), g(2)]`; a single call or a tuple of them will do too.

    Raises:
        SyntaxError, ValueError: it is anything else, or an argument is not a literal.
    """
    tree = ast.parse(text.strip(), mode="eval").body
    nodes = tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]
    return [_call(node, functions) for node in nodes]


def _call(node: ast.expr, functions: Mapping[str, Mapping[str, Any]]) -> Call:
    if not isinstance(node, ast.Call):
        raise ValueError("not a call")
    name = _dotted(node.func)
    names = list(functions.get(name, {}).get("parameters", {}).get("properties", {}))
    if len(node.args) > len(names):
        raise ValueError("positional arguments without names")
    arguments = {names[place]: _literal(value, 0) for place, value in enumerate(node.args)}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise ValueError("** or a parameter given twice")
        arguments[keyword.arg] = _literal(keyword.value, 0)
    return name, arguments


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise ValueError("not a name")
    return ".".join([node.id, *reversed(parts)])


def _literal(node: ast.expr, depth: int) -> Any:
    """Return the value of a literal; nothing is evaluated but a sign."""
    if depth > MAX_DEPTH:
        raise ValueError("nested too deep")
    match node:
        case ast.Constant(value=value) if value is None or isinstance(value, bool | int | float | str):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)) if not isinstance(number, bool):
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item, depth + 1) for item in items]
        case ast.Dict(keys=keys, values=values) if all(
            isinstance(key, ast.Constant) and isinstance(key.value, str) for key in keys
        ):
            return {
                key.value: _literal(value, depth + 1)
                for key, value in zip(keys, values, strict=True)
                if isinstance(key, ast.Constant)
            }
        case ast.Name(id="true" | "false" as word):
            return word == "true"
        case ast.Name(id="null" | "none"):
            return None
    raise ValueError("not a literal")


def match_calls(calls: Sequence[Call], expected: Sequence[Mapping[str, Any]], functions: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether calls and expected calls can be paired one to one (found by augmenting paths: greedy pairing may fail)."""
    if len(calls) != len(expected):
        return False
    fits = [[_fits(call, want, functions) for want in expected] for call in calls]
    taken: dict[int, int] = {}

    def place(call: int, tried: set[int]) -> bool:
        for want, fit in enumerate(fits[call]):
            if fit and want not in tried:
                tried.add(want)
                if want not in taken or place(taken[want], tried):
                    taken[want] = call
                    return True
        return False

    return all(place(call, set()) for call in range(len(calls)))


def _fits(call: Call, expected: Mapping[str, Any], functions: Mapping[str, Mapping[str, Any]]) -> bool:
    ((name, parameters),) = expected.items()
    if call[0] != name:
        return False
    properties = functions.get(name, {}).get("parameters", {}).get("properties", {})
    arguments = call[1]
    if any(argument not in parameters for argument in arguments):
        return False
    for parameter, allowed in parameters.items():
        if parameter not in arguments:
            if "" not in allowed:
                return False
        elif not any(_equal(arguments[parameter], value, properties.get(parameter, {})) for value in allowed):
            return False
    return True


def _equal(given: Any, wanted: Any, definition: Mapping[str, Any]) -> bool:
    """Compare one value; `definition` is the parameter's JSON schema, {} where the function's definition has none."""
    if isinstance(wanted, bool) or isinstance(given, bool):
        return given is wanted
    if isinstance(given, str) and isinstance(wanted, str):
        return _normalised(given) == _normalised(wanted)
    if isinstance(given, int) and isinstance(wanted, int | float):
        return given == wanted
    if isinstance(given, float) and isinstance(wanted, int):  # a float parameter whose reference was written as an int
        return definition.get("type") in ("float", "number") and given == wanted
    if isinstance(given, list) and isinstance(wanted, list):
        items = definition.get("items") or {}
        return len(given) == len(wanted) and all(_equal(one, other, items) for one, other in zip(given, wanted, strict=True))
    if isinstance(given, dict) and isinstance(wanted, dict):
        return _equal_objects(given, wanted, definition.get("properties") or {})
    return type(given) is type(wanted) and bool(given == wanted)


def _equal_objects(given: Mapping[str, Any], wanted: Mapping[str, Any], definitions: Mapping[str, Any]) -> bool:
    """Compare nested objects; BFCL writes each of their values as a list of what will do."""
    if any(key not in wanted for key in given):
        return False
    for key, value in wanted.items():
        allowed = value if isinstance(value, list) else [value]
        if key not in given:
            if "" not in allowed:
                return False
        elif not any(_equal(given[key], each, definitions.get(key) or {}) for each in [*allowed, value]):
            return False
    return True


def _normalised(text: str) -> str:
    return _IGNORED.sub("", text).lower()


def _check_expected(expected: Any) -> None:
    if not isinstance(expected, list) or not expected:
        raise ValueError
    for call in expected:
        ((_, parameters),) = call.items()
        for allowed in parameters.values():
            if not isinstance(allowed, list):
                raise TypeError
