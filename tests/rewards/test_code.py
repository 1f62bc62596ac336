"""Pass rates: what passes, what fails, and what a hostile solution cannot do to the verdict."""

import asyncio
import gzip
import json

import pytest

from collab.rewards.code import CodeTests, PassRate, run_tests
from collab.rewards.component import RewardComponent, ScoringError
from collab.sandbox.protocol import Ended, Limits, SandboxError, SandboxResult
from collab.sandbox.selection import PREFERENCE, availability, load_sandbox
from collab.tasks.task import Task
from simulators.conversation import Outcome
from simulators.errors import ConfigurationError
from tests.rewards.conversations import says

ADD = CodeTests("check", "add", "def check(candidate):\n    assert candidate(2, 3) == 5\n    assert candidate(1, 1) == 2\n")
QUICK = Limits(cpu_s=1, wall_s=3, memory_mb=256)


@pytest.fixture(params=PREFERENCE)
def sandbox(request):
    report = availability(request.param)
    if not report.available:
        pytest.skip(f"{report.name} cannot be used here: {report.detail}")
    return load_sandbox(request.param)


@pytest.fixture
def any_sandbox():
    try:
        return load_sandbox()
    except ConfigurationError as error:
        pytest.skip(str(error))


async def passes(code, tests, sandbox, limits=QUICK):
    return all((await run_tests(code, tests, sandbox, limits)).passed)


async def test_right_and_wrong(sandbox):
    assert await passes("def add(a, b):\n    return a + b", ADD, sandbox)
    assert not await passes("def add(a, b):\n    return a - b", ADD, sandbox)
    assert not await passes("def plus(a, b):\n    return a + b", ADD, sandbox)
    assert not await passes("def add(a, b) return a + b", ADD, sandbox)
    assert not await passes("raise SystemExit(0)", ADD, sandbox)


FORGERIES = {
    "an object that equals everything": """
class Yes:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __bool__(self): return True
def add(a, b): return Yes()
""",
    "a number that equals everything": """
class Yes(int):
    def __eq__(self, other): return True
    def __hash__(self): return 5
def add(a, b): return Yes(7)
""",
    "a clean exit": "import os\nos._exit(0)",
    "a clean exit when called": "import os\ndef add(a, b): os._exit(0)",
    "printing the verdict": """
import os, sys
def add(a, b):
    for descriptor in range(64):
        for text in (b"tests 1\\npass\\n", b"pass\\n"):
            try: os.write(descriptor, text)
            except OSError: pass
    print("tests 1\\npass")
    return 0
""",
    "printing the verdict on import": """
import os
for descriptor in range(64):
    try: os.write(descriptor, b"tests 1\\npass\\n")
    except OSError: pass
""",
    "looking for the expected values up the stack": """
import sys, gc, re
def add(a, b):
    texts = [str(thing) for thing in gc.get_objects() if isinstance(thing, (dict, list, tuple))]
    frame = sys._getframe()
    while frame:
        texts += [str(frame.f_globals), str(frame.f_locals)]
        frame = frame.f_back
    found = re.search(f"candidate.{a}, {b}. == ([0-9])", " ".join(texts))
    return int(found[1]) if found else 0
""",
    "looking for the tests in files": """
import os, re
def add(a, b):
    texts = [open(os.path.join(folder, name), errors="replace").read() for folder, _, names in os.walk(".") for name in names]
    found = re.search(f"candidate.{a}, {b}. == ([0-9])", " ".join(texts))
    return int(found[1]) if found else 0
""",
    "overwriting the test driver": """
import os, sys
for folder in (".", "/scratch"):
    for name in ("driver.py", "values.py", "solution_server.py"):
        try: open(os.path.join(folder, name), "w").write("print('tests 1'); print('pass')")
        except OSError: pass
def add(a, b): return 0
""",
    "shadowing what the tests use": "def add(a, b): return 0\ndef check(candidate): pass\ndef all(x): return True",
    "raising what tests expect": "def add(a, b): raise AssertionError('fine')",
    "killing the test driver": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\ndef add(a, b): return a + b",
    "sleeping": "import time\ntime.sleep(100)",
    "looping": "def add(a, b):\n    while True: pass",
    "all memory": "def add(a, b):\n    return [0] * 10**10",
    "a huge result": "def add(a, b):\n    return 'x' * 50_000_000",
    "deep recursion": "def add(a, b):\n    return add(a, b)",
    "half a character": "# \ud800\ndef add(a, b): return a + b",
    "no text at all": "\x00",
    "a nested result": "def add(a, b):\n    x = []\n    for _ in range(100000): x = [x]\n    return x",
    "a result that contains itself": "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
    "nonsense on the wire": """
import os
for descriptor in range(3, 64):
    try: os.write(descriptor, b"99999999999\\n")
    except OSError: pass
def add(a, b): return a + b
""",
}  # fmt: skip


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES.keys())
async def test_forgeries_fail(sandbox, forgery):
    assert not await passes(forgery, ADD, sandbox, Limits(cpu_s=1, wall_s=1.5, memory_mb=256))


