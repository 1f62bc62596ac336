import asyncio
import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from simulators.chat_models.protocol import ChatRequest, Completion, SamplingSettings
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.chat_models.server_errors import RequestRefused
from simulators.conversation import Message, Usage
from simulators.errors import BudgetExhausted, ChatModelError, ConfigurationError, ContextOverflow, ReplayMiss, StorageError
from simulators.journal import Journal, JournaledChatModel, call_key

HELLO = ChatRequest((Message("user", "hello"),), seed=1)


def draw(request: ChatRequest, rng: object) -> str:
    return f"{request.messages[-1].content} {rng.random()}"  # type: ignore[attr-defined]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


async def test_a_second_start_reads_back_what_the_first_was_answered(path: Path) -> None:
    requests = [replace(HELLO, seed=seed, n=2) for seed in range(5)]
    first = ScriptedChatModel(draw)
    journal = Journal(path)
    answers = [await JournaledChatModel(first, journal).complete(request) for request in requests[:3]]
    journal.close()
    second = ScriptedChatModel(draw)
    journal = Journal(path)
    again = [await JournaledChatModel(second, journal).complete(request) for request in requests]
    assert again[:3] == answers
    assert (first.calls, second.calls) == (3, 2)
    counts = journal.counts["policy"]
    assert (counts.made, counts.reused, counts.failed) == (2, 3, 0)
    assert counts.completion_tokens == 20
    journal.close()


async def test_everything_known_about_a_completion_is_kept(path: Path) -> None:
    full = Completion("é\ud800", "length", (1, 2), (-0.5, 0.0), Usage(3, 2, 1), "served", "7", 0.25)

    class Full(ScriptedChatModel):
        async def complete(self, request: ChatRequest) -> list[Completion]:
            return [full, replace(full, token_ids=None, logprobs=None)]

    for model in (Full(draw), ScriptedChatModel(draw)):
        journal = Journal(path)
        completions = await JournaledChatModel(model, journal).complete(HELLO)
        assert completions == [full, replace(full, token_ids=None, logprobs=None)]
        journal.close()


@pytest.mark.parametrize(
    "other",
    [
        replace(HELLO, seed=2),
        replace(HELLO, n=2),
        replace(HELLO, role="user"),
        replace(HELLO, reply_prefix="What"),
        replace(HELLO, json_schema={"type": "object"}),
        replace(HELLO, messages=(Message("user", "hullo"),)),
        replace(HELLO, messages=(Message("system", "hello"),)),
        replace(HELLO, messages=(*HELLO.messages, *HELLO.messages)),
        *(
            replace(HELLO, sampling=sampling)
            for sampling in (
                SamplingSettings(max_tokens=9),
                SamplingSettings(temperature=0),
                SamplingSettings(top_p=0.5),
                SamplingSettings(top_k=3),
                SamplingSettings(stop=("?",)),
                SamplingSettings(stop=("?",), include_stop=True),
            )
        ),
    ],
)
def test_different_draws_never_collapse_into_one(other: ChatRequest) -> None:
    model = ScriptedChatModel(draw)
    assert call_key(model, other) != call_key(model, HELLO)


def test_where_one_message_ends_and_the_next_begins_matters() -> None:
    model = ScriptedChatModel(draw)
    split = [replace(HELLO, messages=(Message("user", "hello"[:cut]), Message("user", "hello"[cut:]))) for cut in range(6)]
    assert len({call_key(model, request) for request in split}) == 6


def test_other_weights_are_another_call() -> None:
    models = [ScriptedChatModel(draw), ScriptedChatModel(draw, weights_version="1"), ScriptedChatModel(draw, name="other")]
    assert len({call_key(model, HELLO) for model in models}) == 3


async def test_futures_from_one_prompt_stay_different_draws(path: Path) -> None:
    journal = Journal(path)
    model = JournaledChatModel(ScriptedChatModel(draw), journal)
    answers = await asyncio.gather(*(model.complete(replace(HELLO, seed=seed)) for seed in range(20)))
    assert len({completion.text for (completion,) in answers}) == 20
    journal.close()


