"""The meter: every answered call of a piece of work, by role, whoever makes it and whether or not it is read back."""

import asyncio
from pathlib import Path

import pytest

from simulators.budget import Price
from simulators.chat_models.protocol import ChatRequest, Completion
from simulators.conversation import Message, Usage
from simulators.errors import ChatModelError
from simulators.journal import Journal, JournaledChatModel
from simulators.metering import Spent, metered


class Model:
    """Answers with 10 prompt tokens, 4 of them cached, and 3 more; fails where it is told to."""

    name = "model"
    weights_version = "0"
    calls = 0

    async def complete(self, request: ChatRequest) -> list[Completion]:
        self.calls += 1
        await asyncio.sleep(0)
        if request.messages[0].content == "fail":
            raise ChatModelError("no")
        return [Completion("x", usage=Usage(10, 3, 4), latency_s=0.5) for _ in range(request.n)]

    async def aclose(self) -> None: ...


def request(text: str, seed: int = 0, role: str = "policy", n: int = 1) -> ChatRequest:
    return ChatRequest((Message("user", text),), seed=seed, role=role, n=n)  # type: ignore[arg-type]


async def test_tasks_started_inside_are_counted_by_role_and_others_are_not(tmp_path: Path) -> None:
    model = JournaledChatModel(Model(), Journal(tmp_path / "journal.jsonl"))

    async def work(count: int) -> dict[str, Spent]:
        with metered() as meter:
            await asyncio.gather(*(model.complete(request(f"{count}", seed)) for seed in range(count)))
            await model.complete(request(f"{count}", role="judge", n=2))
        return meter.spent()

    await model.complete(request("outside"))
    two, three = await asyncio.gather(work(2), work(3))
    assert two == {"policy": Spent(2, 20, 8, 6, 1.0), "judge": Spent(1, 20, 8, 6, 0.5)}
    assert three["policy"] == Spent(3, 30, 12, 9, 1.5)
    assert three["policy"].tokens == 39


async def test_what_is_read_back_or_shared_counts_like_what_is_made(tmp_path: Path) -> None:
    asked = Model()
    model = JournaledChatModel(asked, Journal(tmp_path / "journal.jsonl"))
    with metered() as first:
        await asyncio.gather(model.complete(request("a")), model.complete(request("a")))  # one call for two
    with metered() as again:
        await model.complete(request("a"))
    assert asked.calls == 1
    assert first.spent()["policy"].calls == 2
    assert again.spent()["policy"] == Spent(1, 10, 4, 3, 0.5)


async def test_a_failed_call_is_not_counted(tmp_path: Path) -> None:
    model = JournaledChatModel(Model(), Journal(tmp_path / "journal.jsonl"))
    with metered() as meter, pytest.raises(ChatModelError):
        await model.complete(request("fail"))
    assert meter.spent() == {}


def test_a_price_is_of_what_was_spent() -> None:
    price = Price(prompt=2.0, completion=10.0, cached=1.0)
    spent = Spent(calls=2, prompt_tokens=1_000_000, cached_tokens=500_000, completion_tokens=100_000)
    assert price.of_usage(spent) == pytest.approx(1.0 + 0.5 + 1.0)
    assert Price(prompt=2.0).of_usage(spent) == pytest.approx(2.0)
