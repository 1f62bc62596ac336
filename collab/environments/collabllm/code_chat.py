"""BigCodeBench-Chat: a user who wants a Python function, and leaves out most of what it has to do (CollabLLM section 4).

Takes HumanEval records (`prompt` with a docstring, `test` with `check(candidate)`) and BigCodeBench records (`instruct_prompt`,
`test` with a unittest suite). The extrinsic reward is the pass rate of the final code, run in a sandbox. With a user model the
user is role-played; without one it is made of rules: it opens with the first sentence of the description and tells the rest,
the signature and the examples one by one.
"""

from __future__ import annotations

import ast
import doctest
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collab.environments.collabllm.records import record_id, text_field
from collab.environments.collabllm.reward import collabllm_reward
from collab.environments.domain import BadRecord, Domain, Resources
from collab.language.sentences import split_sentences
from collab.rewards.code import CodeTests
from collab.rewards.conversation_reward import ConversationReward
from collab.rewards.extraction import fenced_blocks
from collab.tasks.task import Task
from simulators.errors import ConfigurationError
from simulators.users.protocol import User
from simulators.users.role_play import RolePlayUser
from simulators.users.scripted import HiddenFact, ScriptedUser

LONGEST_PROBLEM = 20_000
LONGEST_TESTS = 200_000
"""Characters. HumanEval's longest tests have about 18,000."""
MOST_EXAMPLES = 3

LICENCES = {
    "openai/openai_humaneval": "mit",
    "openai_humaneval": "mit",
    "bigcode/bigcodebench": "apache-2.0",
    "bigcode/bigcodebench-hard": "apache-2.0",
}

_WORD = re.compile(r"[a-z0-9]+")
_EXAMPLES_START = re.compile(r"^\s*(?:>>>|(?:for\s+)?examples?\b|e\.g\.)", re.IGNORECASE)
_START_WITH = re.compile(r"\s*You should write self-contained code starting with:\s*", re.IGNORECASE)
_SIGNATURE_CUES = frozenset("name signature call called parameters arguments input inputs types return returns".split())
_EXAMPLE_CUES = frozenset("example examples sample expected output test tests edge".split())


@dataclass(frozen=True, slots=True)
class Description:
    """What a problem says, in the pieces in which a person would tell it: prose, the code to start from, examples."""

    sentences: tuple[str, ...]
    start: str
    examples: tuple[str, ...] = ()


def task_from_record(record: Mapping[str, Any], default_id: str) -> Task:
    """Turn a HumanEval or BigCodeBench record into a task.

    Raises:
        BadRecord: when there is no description, no entry point, or no tests in a known form.
    """
    if "instruct_prompt" not in record and "prompt" not in record:
        found = ", ".join(sorted(map(str, record))) or "no column"
        raise BadRecord(f"needs a column 'prompt' (HumanEval) or 'instruct_prompt' (BigCodeBench); the record has {found}")
    problem = text_field(record, "instruct_prompt" if "instruct_prompt" in record else "prompt", LONGEST_PROBLEM)
    entry_point = text_field(record, "entry_point")
    text_field(record, "test", LONGEST_TESTS)
    if not entry_point.isidentifier():
        raise BadRecord(f"field 'entry_point' must be the name of a function, not {entry_point[:40]!r}")
    tests = {name: record[name] for name in ("test", "entry_point", "prompt") if name in record}
    try:
        CodeTests.from_record(tests)
    except ConfigurationError as error:
        raise BadRecord(str(error)) from None
    description = _described(record, problem, entry_point)
    return Task(
        id=record_id(record, default_id, "task_id"),
        goal=problem.strip(),
        reference=_reference(record),
        metadata={
            **tests,
            "sentences": list(description.sentences),
            "start": description.start,
            "examples": list(description.examples),
        },
    )


def _reference(record: Mapping[str, Any]) -> str | None:
    """Return the reference solution as whole code: both benchmarks keep the body apart from what it stands below."""
    body = record.get("canonical_solution")
    if not isinstance(body, str):
        return None
    head = record.get("code_prompt", record.get("prompt"))
    return f"{head}{body}" if isinstance(head, str) else body


def _described(record: Mapping[str, Any], problem: str, entry_point: str) -> Description:
    if "instruct_prompt" in record:
        prose, *rest = _START_WITH.split(problem, maxsplit=1)
        blocks = fenced_blocks(rest[0]) if rest else []
        start = blocks[0][1].strip() if blocks else f"def {entry_point}(...)"
        return Description(_sentences(prose) or (f"It is called {entry_point}.",), start)
    return _from_docstring(problem, entry_point)


