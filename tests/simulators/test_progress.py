import asyncio
import io
import subprocess
import sys
from pathlib import Path

import pytest

from simulators.budget import Budget, Price
from simulators.chat_models.protocol import Completion
from simulators.conversation import Message
from simulators.forward_sampling import Step
from simulators.journal import CallCounts
from simulators.progress import EngineRates, Progress, ProgressFigures, chain_s, efficiency


def counts() -> dict[str, CallCounts]:
    return {
        "policy": CallCounts(made=6, reused=1, failed=2, prompt_tokens=100, cached_tokens=60, completion_tokens=300),
        "user": CallCounts(made=4, prompt_tokens=100, cached_tokens=20, completion_tokens=100),
    }


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_a_line_now_and_then_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    live = counts()
    budget = Budget(max_cost=5, prices={"user": Price()})
    budget.spent.cost = 1.25
    async with Progress(live, 4, budget, stream, interval_s=0.05) as progress:
        progress.future_done()
        progress.future_done(failed=True)
        live["policy"].made += 10
        await asyncio.sleep(0.12)
    lines = stream.getvalue().splitlines()
    assert 2 <= len(lines) <= 4
    assert "futures 2/4 (1 failed)" in lines[-1]
    assert "calls 20 made, 1 from the journal, 2 failed" in lines[-1]
    assert "prefix hits 40%" in lines[-1]
    assert "cost 1.25" in lines[-1]
    assert "left" in lines[-1]


async def test_a_short_run_says_one_line_also_when_it_fails() -> None:
    stream = io.StringIO()
    with pytest.raises(RuntimeError):
        async with Progress({}, stream=stream):
            await asyncio.sleep(0)
            raise RuntimeError
    assert stream.getvalue().count("\n") == 1
    assert "futures 0 (0 failed)" in stream.getvalue()
    assert "left" not in stream.getvalue()


async def test_a_terminal_gets_a_live_line() -> None:
    stream = Terminal()
    async with Progress(counts(), 4, stream=stream) as progress:
        progress.future_done()
        await asyncio.sleep(0.01)
    assert "futures 1/4" in stream.getvalue()


def test_rates_are_over_what_happened_since_the_start() -> None:
    live = counts()
    progress = Progress(live, 10)
    before = progress.figures()
    assert (before.calls_per_s, before.tokens_per_s, before.time_left_s) == (0, 0, None)
    live["user"].made += 1
    live["user"].completion_tokens += 50
    after = progress.figures()
    assert after.calls_per_s > 0
    assert after.tokens_per_s == pytest.approx(50 * after.calls_per_s)


def test_shared_calls_are_told_apart_from_those_of_an_earlier_start() -> None:
    live = counts()
    live["user"].shared = 3
    figures = Progress(live).figures()
    assert (figures.calls_made, figures.calls_shared, figures.calls_reused) == (10, 3, 1)
    assert "calls 10 made, 3 shared, 1 from the journal, 2 failed" in figures.line()


def test_long_times_are_told_in_hours() -> None:
    figures = ProgressFigures(7260, 1, None, 0, 1, 0, 0, 0, 1, 1, None, None, 61)
    assert "2 h 01 min elapsed" in figures.line()
    assert "1 min 01 s left" in figures.line()


@pytest.mark.parametrize(
    ("chain", "rates", "binding", "bound"),
    [
        (9.0, EngineRates(), "chain", 9.0),
        (1.0, EngineRates(calls=2.0), "calls", 5.0),
        (1.0, EngineRates(decode_tokens=100.0), "tokens", 4.0),
        (1.0, EngineRates(calls=2.0, decode_tokens=100.0, prefill_tokens=60.0), "tokens", 6.0),
    ],
)
def test_efficiency_is_the_largest_bound_over_the_time_taken(
    chain: float, rates: EngineRates, binding: str, bound: float
) -> None:
    result = efficiency(10.0, chain, counts().values(), rates)
    assert (result["binding"], result["bound_s"]) == (binding, bound)
    assert result["efficiency"] == bound / 10
    assert result["bound_chain_s"] == chain


def test_a_run_takes_time() -> None:
    with pytest.raises(ValueError):
        efficiency(0.0, 1.0, [], EngineRates())


def test_the_chain_is_the_sum_of_one_conversations_calls() -> None:
    message = Message("user", "x")
    steps = [Step(message, "user", 0), Step(message, "policy", 0, Completion("x", latency_s=0.5))]
    assert chain_s(steps * 2) == 1.0


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, simulators.progress, simulators.budget, simulators.adaptive_sampling, simulators.users.role_play; "
        "print([name for name in ('torch', 'transformers', 'vllm', 'rich', 'aiohttp', 'wandb') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
