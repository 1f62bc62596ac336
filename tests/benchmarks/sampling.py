"""Forward sampling against a server with a fixed latency: `make bench-sampling`.

Everything is measured in one run, on one workload: 64 prompts x 3 futures x window 2, that is 2 x (user, policy) and two judge
calls a future, through RolePlayUser, Policy, two judges, MultiturnReward and the journal. Compared with

- a bare asyncio client: the same calls, no framework, no prompts worth the name, nothing kept;
- collabllm 0.0.8 in its best thread mode, where COLLABLLM_PYTHON names a Python that has it.

Then 500 ms a call against the critical path (five calls one after the other; the bare client beside it shows what the machine
allows), and 10,000 conversations open at once. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from collab.environments.domain import Domain, Environment, Resources
from collab.mr import MultiturnReward
from collab.rewards.conversation_reward import ConversationReward
from collab.rewards.judge import ACCURACY, AccuracyJudge, interactivity_judge
from collab.rewards.token_cost import TokenCost
from collab.tasks.task import Task
from simulators.chat_models.server import ChatServer, ServerOptions
from simulators.conversation import Conversation, Message
from simulators.forward_sampling import future_seeds, sample_future
from simulators.journal import Journal, JournaledChatModel
from simulators.policy import Policy
from simulators.users.protocol import UserTurn
from simulators.users.role_play import RolePlayUser
from tests.benchmarks.fixed_latency_server import fixed_latency_server, get

SEQUENTIAL_CALLS = 5  # user, policy, user, policy, both judges at once
CALLS_A_FUTURE = 6


def history(prompt: int) -> Conversation:
    """The conversation up to the reply whose MR is wanted."""
    return (
        Message("user", f"hey, need help with an equation ({prompt})"),
        Message("assistant", "Sure - what is the equation, and do you want all solutions or one?"),
    )


def task(prompt: int) -> Task:
    """The task behind it."""
    return Task(
        str(prompt), f"Solve problem #{prompt}: find all x with x^2 = {prompt * prompt}.", f"x = {prompt} or x = -{prompt}"
    )


# ---- ours -------------------------------------------------------------------------------------------------------------


async def our_rewards(url: str, arguments: argparse.Namespace) -> list[float | None]:
    """Estimate the MR of every prompt with this project."""
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "journal.jsonl")
        model = JournaledChatModel(ChatServer(url, "fake"), journal)

        def reward(resources: Resources) -> ConversationReward:
            accuracy = AccuracyJudge(model, ACCURACY, "accuracy", "CollabLLM section 4")
            return ConversationReward(
                [(accuracy, 1.0), (TokenCost(resources.count_tokens, 5e-4), 1.0), (interactivity_judge(model), 1.0)]
            )

        domain = Domain(
            name="bench",
            summary="",
            task_from_record=lambda record, default_id: task(0),
            columns=(),
            make_user=lambda each, resources: RolePlayUser(model, each.goal, "You want help with a mathematics problem."),
            make_reward=reward,
        )
        environment = Environment(domain, Resources(count_tokens=lambda text: len(text.split())))
        multiturn_reward = MultiturnReward(environment, Policy(model), arguments.window, arguments.futures)
        estimates = await asyncio.gather(
            *(multiturn_reward.estimate(history(prompt), task(prompt)) for prompt in range(1, arguments.prompts + 1))
        )
        assert len(journal) == arguments.prompts * arguments.futures * (2 * arguments.window + 2)
        await model.aclose()
        journal.close()
        return [estimate.mean for estimate in estimates]


# ---- bare client ------------------------------------------------------------------------------------------------------


async def bare_rewards(url: str, arguments: argparse.Namespace) -> list[float | None]:
    """Do the same calls with aiohttp and nothing else."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def call(content: str) -> str:
            body = {"model": "fake", "messages": [{"role": "user", "content": content}]}
            async with session.post(url + "/v1/chat/completions", json=body) as response:
                text: str = (await response.json())["choices"][0]["message"]["content"]
                return text

        async def future(prompt: int) -> float:
            said = [message.as_dict() for message in history(prompt)]
            for _ in range(arguments.window):
                user = json.loads(await call("role-playing as a human USER\n" + json.dumps(said)))
                said.append({"role": "user", "content": user["message"]})
                said.append({"role": "assistant", "content": await call(json.dumps(said))})
            judged = await asyncio.gather(*(call(f"meticulous {name}\n" + json.dumps(said)) for name in ("right", "lively")))
            tokens = sum(len(message["content"].split()) for message in said)
            return sum(float(json.loads(each)["rating"]) for each in judged) - 5e-4 * tokens

        async def reward(prompt: int) -> float:
            rewards = await asyncio.gather(*(future(prompt) for _ in range(arguments.futures)))
            return sum(rewards) / len(rewards)

        return list(await asyncio.gather(*(reward(prompt) for prompt in range(1, arguments.prompts + 1))))


# ---- measuring --------------------------------------------------------------------------------------------------------


