"""The system's role: which replies are scored, and with what."""

import asyncio
import sqlite3
from contextlib import closing

import pytest

from collab.environments.lost_in_conversation.assessment import Assessor, StopWhenRight
from collab.environments.lost_in_conversation.extraction import extract_answer
from collab.environments.lost_in_conversation.schema import Split, instruction_from_record
from collab.environments.lost_in_conversation.simulations import Simulation
from collab.environments.lost_in_conversation.strategy import Strategy
from collab.environments.lost_in_conversation.verifiers import Verifiers
from collab.rewards.component import ScoringError
from simulators.conversation import Message
from simulators.errors import ConfigurationError
from simulators.users.sharded import ShardedUser
from tests.lost_in_conversation.records import ACTIONS, CODE, DATA2TEXT, DATABASE, gold_number, math_instruction

INSTRUCTION = math_instruction()  # 12 trays of 6, less 40: 32
RIGHT = f"The answer is {gold_number(INSTRUCTION)}."


def conversation(*replies):
    return tuple(message for reply in replies for message in (Message("user", "go on"), Message("assistant", reply)))


async def test_only_attempts_are_scored_in_a_multi_turn_conversation():
    replies = await Assessor().assess(conversation("How many trays?", "The answer is 5.", RIGHT), INSTRUCTION, Simulation.SHARDED)
    assert [(each.turn, each.strategy, each.score) for each in replies] == [
        (1, Strategy.CLARIFICATION, None),
        (2, Strategy.ANSWER_ATTEMPT, 0.0),
        (3, Strategy.ANSWER_ATTEMPT, 1.0),
    ]
    assert replies[1].answer == "5" and replies[0].answer is None and replies[0].words == 3


async def test_a_single_turn_reply_is_always_extracted():
    (reply,) = await Assessor().assess(conversation("Is it 32? I think it is 32, yes"), INSTRUCTION, Simulation.FULL)
    assert reply.strategy is None and reply.score == 1.0
    (reply,) = await Assessor().assess(conversation("How many trays?"), INSTRUCTION, Simulation.CONCAT)
    assert reply.score == 0.0, "a question in a single turn is no answer, and that is the policy's doing"


@pytest.mark.parametrize("answer", ["32", "$32.00", "32.0", "\\boxed{32}", "**32** rolls", "#### 32"])
async def test_the_number_counts_not_its_dress(answer):
    assert (await Verifiers().verify(f"Answer: {answer}", INSTRUCTION))[1] == 1.0


@pytest.mark.parametrize("answer", ["3.2", "320", "132", "33", "-32"])
async def test_other_numbers_are_wrong(answer):
    assert (await Verifiers().verify(f"Answer: {answer}", INSTRUCTION))[1] == 0.0


def of(record):
    return instruction_from_record(record, Split.EVALUATION)


@pytest.mark.parametrize(
    ("record", "reply", "answer"),
    [
        (CODE, "Sure:\n```python\ndef largest(xs):\n    return 1\n```", "def largest(xs):\n    return 1\n"),
        (CODE, "```python\ndef best(xs):\n    return 1\n```", "def best(xs):\n    return 1\n\nlargest = best\n"),
        (CODE, "def best(xs):\n    return 1", "def best(xs):\n    return 1\n\nlargest = best\n"),
        (CODE, "```python\nlargest = max\n```", "largest = max\n"),
        (CODE, "```python\ndef broken(:\n```", "def broken(:\n"),
        (CODE, "I would use max().", None),
        (DATABASE, "Run `SELECT name FROM singer` please", "SELECT name FROM singer"),
        (DATABASE, "```sql\nSELECT 1;\n```", "SELECT 1;"),
        (DATABASE, "I would look at the singer table.", None),
        (DATA2TEXT, '**Description:** "Ann won."', "Ann won."),
        (DATA2TEXT, "<think>Ann?</think>", None),
    ],
)
def test_extraction_task_by_task(record, reply, answer):
    assert extract_answer(reply, of(record)) == answer


