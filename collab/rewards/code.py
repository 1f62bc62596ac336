"""Does the code pass its tests? Runs them in a sandbox, with the tests and the code in different processes.

The usual harness runs `check(candidate)` in the interpreter that holds the candidate, which then only has to return an object
that equals everything, call `os._exit(0)`, or walk up the stack to the expected values. Here the tests hold one process and the
solution another; between them go calls and plain values, nothing else. `unittest` suites are the exception: they patch and mock
inside the solution's interpreter, so there a hostile solution could forge a pass, though not touch anything outside.

A solution that crashes, hangs, is killed or attacks its sandbox fails its tests: that is the policy's doing. A sandbox that
cannot be set up, or tests that do not compile, are not: no score.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from collab.rewards.component import ScoringError
from collab.rewards.extraction import Extract, solution_code
from collab.rewards.inside_sandbox.values import NotPlain, encode
from collab.sandbox.protocol import Limits, Program, Sandbox, SandboxError
from collab.sandbox.selection import load_sandbox
from collab.tasks.task import Task
from simulators.conversation import Conversation, Outcome
from simulators.errors import ConfigurationError

Kind = Literal["check", "cases", "scripts", "unittest"]

MAX_CODE_CHARACTERS = 200_000
_INSIDE = Path(__file__).parent / "inside_sandbox"


@dataclass(frozen=True, slots=True)
class CodeTests:
    """The tests of one task.

    `check`: `source` defines `check(candidate)` (HumanEval). `cases`: pairs of argument list and expected result. `scripts`:
    pairs of standard input and expected output. `unittest`: `source` defines test cases (BigCodeBench). `prelude` is code of
    the task's own that stands before the solution: imports and helper functions of its prompt.
    """

    kind: Kind
    entry_point: str
    source: str = ""
    cases: tuple[tuple[Any, Any], ...] = ()
    prelude: str = ""

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> CodeTests:
        """Read the tests out of a record of HumanEval, BigCodeBench, LiveCodeBench or Lost in Conversation.

        Raises:
            ConfigurationError: the record holds no tests in a known form.
        """
        inner = record.get("metadata")
        name = record.get("entry_point") or (inner.get("func_name") if isinstance(inner, Mapping) else None) or ""
        test, prompt = record.get("test"), record.get("prompt")
        prelude = prompt if isinstance(prompt, str) and _compiles(prompt) else ""
        if isinstance(test, str) and "unittest" in test:
            return cls("unittest", str(name), test, prelude=prelude)
        if isinstance(test, str) and "def check(" in test:
            return cls("check", str(name), test, prelude=prelude)
        try:
            cases = _cases(record)
            if cases and all(case.get("testtype") == "stdin" for case in cases):
                return cls("scripts", str(name), cases=tuple((case["input"], case["output"]) for case in cases))
            if cases and name:
                return cls("cases", str(name), cases=tuple(map(_functional_case, cases)), prelude=prelude)
        except (ValueError, KeyError, AttributeError, TypeError):
            pass
        raise ConfigurationError(
            "no tests in a known form: expected `test` with check(candidate) or unittest cases and `entry_point`, or "
            "`test_cases` with input, output and testtype"
        )

    def unit_test_names(self) -> list[str]:
        """Return the names (`Class.method`) of the test methods in `source`."""
        classes = [node for node in ast.walk(ast.parse(self.source)) if isinstance(node, ast.ClassDef)]
        methods = [(each.name, node.name) for each in classes for node in each.body if isinstance(node, ast.FunctionDef)]
        return [f"{owner}.{method}" for owner, method in methods if method.startswith("test")]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a test run: which tests passed, in order; `reason` is the first failure's."""

    passed: tuple[bool, ...]
    reason: str | None = None

    @property
    def rate(self) -> float:
        """The share of tests that passed."""
        return sum(self.passed) / len(self.passed) if self.passed else 0.0


