"""Whole futures against a server that fails: every one ends in an outcome, failures earn nothing, and no call is paid twice."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from simulators.chat_models.protocol import ChatRequest, SamplingSettings
from simulators.chat_models.server import ChatServer, ServerOptions
from simulators.conversation import Message, Outcome
from simulators.errors import ChatModelError, ConfigurationError, TooManyFailures, UnusableReply
from simulators.failure_share import FailureShare
from simulators.forward_sampling import Future, future_seeds, sample_future
from simulators.journal import Journal, JournaledChatModel
from simulators.policy import Policy
from simulators.structured_reply import ReplyField, ask_structured
from simulators.users.role_play import RolePlayUser
from tests.simulators.fault_server import FAULTS, Body, FaultServer, chat_reply

OPTIONS = ServerOptions(first_backoff_s=0.01, attempt_timeout_s=0.5, deadline_s=10, max_attempts=8)
QUICK = ServerOptions(first_backoff_s=0.005, attempt_timeout_s=0.2, deadline_s=0.8, max_attempts=3)
TASKS, FUTURES, WINDOW = 6, 3, 2
CALLS = TASKS * FUTURES * (2 * WINDOW + 1)
SCORE = {"score": ReplyField("number", minimum=0, maximum=1)}


def reply(body: Body) -> str:
    return '{"score": 0.5}' if "Rate this" in body["messages"][0]["content"] else chat_reply(body)


Scored = tuple[Future, float | None]


async def one_future(model: JournaledChatModel, task: int, index: int) -> Scored:
    """Play one future of a task and have it judged: its reward, None where it earns none."""
    history = (Message("user", f"task {task}: help"), Message("assistant", "With what?"))
    user = RolePlayUser(model, f"the goal of task {task}")
    future = await sample_future(history, user, Policy(model), WINDOW, future_seeds(0, str(task), index))
    if not future.outcome.earns_reward:
        return future, None
    question = Message("user", "Rate this chat.\n" + "\n".join(message.content for message in future.conversation))
    request = ChatRequest((question,), SamplingSettings(temperature=0), seed=index, role="judge")
    try:
        judged = await ask_structured(model, request, SCORE)
    except (UnusableReply, ChatModelError) as error:
        future.outcome = Outcome.JUDGE_ERROR if isinstance(error, UnusableReply) else Outcome.INFRA_ERROR
        future.error = str(error)
        return future, None
    return future, float(judged.values["score"])


async def run(model: JournaledChatModel, tasks: Sequence[int] = range(TASKS)) -> list[Scored]:
    return await asyncio.gather(*(one_future(model, task, index) for task in tasks for index in range(FUTURES)))


def journaled(server: FaultServer, path: Path, options: ServerOptions = OPTIONS) -> tuple[JournaledChatModel, Journal]:
    journal = Journal(path)
    return JournaledChatModel(ChatServer(server.url, "m", options), journal), journal


def made(journal: Journal) -> int:
    return sum(counts.made for counts in journal.counts.values())


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_third_of_all_requests_failing_costs_no_future(fault_server: FaultServer, tmp_path: Path, fault: str) -> None:
    fault_server.reply = reply
    fault_server.plan = lambda number, body: fault if number % 3 == 1 else None
    model, journal = journaled(fault_server, tmp_path / "journal.jsonl")
    scored = await run(model)
    assert [(future.outcome, reward) for future, reward in scored] == [(Outcome.WINDOW_FULL, 0.5)] * (TASKS * FUTURES)
    assert fault_server.answered == made(journal) == len(journal) == CALLS
    assert len(fault_server.requests) > CALLS
    await model.aclose()
    journal.close()
    # Everything is on record: the same run again asks for nothing and comes to the same futures.
    requests = len(fault_server.requests)
    model, journal = journaled(fault_server, tmp_path / "journal.jsonl")
    again = await run(model)
    assert [future.conversation for future, _ in again] == [future.conversation for future, _ in scored]
    assert len(fault_server.requests) == requests
    await model.aclose()
    journal.close()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_that_lasts_fails_the_futures_it_touches_and_no_other(
    fault_server: FaultServer, tmp_path: Path, fault: str
) -> None:
    fault_server.reply = reply
    fault_server.plan = lambda number, body: fault if "task 1" in str(body["messages"]) else None
    model, journal = journaled(fault_server, tmp_path / "journal.jsonl", QUICK)
    scored = await run(model, range(3))
    for position, (future, reward) in enumerate(scored):
        if position // FUTURES == 1:
            assert future.outcome is Outcome.INFRA_ERROR
            assert future.error
            assert reward is None  # missing, never 0
        else:
            assert (future.outcome, reward) == (Outcome.WINDOW_FULL, 0.5)
    assert fault_server.answered == len(journal)
    await model.aclose()
    journal.close()


async def test_each_kind_of_failure_has_its_own_outcome(fault_server: FaultServer, tmp_path: Path) -> None:
    def bad_reply(body: Body) -> str:
        text = str(body["messages"])
        judged, user = "Rate this" in text, "You play a person" in text
        if ("task 0" in text and user) or ("task 1" in text and judged):
            return "I would rather not."
        if "task 2" in text and not user and not judged:
            return ""
        return reply(body)

    fault_server.reply = bad_reply
    fault_server.plan = lambda number, body: (
        "400 context" if "task 3" in str(body["messages"]) and "You play" not in str(body["messages"]) else None
    )
    model, journal = journaled(fault_server, tmp_path / "journal.jsonl")
    outcomes = {task: {future.outcome for future, _ in await run(model, [task])} for task in range(3)}
    assert outcomes == {0: {Outcome.USER_ERROR}, 1: {Outcome.JUDGE_ERROR}, 2: {Outcome.POLICY_ERROR}}
    history = (Message("user", "task 3: help"), Message("assistant", "With what?"))
    future = await sample_future(history, RolePlayUser(model, "task 3"), Policy(model), 1, future_seeds(0, "3", 0))
    assert future.outcome is Outcome.TRUNCATED
    await model.aclose()
    journal.close()


async def test_a_server_killed_and_restarted_in_the_middle_costs_nothing(fault_server: FaultServer, tmp_path: Path) -> None:
    fault_server.reply = reply
    fault_server.latency_s = 0.01
    model, journal = journaled(fault_server, tmp_path / "journal.jsonl")
    running = asyncio.create_task(run(model))
    while fault_server.answered < CALLS // 3:
        await asyncio.sleep(0.005)
    await fault_server.stop()
    await asyncio.sleep(0.1)
    assert not running.done()
    await fault_server.start()
    scored = await running
    assert [(future.outcome, reward) for future, reward in scored] == [(Outcome.WINDOW_FULL, 0.5)] * (TASKS * FUTURES)
    assert made(journal) == len(journal) == CALLS
    await model.aclose()
    journal.close()


async def test_a_server_that_stays_away_fails_all_that_is_left_and_the_run_stops_saying_why(
    fault_server: FaultServer, tmp_path: Path
) -> None:
    fault_server.reply = reply
    model, journal = journaled(fault_server, tmp_path / "journal.jsonl", QUICK)
    await run(model, [0])
    await fault_server.stop()
    share = FailureShare(max_share=0.3, minimum=10)

    async def counted(task: int, index: int) -> None:
        future, _ = await one_future(model, task, index)
        share.add(future.outcome, future.error)

    with pytest.raises(TooManyFailures) as caught:
        async with asyncio.timeout(20):
            await asyncio.gather(*(counted(task, index) for task in range(1, 10) for index in range(FUTURES)))
    assert "infra_error" in str(caught.value)
    assert "127.0.0.1" in str(caught.value)
    await model.aclose()
    journal.close()


async def test_a_wrong_key_stops_the_run_at_once(fault_server: FaultServer, tmp_path: Path) -> None:
    fault_server.plan = lambda number, body: "401 bad key"
    model, journal = journaled(fault_server, tmp_path / "journal.jsonl")
    with pytest.raises(ConfigurationError, match="API key"):
        await run(model)
    await model.aclose()
    journal.close()


async def test_a_run_killed_at_any_moment_pays_no_finished_call_twice(fault_server: FaultServer, tmp_path: Path) -> None:
    """The client is a process that is killed again and again; what it had on record is never asked for again."""
    fault_server.reply = reply
    fault_server.latency_s = 0.02
    path = tmp_path / "journal.jsonl"
    code = (
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from tests.simulators.fault_server import FaultServer\nfrom tests.simulators.test_faults import journaled, run\n"
        f"server = FaultServer(); server.port = {fault_server.port}\n"
        f"model, journal = journaled(server, Path({str(path)!r}))\n"
        "asyncio.run(run(model))"
    )
    lost = recorded = 0
    for kill_at in (CALLS // 5, CALLS // 2, None):
        before = fault_server.answered
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, cwd=Path(__file__).parents[2])
        while kill_at is not None and fault_server.answered < kill_at:
            await asyncio.sleep(0.005)
        if kill_at is not None:
            process.kill()
        assert await process.wait() == (0 if kill_at is None else -9)
        await asyncio.sleep(0.05)  # the server finishes what it had begun
        journal = Journal(path, replay=True)
        lost += (fault_server.answered - before) - (len(journal) - recorded)
        recorded = len(journal)
        journal.close()
    assert recorded == CALLS
    assert fault_server.answered == CALLS + lost  # only what had not reached the journal was asked for again
    assert lost <= 2 * TASKS * FUTURES  # at most what was under way at the two kills
    model, journal = journaled(fault_server, path)
    assert len(await run(model)) == TASKS * FUTURES
    assert fault_server.answered == CALLS + lost
    await model.aclose()
    journal.close()
