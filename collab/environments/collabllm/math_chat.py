"""MATH-Chat: a user who wants a problem solved, and says at first only what it is after (CollabLLM section 4).

Takes GSM8K records (`question`, `answer` with the result after `####`) and MATH records (`problem`, `solution` with a
`\\boxed{}` result; `level=5` keeps the level-5 problems, as the paper does). With a user model the user is role-played; without
one it is made of rules: it opens with the problem's question, tells the sentences around it one by one (the one that fits the
policy's question best, else the next), and leaves when all is said and an answer is given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from collab.environments.collabllm.records import record_id, text_field
from collab.environments.collabllm.reward import collabllm_reward
from collab.environments.domain import BadRecord, Domain, Resources
from collab.language.sentences import split_sentences
from collab.rewards.accuracy import gold_answer
from collab.rewards.conversation_reward import ConversationReward
from collab.rewards.extraction import last_boxed
from collab.rewards.judge import accuracy_judge
from collab.tasks.held_out import in_gsm8k_test
from collab.tasks.task import Task
from simulators.errors import ConfigurationError
from simulators.questions import asks
from simulators.users.protocol import User
from simulators.users.role_play import RolePlayUser
from simulators.users.scripted import HiddenFact, ScriptedUser

LONGEST_PROBLEM = 8_000
"""Characters; the longest problem of GSM8K and MATH has about 4,500."""

LICENCES = {"openai/gsm8k": "mit", "gsm8k": "mit", "eleutherai/hendrycks_math": "mit", "huggingfaceh4/math-500": "mit"}

_COMMAND = re.compile(r"^(?:find|compute|calculate|determine|evaluate|simplify|solve|what|how)\b", re.IGNORECASE)
_LEVEL = re.compile(r"(?:level\s*)?(\d)", re.IGNORECASE)
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
    problem = text_field(record, "question" if "question" in record else "problem", LONGEST_PROBLEM)
    for name in ("answer", "solution"):
        if name in record and not isinstance(record[name], str):
            raise BadRecord(f"field {name!r} must be a text")
    solution = record.get("solution", record.get("answer"))
    reference = final_result(record)
    if reference is None:
        raise BadRecord("the answer has no final result: expected one after '####' or in \\boxed{}")
    return Task(
        id=record_id(record, default_id, "task_id", "unique_id"),
        goal=" ".join(problem.split()),
        reference=reference,
        metadata={"solution": solution},
    )


def final_result(record: Mapping[str, Any]) -> str | None:
    """Return the result of a record's solution: what follows the last `####`, or stands in the last `\\boxed{}`.

    Records with a solution *and* a bare answer (MATH-500) have it there.
    """
    for name in ("answer", "solution"):
        if isinstance(text := record.get(name), str):
            if "####" in text:
                return text.rpartition("####")[2].strip() or None
            if (boxed := last_boxed(text)) is not None:
                return boxed
    if "answer" in record and "solution" in record and record["answer"].strip():
        return gold_answer(record["answer"])
    return None


def make_user(task: Task, resources: Resources) -> User:
    """Return the role-play user where there is a model for it, else the scripted one."""
    if resources.user_model is not None:
        return RolePlayUser(resources.user_model, task.goal, "You want help with a mathematics problem.", resources.role_play)
    sentences = split_sentences(task.goal)
    opening = sentences.pop(_question_index(sentences))
    return ScriptedUser(
        opening=opening,
        facts=tuple(HiddenFact(fact, frozenset(_WORD.findall(fact.lower())) - _STOP_WORDS) for fact in sentences),
        volunteers=True,
        nothing_left="That is everything I know. What is the answer?",
    )


def _question_index(sentences: list[str]) -> int:
    """Return which sentence says what is wanted: the last question, else the last command, else the last sentence."""
    for wanted in (asks, _COMMAND.match):
        found = [index for index, sentence in enumerate(sentences) if wanted(sentence)]
        if found:
            return found[-1]
    return len(sentences) - 1


def domain(level: int | None = None, accuracy: str = "rules", reward: str = "paper") -> Domain:
    """The MATH-Chat domain.

    `level` keeps MATH problems of one level (1 to 5; None: all). `accuracy` is judged by `rules` (exact, by math-verify where it
    takes algebra) or by the `judge`, as in the paper's section 4. `reward` is a preset: paper or upstream.

    Raises:
        ConfigurationError: for a value that an option cannot have.
    """
    if level is not None and not 1 <= level <= 5:
        raise ConfigurationError(f"option level is {level}; MATH has levels 1 to 5")
    if accuracy not in ("rules", "judge"):
        raise ConfigurationError(f"option accuracy is {accuracy!r}; it must be rules or judge")

    def selects(record: Mapping[str, Any]) -> bool:
        return level is None or _level_of(record) == level

    def make_reward(resources: Resources) -> ConversationReward:
        paper = collabllm_reward("math", resources, reward)
        if accuracy == "rules" or reward != "paper":
            return paper
        if resources.judge_model is None:
            raise ConfigurationError("math_chat: accuracy=judge needs a judge; set one, or use accuracy=rules")
        return ConversationReward(((accuracy_judge(resources.judge_model), 1.0), *paper.terms[1:]))

    return Domain(
        name="math_chat",
        summary="Mathematics problems solved in conversation (MATH-Chat); GSM8K and MATH records.",
        task_from_record=task_from_record,
        columns=(),
        make_user=make_user,
        make_reward=make_reward,
        bundled="math_chat.jsonl",
        selects=selects,
        held_out=in_gsm8k_test,
        max_turns=8,
        licences=LICENCES,
        base_prompt="You are a helpful assistant. Solve the user's mathematics problems.",
        proactive_prompt=(
            "You help a user with mathematics problems. Users often leave out what is given. If anything that the result depends "
            "on is missing or could be read in two ways, ask one short, specific question about it before you compute. Once "
            "nothing is missing, solve the problem at once, in few steps, and end with 'The answer is ...'."
        ),
    )


def _level_of(record: Mapping[str, Any]) -> int:
    value = record.get("level")
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and (found := _LEVEL.fullmatch(value.strip())):
        return int(found[1])
    if isinstance(value, str) and value.strip():
        return 0  # MATH has a few "Level ?"
    raise BadRecord("option level needs a field 'level' (5, or 'Level 5')")