async def test_values_cross_as_they_are(any_sandbox):
    code = "def same(x): return x"
    source = """
def check(candidate):
    values = [None, True, 0, -5, 10**5000, 1.5, float("inf"), 1j, "text \\u00e9 \\ud800", b"\\x00\\xff", [1, [2]],
              (1, (2,)), {1, 2}, frozenset({3}), {"a": (1,), 2: None}, [], (), {}, set(), range(3)]
    for value in values:
        result = candidate(value)
        assert result == value and type(result) is type(value), value
    assert candidate(1) is not True and candidate((1, 2)) != [1, 2]
"""
    verdict = await run_tests(code, CodeTests("check", "same", source), any_sandbox, QUICK)
    assert verdict.passed == (True,), verdict.reason


async def test_exceptions_and_changes_in_place_cross(any_sandbox):
    code = "def pick(xs):\n    if not xs: raise ValueError('empty')\n    xs.sort()\n    return xs.pop()"
    source = """
def check(candidate):
    xs = [3, 1, 2]
    assert candidate(xs) == 3
    assert xs == [1, 2]
    try:
        candidate([])
    except ValueError as error:
        assert str(error) == "empty"
    else:
        assert False
"""
    verdict = await run_tests(code, CodeTests("check", "pick", source), any_sandbox, QUICK)
    assert verdict.passed == (True,), verdict.reason


async def test_cases_give_a_rate(any_sandbox):
    tests = CodeTests.from_record(
        {
            "metadata": {"func_name": "twice"},
            "public_test_cases": json.dumps(
                [{"input": str(n), "output": str(2 * n), "testtype": "functional"} for n in (1, 2, 5, 6)]
            ),
        }
    )
    code = "def twice(n):\n    if n > 5: raise RuntimeError\n    return 2 * n if n < 5 else 0"
    verdict = await run_tests(code, tests, any_sandbox, QUICK)
    assert verdict.passed == (True, True, False, False)
    assert verdict.rate == 0.5


async def test_a_whole_number_may_be_a_float_on_either_side(any_sandbox):
    cases = [{"input": "0", "output": wanted, "testtype": "functional"} for wanted in ("2.0", "2", "true")]
    record = {"metadata": {"func_name": "f"}, "public_test_cases": json.dumps(cases)}
    for returned, passed in (("2", (True, True, False)), ("2.0", (True, True, False)), ("True", (False, False, True))):
        verdict = await run_tests(f"def f(n):\n    return {returned}", CodeTests.from_record(record), any_sandbox, QUICK)
        assert verdict.passed == passed


