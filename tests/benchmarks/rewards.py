"""Benchmark of rewards and sandbox: `make bench-rewards`.

Measures in one run: solutions a second through the sandbox (164 HumanEval solutions where the data are there, else made-up ones),
1,000 conversations through the rule-based rewards (numbers, algebra in workers, BLEU, SQL, calls, token cost), and the longest
time the event loop was held up meanwhile. The last line is JSON.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import statistics
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from collab.rewards.code import CodeTests, run_tests
from collab.rewards.conversation_reward import ConversationReward
from collab.rewards.presets import RewardTools, build_reward
from collab.sandbox import Limits, examine_sandboxes, load_sandbox
from collab.tasks.task import Task
from simulators.conversation import Conversation, Message

CONVERSATIONS = 1000
PROBE_INTERVAL_S = 0.001
DATA = Path(os.environ.get("COLLAB_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
SCHEMA = "CREATE TABLE singer (id INTEGER PRIMARY KEY, name TEXT, country TEXT, age INTEGER);"


def solutions() -> list[tuple[str, CodeTests]]:
    """Return (code, tests) pairs: HumanEval's reference solutions, or as many small ones of our own."""
    path = DATA / "humaneval" / "HumanEval.jsonl.gz"
    if path.is_file():
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            records = [json.loads(line) for line in stream]
        return [(record["prompt"] + record["canonical_solution"], CodeTests.from_record(record)) for record in records]
    tests = "def check(candidate):\n    assert [candidate(n) for n in range(9)] == [0, 1, 4, 9, 16, 25, 36, 49, 64]\n"
    return [(f"def square(n):\n    return n * n  # {number}\n", CodeTests("check", "square", tests)) for number in range(164)]


def conversations() -> list[tuple[str, Conversation, Task]]:
    """Return (kind of reward, conversation, task): 60% plain numbers, and 10% each of algebra, BLEU, SQL and calls."""
    made = []
    for number in range(CONVERSATIONS):
        kind = ("algebra", "bleu", "execution_match", "call_match")[number % 10] if number % 10 < 4 else "math"
        filler = f"Let me think about this step by step, number {number}. " * 20
        if kind == "math":
            reply, task = f"{filler} The answer is ${number:,}.00.", Task(f"m{number}", "g", f"#### {number + number % 2}")
        elif kind == "algebra":
            reply, task = f"{filler} \\boxed{{\\sqrt{{{number}}} + x}}", Task(f"a{number}", "g", f"x + \\sqrt{{{number}}}")
        elif kind == "bleu":
            text = f"{filler} In the end the fox and the dog shared the river bank. " * 4
            reply, task = text, Task(f"b{number}", "g", text.replace("fox", "cat"))
        elif kind == "execution_match":
            gold = "SELECT country, count(*) FROM singer WHERE age > 30 GROUP BY country"
            reply = f"{filler}\n```sql\n{gold.replace('30', str(30 + number % 20))}\n```"
            task = Task(f"s{number % 50}", "g", metadata={"reference_sql": gold, "schema_sql": SCHEMA})
        else:
            reply = f"{filler} [play(artist='Artist {number}', minutes={number})]"
            task = Task(
                f"c{number}",
                "g",
                metadata={"reference_answer": [{"play": {"artist": [f"artist {number}"], "minutes": [number]}}]},
            )
        made.append(
            (kind, (Message("user", "Please help me. " * 10), Message("assistant", reply), Message("user", "Thanks!")), task)
        )
    return made


def rewards() -> dict[str, ConversationReward]:
    """Return R* for every kind: its rule-based component and the token cost."""
    tools = RewardTools(lambda text: len(text.split()))
    names = {
        "math": "math_accuracy",
        "algebra": "math_accuracy",
        "bleu": "bleu",
        "execution_match": "execution_match",
        "call_match": "call_match",
    }
    return {kind: build_reward([{"name": name}, {"name": "token_cost"}], tools) for kind, name in names.items()}


class LoopWatch:
    """Measures by how much a task that wants to run every millisecond is late."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LoopWatch:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(PROBE_INTERVAL_S)
            self.pauses.append(time.perf_counter() - before - PROBE_INTERVAL_S)


async def timed(work: Awaitable[Any]) -> tuple[Any, float, float]:
    """Return (result, seconds, longest pause of the event loop in seconds)."""
    async with LoopWatch() as watch:
        started = time.perf_counter()
        result = await work
        seconds = time.perf_counter() - started
    return result, seconds, max(watch.pauses, default=0.0)


async def measure_solutions(sandbox_name: str) -> tuple[float, float]:
    """Return (solutions a second, longest pause in ms) and complain when a reference solution fails."""
    sandbox, pairs = load_sandbox(sandbox_name), solutions()
    jobs = asyncio.gather(*(run_tests(code, tests, sandbox, Limits(cpu_s=10, wall_s=60)) for code, tests in pairs))
    verdicts, seconds, pause = await timed(jobs)
    passed = sum(all(verdict.passed) for verdict in verdicts)
    print(
        f"{sandbox_name:12} {passed}/{len(pairs)} solutions pass, {len(pairs) / seconds:6.1f} a second, "
        f"loop held up {pause * 1e3:.1f} ms at most"
    )
    if passed != len(pairs):
        raise SystemExit(f"{len(pairs) - passed} reference solutions failed")
    return len(pairs) / seconds, pause * 1e3


async def measure_conversations() -> tuple[float, float]:
    """Return (conversations a second, longest pause in ms), workers' start included."""
    by_kind, made = rewards(), conversations()
    scores, seconds, pause = await timed(asyncio.gather(*(by_kind[kind].score(said, task) for kind, said, task in made)))
    totals = [score.total for score in scores]
    if None in totals:
        raise SystemExit(
            f"{totals.count(None)} conversations were not scored: {[score.errors for score in scores if score.errors][:3]}"
        )
    print(
        f"rule rewards {len(made)} conversations in {seconds:.2f} s, {len(made) / seconds:.0f} a second, "
        f"loop held up {pause * 1e3:.1f} ms at most, mean R* {statistics.fmean(totals):.3f}"
    )
    return len(made) / seconds, pause * 1e3


async def main() -> None:
    report = examine_sandboxes()
    for isolation in report.isolations:
        print(f"{isolation.name:12} {'available' if isolation.available else 'unavailable'}: {isolation.detail}")
    per_second, pauses = 0.0, []
    for isolation in report.isolations:
        if isolation.available:
            speed, pause = await measure_solutions(isolation.name)
            pauses.append(pause)
            if isolation.name == report.chosen:
                per_second = speed
    conversations_per_s, pause = await measure_conversations()
    pauses.append(pause)
    figures = {
        "solutions_per_s": round(per_second, 1) if report.chosen else None,
        "conversations_per_s": round(conversations_per_s, 1),
        "max_block_ms": round(max(pauses), 1),
        "sandbox": report.chosen,
        "cores": len(os.sched_getaffinity(0)),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    asyncio.run(main())