@dataclass(frozen=True, slots=True)
class PassRate:
    """The share of a task's tests that the extracted code passes; with `all_or_nothing` 1 if all do, else 0 (the papers' rule).

    Tests come from `task.metadata` (`CodeTests.from_record`). `extract` defaults to the latest code that defines the entry
    point. `sandbox` defaults to the strongest one of this machine.
    """

    extract: Extract | None = None
    all_or_nothing: bool = True
    limits: Limits = field(default_factory=Limits)
    sandbox: Sandbox | None = None
    find_sandbox: Callable[[], Sandbox] = load_sandbox
    name: str = "pass_rate"
    source: str = "CollabLLM section 4 (BigCodeBench-Chat); Lost in Conversation, code"
    value_range: tuple[float, float] = (0.0, 1.0)

    async def score(self, conversation: Conversation, task: Task) -> float:
        """Return the pass rate; no code at all scores 0.

        Raises:
            ScoringError: the sandbox failed (infra_error), or the task's tests do not run (judge_error).
            ConfigurationError: the task has no tests, or this machine no sandbox.
        """
        try:
            tests = CodeTests.from_record(task.metadata)
        except ConfigurationError as error:
            raise ConfigurationError(f"task {task.id}: {error}") from None
        code = await (self.extract or solution_code(tests.entry_point or None))(conversation)
        if code is None or len(code) > MAX_CODE_CHARACTERS:
            return 0.0
        sandbox = self.sandbox
        if sandbox is None:
            sandbox = await asyncio.to_thread(self.find_sandbox)  # the first one is tested, which takes a moment
        try:
            verdict = await run_tests(code, tests, sandbox, self.limits)
        except ScoringError as error:
            raise ScoringError(f"{self.name}: task {task.id}: {error}", error.outcome) from None
        return float(all(verdict.passed)) if self.all_or_nothing else verdict.rate


async def run_tests(code: str, tests: CodeTests, sandbox: Sandbox, limits: Limits) -> Verdict:
    """Run tests against code in a sandbox.

    Raises:
        ScoringError: as `PassRate.score`.
    """
    try:
        result = await sandbox.run(_program(code, tests), limits)
    except SandboxError as error:
        raise ScoringError(str(error), Outcome.INFRA_ERROR) from None
    lines = result.stdout.splitlines()
    if lines and lines[0].startswith("broken "):
        raise ScoringError(f"the tests do not run: {lines[0].removeprefix('broken ')}", Outcome.JUDGE_ERROR)
    if not lines or not lines[0].startswith("tests "):
        raise ScoringError(f"the tests did not start ({result.ended.value}): {result.stderr[-300:].strip()}", Outcome.INFRA_ERROR)
    total = int(lines[0].removeprefix("tests "))
    verdicts = lines[1 : total + 1]
    passed = [line == "pass" for line in verdicts] + [False] * (total - len(verdicts))
    failures = [line.removeprefix("fail").strip() for line in verdicts if line != "pass"]
    reason = failures[0] if failures else None if all(passed) else f"the program ended early: {result.ended.value}"
    return Verdict(tuple(passed), reason)


def _program(code: str, tests: CodeTests) -> Program:
    spec = {
        "kind": tests.kind,
        "entry_point": tests.entry_point,
        "source": tests.source,
        "prelude": tests.prelude,
        "cases": [list(case) for case in tests.cases],
        "names": tests.unit_test_names() if tests.kind == "unittest" else [],
        "solution": code,
    }
    try:
        stdin = encode(spec)
    except NotPlain:
        raise ScoringError("the tests are too large to send into the sandbox", Outcome.JUDGE_ERROR) from None
    return Program(_inside_files(), "driver.py", stdin=stdin, starts_processes=True)


@functools.cache
def _inside_files() -> dict[str, str]:
    names = ("values.py", "solution_server.py", "driver.py")
    return {name: (_INSIDE / name).read_text(encoding="utf-8") for name in names}


def _cases(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the input-output pairs of a record: `test` or `test_cases`, else the private and public ones together."""

    def read(field_name: str) -> list[Mapping[str, Any]]:
        value = record.get(field_name) or []
        return list(json.loads(value) if isinstance(value, str) else value)

    for field_name in ("test_cases", "test"):
        if cases := read(field_name):
            return cases
    return read("private_test_cases") + read("public_test_cases")


def _functional_case(case: Mapping[str, str]) -> tuple[list[Any], Any]:
    """Read a LiveCodeBench case: each line of `input` is one argument in JSON, `output` the result in JSON."""
    return [json.loads(line) for line in case["input"].splitlines() if line.strip()], json.loads(case["output"])


def _compiles(source: str) -> bool:
    """True for a prompt that is code by itself (imports, helpers and a function with only its docstring)."""
    try:
        compile(source, "prompt", "exec")
    except (SyntaxError, ValueError):
        return False
    return True