def _from_docstring(prompt: str, entry_point: str) -> Description:
    """Read a HumanEval prompt: the code before the docstring is what to start from, doctests are examples.

    Raises:
        BadRecord: when the prompt is no Python, or does not define the entry point with a docstring.
    """
    try:
        functions = [node for node in ast.walk(ast.parse(prompt)) if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise BadRecord("field 'prompt' is not Python code") from None
    statements = [statement for node in functions if node.name == entry_point for statement in node.body]
    written = [each for each in statements if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)]
    texts = [(each.lineno, each.value.value) for each in written if isinstance(each.value, ast.Constant)]
    found = next(((line, text) for line, text in texts if isinstance(text, str) and text.strip()), None)
    if found is None:  # a few problems import something first, so their docstring is not one to Python
        raise BadRecord(f"field 'prompt' does not define {entry_point} with a docstring")
    docstring = inspect.cleandoc(found[1])
    lines = docstring.splitlines()
    first = next((number for number, line in enumerate(lines) if _EXAMPLES_START.match(line)), len(lines))
    prose = "\n".join(lines[:first]).strip() or docstring
    start = "\n".join(prompt.splitlines()[: found[0] - 1]).strip()
    return Description(_sentences(prose), start, _examples(docstring))


def _examples(docstring: str) -> tuple[str, ...]:
    try:
        found = doctest.DocTestParser().get_examples(docstring)
    except ValueError:  # a doctest that is laid out wrongly is still part of the description for a role-play user
        return ()
    told = [(each.source.strip(), each.want.strip()) for each in found if each.want.strip()]
    return tuple(f"`{source}` should give `{want}`" for source, want in told[:MOST_EXAMPLES])


def _sentences(prose: str) -> tuple[str, ...]:
    """Cut prose into sentences; a list item is one of its own."""
    sentences: list[str] = []
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-*]\s)", prose.strip()):
        sentences += split_sentences(" ".join(paragraph.split()))
    return tuple(sentence for sentence in sentences if sentence)


def make_user(task: Task, resources: Resources) -> User:
    """Return the role-play user where there is a model for it, else the scripted one."""
    if resources.user_model is not None:
        goal = f"Get this Python function written, so that it works exactly as described:\n\n{task.goal}"
        return RolePlayUser(resources.user_model, goal, "You want a Python function for a program of yours.", resources.role_play)
    metadata = task.metadata
    first, *rest = metadata["sentences"]
    return ScriptedUser(
        opening=f"I need a Python function. {first}",
        facts=tuple(_facts(rest, str(metadata["start"]), metadata["examples"])),
        volunteers=True,
        nothing_left="I have told you everything I know. Please write the code.",
    )


def _facts(sentences: Sequence[str], start: str, examples: Sequence[str]) -> list[HiddenFact]:
    """Return the facts in the order of telling: where the code must start is what every solution needs, so it comes first."""
    facts = [HiddenFact(f"Please start from this:\n```python\n{start}\n```", _SIGNATURE_CUES)]
    facts += [HiddenFact(sentence, frozenset(_WORD.findall(sentence.lower()))) for sentence in sentences]
    if examples:
        facts.append(HiddenFact("For example, " + "; ".join(examples) + ".", _EXAMPLE_CUES))
    return facts


def domain(
    reward: str = "paper", sandbox: str = "auto", interpreter: str | None = None, partial: bool = False, wall_s: float = 30.0
) -> Domain:
    """The BigCodeBench-Chat domain.

    `reward` is a preset: paper or upstream. `partial` rewards the share of tests passed instead of all or nothing. `sandbox`
    names the isolation; `interpreter` is a Python with the packages that BigCodeBench needs (None: the standard library only).
    """

    def make_reward(resources: Resources) -> ConversationReward:
        extrinsic = {"sandbox": sandbox, "interpreter": interpreter, "all_or_nothing": not partial, "wall_s": wall_s}
        return collabllm_reward("code", resources, reward, extrinsic)

    return Domain(
        name="code_chat",
        summary="Python functions written in conversation (BigCodeBench-Chat); BigCodeBench and HumanEval records.",
        task_from_record=task_from_record,
        columns=("entry_point", "test"),
        make_user=make_user,
        make_reward=make_reward,
        bundled="code_chat.jsonl",
        max_turns=8,
        licences=LICENCES,
        base_prompt="You are a helpful assistant. Write Python code for the user, in one fenced code block.",
        proactive_prompt=(
            "You write Python functions together with a user, who often leaves out what they must do. If the name, the inputs, "
            "the result or an edge case is unclear and your code depends on it, ask one short, specific question about it first. "
            "Once nothing is missing, give the whole function in one fenced code block, with little text around it."
        ),
    )
