import asyncio
import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from simulators.chat_models.protocol import ChatRequest, Completion, SamplingSettings
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.conversation import Message, Usage
from simulators.errors import ChatModelError, ReplayMiss, StorageError
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
    assert (journal.counts["policy"].made, journal.counts["policy"].reused) == (1, 9)
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