async def test_a_name_that_was_never_told_does_not_fail_the_code():
    reply = "```python\ndef biggest(numbers):\n    return max(numbers, default=None)\n```"
    assert (await Verifiers().verify(reply, of(CODE)))[1] == 1.0
    assert (await Verifiers().verify(reply.replace("max", "min"), of(CODE)))[1] == 0.0


class Counting(Verifiers):
    """Counts how often it verifies; fails on demand."""

    calls = 0
    fails = False

    async def verify(self, reply, instruction):
        type(self).calls += 1
        await asyncio.sleep(0)
        if type(self).fails:
            raise ScoringError("the verifier broke")
        return await super().verify(reply, instruction)


async def test_a_reply_is_assessed_once_however_many_ask():
    Counting.calls, Counting.fails = 0, False
    assessor = Assessor(Counting())
    talk = conversation(RIGHT)
    await asyncio.gather(*(assessor.assess(talk, INSTRUCTION, Simulation.SHARDED) for _ in range(5)))
    await assessor.assess(talk, INSTRUCTION, Simulation.SHARDED)
    assert Counting.calls == 1
    await assessor.assess(conversation("How many trays?", RIGHT), INSTRUCTION, Simulation.SHARDED)
    assert Counting.calls == 1, "the same answer in another conversation is the same answer"
    await assessor.assess(talk, math_instruction(2), Simulation.SHARDED)
    assert Counting.calls == 2, "another instruction is another question"


async def test_a_verifier_that_fails_is_no_score_and_is_asked_again():
    Counting.calls, Counting.fails = 0, True
    assessor = Assessor(Counting())
    with pytest.raises(ScoringError):
        await assessor.assess(conversation(RIGHT), INSTRUCTION, Simulation.SHARDED)
    Counting.fails = False
    assert (await assessor.assess(conversation(RIGHT), INSTRUCTION, Simulation.SHARDED))[0].score == 1.0


async def test_early_stop_leaves_after_a_right_attempt_only():
    inner = ShardedUser(INSTRUCTION.shard_texts)
    user = StopWhenRight(inner, Assessor(), INSTRUCTION, Simulation.SHARDED)
    opening = (Message("user", INSTRUCTION.shards[0].text),)
    assert (await user.next_turn((), 0)).text == INSTRUCTION.shards[0].text
    assert (await user.next_turn((*opening, Message("assistant", RIGHT)), 0)).ends
    for reply in ("The answer is 31.", "What about the trays?"):
        assert not (await user.next_turn((*opening, Message("assistant", reply)), 0)).ends


async def test_queries_run_on_the_databases_of_a_folder_where_one_is_given(tmp_path):
    database = of(DATABASE)
    for reply, score in (
        ("SELECT name FROM singer WHERE age > 30", 1.0),
        ("SELECT s.name FROM singer s WHERE 30 < s.age", 1.0),
        ("SELECT name FROM singer", 0.0),
        ("SELECT nothing FROM nowhere", 0.0),
    ):
        assert (await Verifiers().verify(f"```sql\n{reply}\n```", database))[1] == score, reply
    with pytest.raises(ConfigurationError, match="needs the database"):
        await Verifiers(databases=tmp_path).verify("SELECT name FROM singer", database)
    (tmp_path / "own").mkdir()
    with closing(sqlite3.connect(tmp_path / "own" / "own.sqlite")) as connection:
        connection.executescript(DATABASE["schema_sql"] + "INSERT INTO singer VALUES (1, 'Ann', 40), (2, 'Bob', 50);")
    everyone = "SELECT name FROM singer"
    assert (await Verifiers(databases=tmp_path).verify(everyone, database))[1] == 1.0, "everyone here is older than 30"


async def test_calls_match_in_any_order():
    actions = of(ACTIONS)
    for reply, score in (
        ("[area(base=5, height=6), area(base=3, height=4)]", 1.0),
        ("Sure: [area(base=3, height=4), area(5, 6)].", 1.0),
        ("[area(base=3, height=4)]", 0.0),
        ("[area(base='3', height=4), area(base=5, height=6)]", 0.0),
        ("[__import__('os').system('true')]", 0.0),
    ):
        assert (await Verifiers().verify(reply, actions))[1] == score, reply
