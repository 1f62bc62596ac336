"""BigCodeBench-Chat: records of HumanEval and BigCodeBench, what the scripted user tells, and pass rates in the sandbox."""

from pathlib import Path
from typing import Any

import pytest

from collab.environments.collabllm.code_chat import domain, task_from_record
from collab.environments.domain import BadRecord, Environment, Resources
from collab.environments.loading import load_tasks
from tests.scripted_environment import count_words, says

HUMANEVAL: dict[str, Any] = {
    "task_id": "demo/1",
    "prompt": """def double(number: int) -> int:
    '''Return twice a number.

    It may be negative.
    >>> double(2)
    4
    '''
""",
    "entry_point": "double",
    "canonical_solution": "    return 2 * number\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-3) == -6\n",
}
BIGCODEBENCH: dict[str, Any] = {
    "task_id": "BigCodeBench/7",
    "instruct_prompt": """Adds up numbers. Strings are refused.
The function should raise the exception for: ValueError: for a string.
The function should output with:
    int: The sum.
You should write self-contained code starting with:
```
import math
def task_func(numbers):
```""",
    "complete_prompt": "import math\ndef task_func(numbers):\n    ...",
    "code_prompt": "import math\ndef task_func(numbers):\n",
    "canonical_solution": "    return int(math.fsum(numbers))\n",
    "entry_point": "task_func",
    "test": """import unittest
class TestCases(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(task_func([1, 2]), 3)
    def test_empty(self):
        self.assertEqual(task_func([]), 0)
""",
}
RECORDS = [HUMANEVAL, BIGCODEBENCH]


def user_of(record: dict[str, Any]) -> Any:
    return domain().make_user(task_from_record(record, "t"), Resources(count_words))


def test_a_humaneval_user_leaves_out_most_and_tells_it_piece_by_piece() -> None:
    user = user_of(HUMANEVAL)
    assert user.opening == "I need a Python function. Return twice a number."
    assert [fact.statement for fact in user.facts] == [
        "Please start from this:\n```python\ndef double(number: int) -> int:\n```",
        "It may be negative.",
        "For example, `double(2)` should give `4`.",
    ]


def test_a_bigcodebench_user_does_so_too() -> None:
    user = user_of(BIGCODEBENCH)
    assert user.opening == "I need a Python function. Adds up numbers."
    assert [fact.statement for fact in user.facts] == [
        "Please start from this:\n```python\nimport math\ndef task_func(numbers):\n```",
        "Strings are refused.",
        "The function should raise the exception for: ValueError: for a string.",
        "The function should output with: int: The sum.",
    ]


@pytest.mark.parametrize("record", RECORDS)
async def test_the_reference_passes_and_anything_else_does_not(record: dict[str, Any]) -> None:
    environment, task = Environment(domain(), Resources(count_words)), task_from_record(record, "t")
    right = says("code, please", f"Here you are:\n```python\n{task.reference}```")
    wrong = says("code, please", f"```python\ndef {record['entry_point']}(x):\n    return None\n```")
    none = says("code, please", "What should it do?")
    rates = [(await environment.reward.score(each, task)).components["pass_rate"] for each in (right, wrong, none)]
    assert rates == [1.0, 0.0, 0.0]


async def test_a_part_of_the_tests_counts_where_that_is_asked_for() -> None:
    task = task_from_record(BIGCODEBENCH, "t")
    half = says("code, please", "```python\ndef task_func(numbers):\n    return 3\n```")
    rates = {}
    for partial in (False, True):
        score = await Environment(domain(partial=partial), Resources(count_words)).reward.score(half, task)
        rates[partial] = score.components["pass_rate"]
    assert rates == {False: 0.0, True: 0.5}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt": 3}, "field 'prompt' must be a text that is not empty"),
        ({"prompt": "not Python at all ("}, "field 'prompt' is not Python code"),
        ({"prompt": "def other():\n    'text'\n"}, "field 'prompt' does not define double with a docstring"),
        ({"prompt": "def double(n):\n    return 3\n"}, "field 'prompt' does not define double with a docstring"),
        ({"prompt": "x = " + "(" * 5000}, "field 'prompt' is not Python code"),
        ({"entry_point": ""}, "field 'entry_point' must be a text"),
        ({"entry_point": "double(2)"}, "field 'entry_point' must be the name of a function"),
        ({"test": " "}, "field 'test' must be a text that is not empty"),
        ({"test": "assert double(2) == 4"}, "no tests in a known form"),
        ({"prompt": "# " + "x" * 20_000}, "field 'prompt' has 20,002 characters; at most 20,000 are taken"),
    ],
)
def test_a_bad_record_says_what_is_wrong(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRecord, match=r".*") as caught:
        task_from_record(HUMANEVAL | change, "t")
    assert said in str(caught.value)


def test_a_record_without_a_description_names_the_columns() -> None:
    with pytest.raises(
        BadRecord, match=r"needs a column 'prompt' \(HumanEval\) or 'instruct_prompt' \(BigCodeBench\); the record has test"
    ):
        task_from_record({"test": ""}, "t")


def test_every_real_humaneval_problem_is_a_task_with_something_to_tell(collab_data: Path) -> None:
    tasks = load_tasks(str(collab_data / "humaneval" / "HumanEval.jsonl.gz"), domain()).tasks
    assert len(tasks) == 164
    users: list[Any] = [domain().make_user(task, Resources(count_words)) for task in tasks]
    assert all(user.facts for user in users)
    assert all("def " in user.facts[0].statement for user in users)
