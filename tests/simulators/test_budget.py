import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from simulators.budget import Budget, BudgetedChatModel, Price, Spending
from simulators.chat_models.protocol import ChatRequest, Completion, SamplingSettings
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.conversation import Message, Usage
from simulators.errors import BudgetExhausted, ChatModelError, ConfigurationError
from simulators.journal import Journal, JournaledChatModel

HELLO = ChatRequest((Message("user", "hello"),))


class Metered(ScriptedChatModel):
    """Every call costs 8 prompt tokens, 4 of them cached, and 2 completion tokens a sample."""

    async def complete(self, request: ChatRequest) -> list[Completion]:
        self.calls += 1
        await asyncio.sleep(0.002)
        return [Completion("x", usage=Usage(8, 2, 4))] + [Completion("x", usage=Usage(0, 2))] * (request.n - 1)


def metered() -> Metered:
    return Metered(lambda request, rng: "")


async def test_the_number_of_calls_is_kept_exactly_and_all_that_were_made_come_back() -> None:
    model, budget = metered(), Budget(max_calls=7)
    wrapped = BudgetedChatModel(model, budget)
    results = await asyncio.gather(*(wrapped.complete(replace(HELLO, seed=seed)) for seed in range(30)), return_exceptions=True)
    assert model.calls == budget.spent.calls == 7
    assert sum(isinstance(result, list) for result in results) == 7
    refused = [result for result in results if isinstance(result, BaseException)]
    assert len(refused) == 23
    assert all(isinstance(error, BudgetExhausted) and "7 of 7 calls" in str(error) for error in refused)


async def test_nobody_is_refused_while_a_call_is_under_way() -> None:
    budget = Budget(max_calls=1)
    slow = BudgetedChatModel(ScriptedChatModel(lambda request, rng: "x", latency_s=0.05), budget)
    first = asyncio.create_task(slow.complete(HELLO))
    second = asyncio.create_task(slow.complete(HELLO))
    await asyncio.sleep(0.02)
    assert not second.done()
    await first  # its reply is recorded before anybody hears that the budget is spent
    with pytest.raises(BudgetExhausted):
        await second


async def test_tokens_and_money_are_limits_too() -> None:
    prices = {"policy": Price(prompt=1e6, completion=3e6, cached=0.5e6)}
    budget = Budget(max_tokens=100, prices=prices)
    wrapped = BudgetedChatModel(metered(), budget)
    await wrapped.complete(HELLO)
    assert (budget.spent.tokens, budget.spent.cost) == (10, 4 + 2 + 6)
    await asyncio.gather(*(wrapped.complete(HELLO) for _ in range(50)), return_exceptions=True)
    assert 100 <= budget.spent.tokens <= 110
    money = Budget(max_cost=60.0, prices=prices)
    model = metered()
    await BudgetedChatModel(model, money).complete(HELLO)
    await asyncio.gather(*(BudgetedChatModel(model, money).complete(HELLO) for _ in range(50)), return_exceptions=True)
    assert 60 <= money.spent.cost <= 72
    with pytest.raises(BudgetExhausted, match="in money"):
        await BudgetedChatModel(model, money).complete(replace(HELLO, role="judge"))


async def test_an_expensive_start_is_not_taken_for_the_end() -> None:
    """Calls under way are expected to cost the mean so far; who waits for that looks again when they cost less."""

    class FirstIsDear(ScriptedChatModel):
        async def complete(self, request: ChatRequest) -> list[Completion]:
            self.calls += 1
            dear = self.calls == 1
            await asyncio.sleep(0.002)
            return [Completion("x", usage=Usage(40 if dear else 1, 0))]

    model, budget = FirstIsDear(lambda request, rng: ""), Budget(max_tokens=60)
    wrapped = BudgetedChatModel(model, budget)
    await wrapped.complete(HELLO)
    results = await asyncio.gather(*(wrapped.complete(HELLO) for _ in range(19)), return_exceptions=True)
    assert all(isinstance(result, list) for result in results)
    assert budget.spent.tokens == 59


async def test_failed_and_cancelled_calls_give_their_place_back() -> None:
    async def fail(request: ChatRequest, rng: object) -> str:
        await asyncio.sleep(0.02)
        raise ChatModelError("gone")

    budget = Budget(max_calls=3)
    wrapped = BudgetedChatModel(ScriptedChatModel(fail), budget)
    first = asyncio.create_task(wrapped.complete(HELLO))
    second = asyncio.create_task(wrapped.complete(HELLO))
    await asyncio.sleep(0.01)
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert budget.spent.calls == 2
    waiting = [asyncio.create_task(wrapped.complete(HELLO)) for _ in range(4)]
    await asyncio.sleep(0.01)
    waiting[1].cancel()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [ChatModelError, asyncio.CancelledError, BudgetExhausted, BudgetExhausted]


async def test_who_is_cancelled_as_its_turn_comes_passes_it_on() -> None:
    budget = Budget(max_tokens=100, spent=Spending(calls=1, tokens=45))
    for _ in range(2):
        await budget.enter()
    waiting = [asyncio.create_task(budget.enter()) for _ in range(2)]  # two calls under way may well cost 90
    await asyncio.sleep(0)
    budget.leave("policy", [])  # it cost nothing, so there is room for one more: the first who waits ...
    waiting[0].cancel()  # ... who is cancelled before it notices
    async with asyncio.timeout(1):
        await waiting[1]


