"""MATH-Chat: a user who wants a problem solved, and says at first only what it is after (CollabLLM section 4).

Takes GSM8K records (`question`, `answer` with the result after `####`) and MATH records (`problem`, `solution` with a
`\\boxed{}` result). With a user model the user is role-played; without one it is made of rules: it opens with the problem's
question, tells the sentences before it one by one (the one that fits the policy's question best, else the next), and leaves when
all is said and an answer is given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from collab.environments.collabllm.reward import paper_reward
from collab.environments.domain import BadRecord, Domain, Resources
from collab.rewards.accuracy import MathAccuracy
from collab.rewards.conversation_reward import ConversationReward
from collab.tasks.task import Task
from simulators.users.protocol import User
from simulators.users.role_play import RolePlayUser
from simulators.users.scripted import HiddenFact, ScriptedUser

TOKEN_PENALTY = 5e-4
"""Lambda for math (CollabLLM Table 6)."""

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9$\"'“])")
_BOXED = re.compile(r"\\boxed\{")
_WORD = re.compile(r"[a-z0-9]+")
_STOP_WORDS = frozenset(
    "a an and are did do does for he how in is it many much of on or she the they to was were what which".split()
)


def task_from_record(record: Mapping[str, Any], default_id: str) -> Task:
    """Turn a GSM8K or MATH record into a task.

    Raises:
        BadRecord: when the problem is empty or its solution has no final result.
    """
    for names in (("question", "problem"), ("answer", "solution")):
        if not any(name in record for name in names):
            found = ", ".join(sorted(map(str, record))) or "no column"
            raise BadRecord(f"needs a column {names[0]!r} (GSM8K) or {names[1]!r} (MATH); the record has {found}")
    question = record.get("question", record.get("problem"))
    solution = record.get("answer", record.get("solution"))
    if not isinstance(question, str) or not question.strip():
        raise BadRecord("field 'question' must be a text that is not empty")
    if not isinstance(solution, str):
        raise BadRecord("field 'answer' must be a text")
    reference = final_result(solution)
    if reference is None:
        raise BadRecord("the answer has no final result: expected one after '####' or in \\boxed{}")
    return Task(
        id=str(record.get("id", record.get("task_id", default_id))),
        goal=" ".join(question.split()),
        reference=reference,
        metadata={"solution": solution},
    )


def final_result(solution: str) -> str | None:
    """Return the result of a reference solution: what follows the last `####`, or stands in the last `\\boxed{}`."""
    if "####" in solution:
        return solution.rpartition("####")[2].strip() or None
    starts = [match.end() for match in _BOXED.finditer(solution)]
    if not starts:
        return None
    depth = 1
    for position in range(starts[-1], len(solution)):
        depth += {"{": 1, "}": -1}.get(solution[position], 0)
        if depth == 0:
            return solution[starts[-1] : position].strip() or None
    return None


def make_user(task: Task, resources: Resources) -> User:
    """Return the role-play user where there is a model for it, else the scripted one."""
    if resources.user_model is not None:
        return RolePlayUser(resources.user_model, task.goal, "You want help with a mathematics problem.", resources.role_play)
    *facts, question = _SENTENCE_END.split(task.goal)
    return ScriptedUser(
        opening=question,
        facts=tuple(HiddenFact(fact, frozenset(_WORD.findall(fact.lower())) - _STOP_WORDS) for fact in facts),
        volunteers=True,
        nothing_left="That is everything I know. What is the answer?",
    )


def make_reward(resources: Resources) -> ConversationReward:
    """R* = accuracy of the final result - token cost + interactivity, where there is a judge for it (equations 2 to 4)."""
    return paper_reward(MathAccuracy(), resources, TOKEN_PENALTY)


def domain() -> Domain:
    """The MATH-Chat domain; it has no options."""
    return Domain(
        name="math_chat",
        summary="Mathematics problems solved in conversation (MATH-Chat); GSM8K and MATH records.",
        task_from_record=task_from_record,
        columns=(),
        make_user=make_user,
        make_reward=make_reward,
        bundled=None,
        max_turns=8,
    )