def test_where_cases_may_stand_in_a_record():
    one, two = ({"input": str(n), "output": str(n), "testtype": "functional"} for n in (1, 2))
    entry = {"metadata": {"func_name": "f"}}
    for record, count in (
        ({"test": json.dumps([one, two])}, 2),
        ({"test_cases": [one]}, 1),
        ({"private_test_cases": json.dumps([one]), "public_test_cases": json.dumps([two])}, 2),
        ({"public_test_cases": json.dumps([two])}, 1),
    ):
        assert len(CodeTests.from_record(entry | record).cases) == count
    for record in ({}, {"test": "[1, 2]"}, {"test_cases": [{"input": "1"}]}, {"test": "{"}, {"test_cases": 5}):
        with pytest.raises(ConfigurationError, match="no tests in a known form"):
            CodeTests.from_record(entry | record)


async def test_cases_before_a_crash_count(any_sandbox):
    tests = CodeTests("cases", "f", cases=(([1], 1), ([2], 2), ([3], 3)))
    code = "import os\ndef f(n):\n    if n == 2: os._exit(1)\n    return n"
    assert (await run_tests(code, tests, any_sandbox, QUICK)).passed == (True, False, False)


async def test_a_method_of_a_solution_class(any_sandbox):
    tests = CodeTests("cases", "f", cases=(([1], 2),))
    assert await passes("class Solution:\n    def f(self, n):\n        return n + 1", tests, any_sandbox)


async def test_scripts_read_input_and_print(any_sandbox):
    tests = CodeTests.from_record(
        {
            "test_cases": [
                {"input": "1 2\n", "output": "3\n", "testtype": "stdin"},
                {"input": "5 5", "output": "10.0", "testtype": "stdin"},
            ]
        }
    )
    code = "if __name__ == '__main__':\n    a, b = map(int, input().split())\n    print(a + b)  "
    assert (await run_tests(code, tests, any_sandbox, QUICK)).passed == (True, True)
    assert (await run_tests("print(3)", tests, any_sandbox, QUICK)).passed == (True, False)
    assert (await run_tests("print(3)\nraise SystemExit(1)", tests, any_sandbox, QUICK)).passed == (False, False)


TWO_CLASSES = """
import unittest
class A(unittest.TestCase):
    def test_x(self): self.assertEqual(f(), 1)
class B(unittest.TestCase):
    def test_x(self): self.assertEqual(f(), 2)
"""


async def test_unit_tests_of_one_name_in_two_classes_count_apart(any_sandbox):
    tests = CodeTests.from_record({"test": TWO_CLASSES, "entry_point": "f"})
    verdict = await run_tests("def f(): return 2", tests, any_sandbox, Limits(cpu_s=5, wall_s=20))
    assert verdict.passed == (False, True)


UNIT = """
import unittest
from unittest.mock import patch
class TestCases(unittest.TestCase):
    def test_plain(self):
        self.assertEqual(task_func(2), 4)
    def test_patched(self):
        with patch("random.random", return_value=0.5):
            self.assertEqual(task_func(None), 0.5)
"""


async def test_unit_tests(sandbox):
    tests = CodeTests.from_record({"test": UNIT, "entry_point": "task_func"})
    code = "import random\ndef task_func(x):\n    return 2 * x if x else random.random()"
    limits = Limits(cpu_s=5, wall_s=20)
    assert (await run_tests(code, tests, sandbox, limits)).passed == (True, True)
    assert (await run_tests(code.replace("2 *", "3 *"), tests, sandbox, limits)).passed == (False, True)
    assert (await run_tests("import os\nos._exit(0)", tests, sandbox, limits)).passed == (False, False)


async def test_tests_that_do_not_run_give_no_score(any_sandbox):
    with pytest.raises(ScoringError, match="the tests do not run") as caught:
        await run_tests("def add(a, b): return a + b", CodeTests("check", "add", "def check(candidate:"), any_sandbox, QUICK)
    assert caught.value.outcome is Outcome.JUDGE_ERROR