async def test_equal_calls_in_flight_are_one_call(path: Path) -> None:
    model = ScriptedChatModel(draw, latency_s=0.02)
    journal = Journal(path)
    journaled = JournaledChatModel(model, journal)
    answers = await asyncio.gather(*(journaled.complete(HELLO) for _ in range(10)))
    assert model.calls == 1
    assert len({id(completion) for (completion,) in answers}) == 1
    counts = journal.counts["policy"]
    assert (counts.made, counts.shared, counts.reused, counts.completion_tokens) == (1, 9, 0, 2)
    journal.close()


async def test_a_call_of_this_start_is_shared_and_one_of_an_earlier_start_is_read_back(path: Path) -> None:
    for made, reused, shared in ((1, 0, 2), (0, 3, 0)):
        journal = Journal(path)
        journaled = JournaledChatModel(ScriptedChatModel(draw), journal)
        for _ in range(3):
            await journaled.complete(HELLO)
        counts = journal.counts["policy"]
        assert (counts.made, counts.reused, counts.shared) == (made, reused, shared)
        assert counts.completion_tokens == 2 * (made + reused)  # what is shared was written once
        assert journal.summary()["policy"]["shared"] == shared
        journal.close()


async def test_a_failed_call_fails_all_who_wait_for_it_and_is_made_again_later(path: Path) -> None:
    calls = 0

    async def fail_once(request: ChatRequest, rng: object) -> str:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.01)
        if calls == 1:
            raise ChatModelError("not now")
        return "fine"

    journal = Journal(path)
    journaled = JournaledChatModel(ScriptedChatModel(fail_once), journal)
    results = await asyncio.gather(*(journaled.complete(HELLO) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(result, ChatModelError) for result in results)
    assert len(journal) == 0
    assert (await journaled.complete(HELLO))[0].text == "fine"
    assert journal.counts["policy"].made == 1
    assert journal.counts["policy"].failed >= 1
    journal.close()


async def test_a_cancelled_call_is_made_again_for_those_who_waited_with_it(path: Path) -> None:
    model = ScriptedChatModel(draw, latency_s=0.02)
    journal = Journal(path)
    journaled = JournaledChatModel(model, journal)
    first = asyncio.create_task(journaled.complete(HELLO))
    await asyncio.sleep(0)
    second = asyncio.create_task(journaled.complete(HELLO))
    await asyncio.sleep(0)
    first.cancel()
    (completion,) = await second
    assert completion.text.startswith("hello")
    assert first.cancelled()
    journal.close()


async def test_a_full_disk_stops_the_run_before_the_reply_is_used(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(path)
    journaled = JournaledChatModel(ScriptedChatModel(draw), journal)
    await journaled.complete(HELLO)

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StorageError):
            await journaled.complete(replace(HELLO, seed=2))
    journal.close()
    assert len(Journal(path)) == 1


async def test_a_replay_makes_no_call_and_says_what_it_misses(path: Path) -> None:
    journal = Journal(path)
    answer = await JournaledChatModel(ScriptedChatModel(draw), journal).complete(HELLO)
    replay = Journal(path, replay=True)  # also while the run is going on
    silent = ScriptedChatModel(draw)
    journaled = JournaledChatModel(silent, replay)
    assert await journaled.complete(HELLO) == answer
    with pytest.raises(ReplayMiss, match="seed 2"):
        await journaled.complete(replace(HELLO, seed=2))
    assert silent.calls == 0
    replay.close()
    journal.close()


async def test_recorded_calls_can_be_gone_through(path: Path) -> None:
    journal = Journal(path)
    journaled = JournaledChatModel(ScriptedChatModel(lambda request, rng: "a b"), journal)
    await journaled.complete(HELLO)
    await journaled.complete(replace(HELLO, role="judge", n=2))
    assert [(role, [each.text for each in completions]) for role, completions in journal.recorded_calls()] == [
        ("policy", ["a b"]),
        ("judge", ["a b", "a b"]),
    ]
    assert journal.summary()["judge"]["made"] == 1
    journal.close()


# ---------------------------------------------------------------- failed calls


class Failing(ScriptedChatModel):
    """Raises what it is given, one error a call, and answers where that is None."""

    def __init__(self, *errors: BaseException | None) -> None:
        super().__init__(draw)
        self.errors = list(errors)

    async def complete(self, request: ChatRequest) -> list[Completion]:
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        return await super().complete(request)


class LocalFailure(ChatModelError):
    """A kind that only its backend knows."""


async def ask(path: Path, *errors: BaseException | None, replay: bool = False) -> list[Completion] | BaseException:
    """Start once: ask for one completion and return what came of it."""
    journal = Journal(path, replay=replay)
    try:
        return await JournaledChatModel(Failing(*errors), journal).complete(HELLO)
    except BaseException as error:
        return error
    finally:
        journal.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ChatModelError("é: no"), ChatModelError),
        (ContextOverflow("too long"), ContextOverflow),
        (RequestRefused("not this"), RequestRefused),
        (LocalFailure("broken"), ChatModelError),
    ],
)
async def test_a_failed_call_fails_again_in_a_replay(path: Path, error: ChatModelError, kind: type[ChatModelError]) -> None:
    assert await ask(path, error) is error
    replayed = await ask(path, replay=True)
    assert type(replayed) is kind
    assert str(replayed) == str(error)