def cpu_s() -> float:
    """CPU time of this process so far, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(
    name: str, rewards: Callable[[str, argparse.Namespace], Any], url: str, arguments: argparse.Namespace
) -> dict[str, float]:
    """Run once, check the number of calls, and print what it took."""
    get(url + "/reset")
    cpu, started = cpu_s(), time.perf_counter()
    estimates = asyncio.run(rewards(url, arguments))
    wall, cpu = time.perf_counter() - started, cpu_s() - cpu
    stats = get(url + "/stats")
    expected = arguments.prompts * arguments.futures * (2 * arguments.window + 2)
    if stats["calls"] != expected or any(estimate is None for estimate in estimates):
        sys.exit(f"{name}: made {stats['calls']} calls instead of {expected}, or lost an estimate")
    row = {"wall_s": wall, "mr_per_s": len(estimates) / wall, "cpu_ms_per_call": 1000 * cpu / stats["calls"]}
    print(f"{name:>12}: " + ", ".join(f"{key} {value:.3f}" for key, value in row.items()) + f", peak {stats['peak']}", flush=True)
    return row


def best(rows: list[dict[str, float]]) -> dict[str, float]:
    """The run that other work on the machine disturbed least."""
    return min(rows, key=lambda row: row["wall_s"])


def reference_mr_per_s(url: str, arguments: argparse.Namespace) -> float | None:
    """Run collabllm 0.0.8 over thread pools of several sizes; its best MR/s, None where it is not there."""
    python = os.environ.get("COLLABLLM_PYTHON")
    if not python:
        print("   reference: skipped; set COLLABLLM_PYTHON to a Python (3.11 at most) that has collabllm==0.0.8")
        return None
    script = Path(__file__).with_name("collabllm_reference.py")
    workload = [
        {"goal": task(prompt).goal, "reference": task(prompt).reference, "history": [each.as_dict() for each in history(prompt)]}
        for prompt in range(1, arguments.prompts + 1)
    ]
    settings = {"url": url, "futures": arguments.futures, "window": arguments.window, "workload": workload}
    result = subprocess.run(
        [python, str(script)], input=json.dumps(settings), capture_output=True, text=True, timeout=600, check=False
    )
    if result.returncode:
        sys.exit(f"the reference failed: {result.stderr.strip().splitlines()[-1:]}")
    row = json.loads(result.stdout.strip().splitlines()[-1])
    print(f"   reference: wall_s {row['wall_s']:.3f}, mr_per_s {row['mr_per_s']:.3f} with {row['pool']} threads ({row['tried']})")
    return float(row["mr_per_s"])


# ---- ten thousand conversations ---------------------------------------------------------------------------------------


class Watched:
    """A user that notes how many of its conversations have begun and not ended."""

    def __init__(self, user: RolePlayUser, counts: dict[str, int]) -> None:
        self._user = user
        self._counts = counts

    async def next_turn(self, conversation: Conversation, seed: int) -> UserTurn:
        """Let the user speak; the conversation is open once it has."""
        turn = await self._user.next_turn(conversation, seed)
        self._counts["open"] += 1
        self._counts["peak"] = max(self._counts["peak"], self._counts["open"])
        return turn


async def open_at_once(url: str, number: int) -> int:
    """Carry on `number` conversations at once; return how many were open, their first user turn taken, at the same time."""
    counts = {"open": 0, "peak": 0}
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "journal.jsonl")
        model = JournaledChatModel(ChatServer(url, "fake", ServerOptions()), journal)

        async def conversation(index: int) -> None:
            user = Watched(RolePlayUser(model, task(index).goal), counts)
            future = await sample_future(history(index), user, Policy(model), 1, future_seeds(0, str(index), 0))
            counts["open"] -= 1
            assert future.error is None and len(future.steps) == 2, future.error

        await asyncio.gather(*(conversation(index) for index in range(number)))
        await model.aclose()
        journal.close()
    return counts["peak"]


def _measure_open(url: str, number: int, result: Any) -> None:
    started = time.perf_counter()
    peak = asyncio.run(open_at_once(url, number))
    result.send((peak, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, time.perf_counter() - started))


def measure_open(url: str, number: int) -> tuple[int, float]:
    """Return (conversations open at once, peak memory in MB), measured in a process that does nothing else."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_measure_open, args=(url, number, there))
    process.start()
    peak, rss_mb, wall_s = here.recv()
    process.join()
    print(f"        open: {peak} conversations at once, {rss_mb:.0f} MB, {wall_s:.1f} s", flush=True)
    return peak, rss_mb


def main() -> None:
    """Measure everything and print the figures, JSON last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--futures", type=int, default=3)
    parser.add_argument("--window", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--slow-repeats", type=int, default=8, help="repeats at 500 ms a call, where a few ms decide")
    parser.add_argument("--open", type=int, default=10_000, help="conversations open at once")
    arguments = parser.parse_args()
    ours, bare = [], []
    with fixed_latency_server(0.05) as url:
        for _ in range(arguments.repeats):  # taking turns, so that other work on the machine disturbs both
            bare.append(measure("bare, 50 ms", bare_rewards, url, arguments))
            ours.append(measure("ours, 50 ms", our_rewards, url, arguments))
    slow, slow_bare = [], []
    with fixed_latency_server(0.5) as url:
        for _ in range(arguments.slow_repeats):
            slow_bare.append(measure("bare, 500 ms", bare_rewards, url, arguments))
            slow.append(measure("ours, 500 ms", our_rewards, url, arguments))
    with fixed_latency_server(0.5) as url:
        open_conversations, rss_mb = measure_open(url, arguments.open)
    with fixed_latency_server(0.05) as url:  # last: its threads keep every core busy for a minute, which is felt for a while
        reference = reference_mr_per_s(url, arguments)
    critical_path_s = 0.5 * (2 * arguments.window + 1)
    figures = {
        "ratio_to_bare_client": best(ours)["mr_per_s"] / best(bare)["mr_per_s"],
        "ratio_to_reference": best(ours)["mr_per_s"] / reference if reference else None,
        "critical_path_ratio_500ms": best(slow)["wall_s"] / critical_path_s,
        "critical_path_ratio_500ms_bare": best(slow_bare)["wall_s"] / critical_path_s,
        "cpu_ms_per_call": best(ours)["cpu_ms_per_call"],
        "open_conversations": open_conversations,
        "rss_mb": rss_mb,
    }
    print(json.dumps({key: round(value, 3) if isinstance(value, float) else value for key, value in figures.items()}))


if __name__ == "__main__":
    main()