async def test_a_stopped_run_goes_on_with_a_higher_budget_and_pays_nothing_twice(tmp_path: Path) -> None:
    requests = [replace(HELLO, seed=seed) for seed in range(10)]
    made = 0
    for max_calls, done in ((4, 4), (4, 4), (9, 9), (None, 10)):
        journal = Journal(tmp_path / "journal.jsonl")
        budget = Budget(max_calls=max_calls)
        budget.restore(journal)
        model = metered()
        journaled = JournaledChatModel(BudgetedChatModel(model, budget), journal)
        results = await asyncio.gather(*(journaled.complete(request) for request in requests), return_exceptions=True)
        made += model.calls
        journal.close()
        assert made == done == budget.spent.calls
        assert sum(isinstance(result, list) for result in results) == done


async def test_failed_calls_count_over_all_starts(tmp_path: Path) -> None:
    def fail(request: ChatRequest, rng: object) -> str:
        raise ChatModelError("gone")

    made = 0
    for _ in range(3):
        journal = Journal(tmp_path / "journal.jsonl")
        budget = Budget(max_calls=5)
        budget.restore(journal)
        model = ScriptedChatModel(fail)
        journaled = JournaledChatModel(BudgetedChatModel(model, budget), journal)
        requests = [replace(HELLO, seed=seed) for seed in range(20)]
        results = await asyncio.gather(*(journaled.complete(request) for request in requests), return_exceptions=True)
        made += model.calls
        journal.close()
        assert budget.spent == Spending(calls=5, failed=5)
        assert isinstance(results[-1], BudgetExhausted)
    assert made == 5


def in_first_wave(max_tokens: int, n: int = 1) -> ChatRequest:
    """A request whose call costs 10 tokens, and is expected to cost 2 + `max_tokens` * `n` before anything is known."""
    return ChatRequest((Message("user", "12345678"),), SamplingSettings(max_tokens), n=n)


@pytest.mark.parametrize(
    ("max_tokens", "request_", "under_way"),
    [
        (500, in_first_wave(max_tokens=98), 5),
        (501, in_first_wave(max_tokens=98), 6),
        (500, in_first_wave(max_tokens=49, n=2), 5),
        (500, in_first_wave(max_tokens=10_000), 1),
        (1, in_first_wave(max_tokens=10_000), 1),
        (0, in_first_wave(max_tokens=10_000), 0),
    ],
)
async def test_before_anything_was_answered_calls_are_counted_at_what_they_may_cost(
    max_tokens: int, request_: ChatRequest, under_way: int
) -> None:
    model, budget = metered(), Budget(max_tokens=max_tokens)
    wrapped = BudgetedChatModel(model, budget)
    tasks = [asyncio.create_task(wrapped.complete(request_)) for _ in range(64)]
    await asyncio.sleep(0)
    assert model.calls == under_way
    await asyncio.gather(*tasks, return_exceptions=True)
    assert max_tokens <= budget.spent.tokens <= max_tokens + 10 * under_way


async def test_the_first_wave_is_limited_in_money_too() -> None:
    """The judge is free: its answers say nothing about what the policy's calls cost."""
    prices = {"policy": Price(prompt=1e6, completion=2e6)}
    model, budget = metered(), Budget(max_cost=100.0, prices=prices)
    wrapped = BudgetedChatModel(model, budget)
    dear = in_first_wave(max_tokens=24)  # 2 + 2 * 24 = 50
    for _ in range(3):
        await wrapped.complete(replace(dear, role="judge"))
    tasks = [asyncio.create_task(wrapped.complete(dear)) for _ in range(64)]
    await asyncio.sleep(0)
    assert model.calls == 3 + 2
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_failures_do_not_make_answers_look_cheap() -> None:
    budget = Budget(max_tokens=500, spent=Spending(calls=91, tokens=100, failed=90))
    model = metered()
    tasks = [asyncio.create_task(BudgetedChatModel(model, budget).complete(HELLO)) for _ in range(64)]
    await asyncio.sleep(0)
    assert model.calls == 4  # 100 tokens an answer
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_first_wave_that_fails_gives_way_to_the_next() -> None:
    async def fail(request: ChatRequest, rng: object) -> str:
        await asyncio.sleep(0.001)
        raise ChatModelError("gone")

    model, budget = ScriptedChatModel(fail), Budget(max_tokens=300)
    wrapped = BudgetedChatModel(model, budget)
    request = in_first_wave(max_tokens=98)
    async with asyncio.timeout(5):
        results = await asyncio.gather(*(wrapped.complete(request) for _ in range(20)), return_exceptions=True)
    assert {type(result) for result in results} == {ChatModelError}
    assert model.calls == 20


def test_limits_must_make_sense() -> None:
    for wrong in ({"max_calls": -1}, {"max_tokens": -5}, {"max_cost": -0.1, "prices": {"user": Price()}}, {"max_cost": 1.0}):
        with pytest.raises(ConfigurationError):
            Budget(**wrong)  # type: ignore[arg-type]


async def test_a_budget_of_nothing_allows_nothing() -> None:
    model = metered()
    with pytest.raises(BudgetExhausted):
        await BudgetedChatModel(model, Budget(max_calls=0)).complete(HELLO)
    assert model.calls == 0