async def test_a_failed_call_is_made_again_by_the_next_start_and_its_answer_wins(path: Path) -> None:
    await ask(path, ChatModelError("first"))
    await ask(path, ChatModelError("second"))
    assert str(await ask(path, replay=True)) == "second"
    answer = await ask(path)
    assert isinstance(answer, list)
    assert await ask(path, replay=True) == answer
    assert await ask(path, AssertionError("it is on record")) == answer


@pytest.mark.parametrize(
    "error",
    [ConfigurationError("key"), BudgetExhausted("spent"), StorageError("full"), asyncio.CancelledError(), ValueError("x")],
)
async def test_what_ends_the_run_is_not_recorded(path: Path, error: BaseException) -> None:
    assert type(await ask(path, error)) is type(error)
    assert len(path.read_bytes().splitlines()) == 1
    assert isinstance(await ask(path, replay=True), ReplayMiss)


async def test_failed_calls_are_not_counted_as_answered(path: Path) -> None:
    journal = Journal(path)
    journaled = JournaledChatModel(Failing(ChatModelError("no"), None, ChatModelError("no")), journal)
    requests = [replace(HELLO, seed=seed) for seed in range(3)]
    await asyncio.gather(*(journaled.complete(request) for request in requests), return_exceptions=True)
    journal.close()
    for replay, failed in ((False, 2), (True, 4)):
        journal = Journal(path, replay=replay)
        assert (len(journal), journal.failed_calls, len(list(journal.recorded_calls()))) == (1, failed, 1)
        journaled = JournaledChatModel(Failing(*[ChatModelError("again")] * 2), journal)
        await asyncio.gather(*(journaled.complete(request) for request in requests), return_exceptions=True)
        counts = journal.counts["policy"]
        assert (counts.made, counts.reused, counts.failed, counts.completion_tokens) == (0, 1, 2, 2)
        journal.close()
        assert Journal(path, replay=True).failed_calls == 4  # those of the second start; the replay wrote nothing


async def test_a_full_disk_that_refuses_a_failure_stops_the_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(request: ChatRequest, rng: object) -> str:
        await asyncio.sleep(0.01)
        raise ChatModelError("no")

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    journal = Journal(path)
    journaled = JournaledChatModel(ScriptedChatModel(fail), journal)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        results = await asyncio.gather(*(journaled.complete(HELLO) for _ in range(3)), return_exceptions=True)
    assert {type(result) for result in results} == {StorageError}
    journal.close()


async def test_a_journal_from_before_failures_were_recorded_is_read_and_written(path: Path) -> None:
    answer = await ask(path)
    header, *records = path.read_text().splitlines(keepends=True)
    path.write_text(json.dumps({**json.loads(header), "version": 1}) + "\n" + "".join(records))
    assert await ask(path, AssertionError("it is on record")) == answer
    journal = Journal(path)
    other = replace(HELLO, seed=2)
    with pytest.raises(ChatModelError):
        await JournaledChatModel(Failing(ChatModelError("no")), journal).complete(other)
    journal.close()
    journal = Journal(path, replay=True)
    assert (len(journal), journal.failed_calls) == (1, 1)
    journal.close()