class BrokenSandbox:
    name = "broken"

    async def run(self, program, limits):
        raise SandboxError("sandbox broken: no")


class SilentSandbox:
    name = "silent"

    async def run(self, program, limits):
        return SandboxResult(Ended.EXITED, 0, "", "no such module")


@pytest.mark.parametrize("sandbox", [BrokenSandbox(), SilentSandbox()], ids=["fails", "says nothing"])
async def test_a_failed_sandbox_is_not_a_zero(sandbox):
    task = Task("t1", "add numbers", metadata={"test": ADD.source, "entry_point": "add"})
    with pytest.raises(ScoringError, match="task t1") as caught:
        await PassRate(sandbox=sandbox).score(says("```python\ndef add(a, b): return a + b\n```"), task)
    assert caught.value.outcome is Outcome.INFRA_ERROR


async def test_component(any_sandbox):
    rate = PassRate(sandbox=any_sandbox, limits=QUICK)
    assert isinstance(rate, RewardComponent)
    task = Task("t", "add numbers", metadata={"test": ADD.source, "entry_point": "add"})
    right = "```python\ndef add(a, b):\n    return a + b\n```"
    assert await rate.score(says("Here it is:\n" + right), task) == 1.0
    assert await rate.score(says(right, "```python\ndef add(a, b): return 0\n```"), task) == 0.0
    assert await rate.score(says(right, "Use it like this:\n```python\nprint(add(1, 2))\n```"), task) == 1.0
    assert await rate.score(says("I would rather talk about it."), task) == 0.0


async def test_a_task_without_tests_is_a_configuration_error(any_sandbox):
    with pytest.raises(ConfigurationError, match="task t9: no tests"):
        await PassRate(sandbox=any_sandbox).score(says("```python\nx\n```"), Task("t9", "g", metadata={"test": "print(1)"}))


def human_eval(collab_data):
    with gzip.open(collab_data / "humaneval" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


SPOIL = """

def _spoiled(value):
    if isinstance(value, bool): return not value
    if isinstance(value, (int, float)): return value + 1
    if isinstance(value, str): return value + "x"
    if isinstance(value, (list, tuple)): return type(value)([*value, 0])
    return 0

def _spoil(function):
    return lambda *arguments: _spoiled(function(*arguments))

{name} = _spoil({name})
"""


async def human_eval_verdicts(records, sandbox):
    """Return (all reference solutions' verdicts, all spoiled ones')."""
    tests = [CodeTests.from_record(record) for record in records]
    right = [record["prompt"] + record["canonical_solution"] for record in records]
    broken = [code + SPOIL.format(name=record["entry_point"]) for code, record in zip(right, records, strict=True)]
    limits = Limits(cpu_s=10, wall_s=60)
    jobs = [run_tests(code, test, sandbox, limits) for code, test in zip(right + broken, tests * 2, strict=True)]
    verdicts = [all(verdict.passed) for verdict in await asyncio.gather(*jobs)]
    return verdicts[: len(records)], verdicts[len(records) :]


async def test_some_human_eval_solutions_pass_and_broken_ones_fail(collab_data, any_sandbox):
    records = [
        record for record in human_eval(collab_data) if int(record["task_id"].split("/")[1]) in {0, 32, 33, 38, 50, 99, 163}
    ]
    right, broken = await human_eval_verdicts(records, any_sandbox)
    assert right == [True] * 7
    assert broken == [False] * 7


@pytest.mark.slow
async def test_all_human_eval_reference_solutions_pass_and_broken_ones_fail(collab_data, sandbox):
    records = human_eval(collab_data)
    right, broken = await human_eval_verdicts(records, sandbox)
    assert len(records) == 164
    assert [record["task_id"] for record, verdict in zip(records, right, strict=True) if not verdict] == []
    assert [record["task_id"] for record, verdict in zip(records, broken, strict=True) if verdict] == []
