"""Workers: they answer, they are killed, they are replaced, and they die with their parent."""

import asyncio
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from collab.rewards.worker_pool import WorkerFailure, WorkerPool, WorkerTimeout, WorkerUnavailable

HERE = "tests.rewards.worker_functions"


@pytest.fixture
def pool():
    with WorkerPool(workers=2) as pool:
        yield pool


async def call(pool, function, argument=None, deadline_s=30.0):
    return await pool.call(f"{HERE}:{function}", argument, deadline_s)


async def test_results_come_back(pool):
    values = [None, True, 5, 1.5, "text \ud800 \n", [1, [2]], {"a": {"b": None}}, "x" * 1_000_000]
    assert await asyncio.gather(*(call(pool, "echo", value) for value in values)) == values


async def test_workers_persist(pool):
    first = {await call(pool, "process_id") for _ in range(10)}
    assert len(first) <= 2
    assert os.getpid() not in first


async def test_workers_start_with_the_first_call_only():
    with WorkerPool(workers=4) as pool:
        assert pool._threads == []
        await call(pool, "echo", 1)
        assert len(pool._threads) == 1


async def test_a_hanging_worker_is_killed_and_replaced():
    with WorkerPool(workers=1) as pool:
        before = await call(pool, "process_id")
        with pytest.raises(WorkerTimeout, match=r"hang gave no result within 0\.2 s and was killed"):
            await call(pool, "hang", deadline_s=0.2)
        assert await call(pool, "process_id") != before
        with pytest.raises(ProcessLookupError):
            os.kill(before, 0)


async def test_one_hanging_call_does_not_hold_up_the_others(pool):
    hanging = asyncio.create_task(call(pool, "hang", deadline_s=1.0))
    results = await asyncio.gather(*(call(pool, "echo", number) for number in range(20)))
    assert results == list(range(20))
    with pytest.raises(WorkerTimeout):
        await hanging


async def test_a_deadline_does_not_run_in_the_queue():
    with WorkerPool(workers=1) as pool:
        await call(pool, "echo", 0)
        results = await asyncio.gather(*(call(pool, "sleep", 0.1, deadline_s=5.0) for _ in range(3)), call(pool, "echo", 1, 0.25))
        assert results == [0.1, 0.1, 0.1, 1]


async def test_failures_are_failures(pool):
    with pytest.raises(WorkerFailure, match="RuntimeError: no luck"):
        await call(pool, "fail", "luck")
    with pytest.raises(WorkerFailure, match="died"):
        await call(pool, "die")
    with pytest.raises(WorkerFailure, match="not JSON serializable"):
        await call(pool, "unspeakable")
    with pytest.raises(WorkerUnavailable, match="cannot import"):
        await pool.call("tests.rewards.nowhere:f", None, 5)
    with pytest.raises(WorkerUnavailable, match="cannot import"):
        await call(pool, "nothing")
    assert await call(pool, "echo", "still there") == "still there"


async def test_an_argument_that_is_no_data_harms_no_worker():
    with WorkerPool(workers=1) as pool:
        with pytest.raises(WorkerFailure):
            await call(pool, "echo", {1, 2})
        assert await call(pool, "echo", 3) == 3


async def test_what_a_function_prints_is_not_taken_for_its_result(pool):
    assert await call(pool, "shout", "result") == "result"


async def test_memory_is_bounded():
    with WorkerPool(workers=1, memory_mb=400) as pool:
        with pytest.raises(WorkerFailure, match="MemoryError"):
            await call(pool, "hoard", 500)
        assert await call(pool, "hoard", 1) == 1 << 20


async def test_workers_import_nothing_heavy(pool):
    loaded = set(await call(pool, "modules"))
    assert not loaded & {"torch", "transformers", "numpy", "sympy", "aiohttp"}


async def test_a_cancelled_call_is_not_made():
    with WorkerPool(workers=1) as pool:
        await call(pool, "echo", 0)
        first = asyncio.create_task(call(pool, "sleep", 0.1))
        second = asyncio.create_task(call(pool, "hang", deadline_s=60))
        await asyncio.sleep(0.02)
        second.cancel()
        assert await first == 0.1
        assert await call(pool, "echo", 2) == 2


def test_a_pool_serves_one_event_loop_after_another():
    with WorkerPool(workers=1) as pool:
        assert [asyncio.run(call(pool, "echo", number)) for number in range(3)] == [0, 1, 2]


def test_a_closed_pool_starts_again():
    pool = WorkerPool(workers=1)
    assert asyncio.run(call(pool, "echo", 1)) == 1
    pool.close()
    assert asyncio.run(call(pool, "echo", 2)) == 2
    pool.close()


def test_a_forked_child_gets_workers_of_its_own():
    with WorkerPool(workers=1) as pool:
        ours = asyncio.run(call(pool, "process_id"))
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:  # no pytest in here: report and leave
            try:
                theirs = asyncio.run(call(pool, "process_id"))
                os.write(writing, b"own" if theirs != ours else b"shared")
            finally:
                os._exit(0)
        os.close(writing)
        assert os.read(reading, 10) == b"own"
        os.waitpid(child, 0)
        assert asyncio.run(call(pool, "process_id")) == ours


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_workers_die_with_their_parent(busy):
    script = textwrap.dedent(f"""
        import asyncio, os, signal
        from collab.rewards.worker_pool import WorkerPool
        pool = WorkerPool(workers=1)
        print(asyncio.run(pool.call("{HERE}:process_id", None, 30)), flush=True)
        async def main():
            if {busy}:
                asyncio.create_task(pool.call("{HERE}:hang", None, 600))
                await asyncio.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)
        asyncio.run(main())
    """)
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=60)
    worker = int(done.stdout)
    for _ in range(100):
        if not Path(f"/proc/{worker}").exists() or "State:\tZ" in Path(f"/proc/{worker}/status").read_text():
            break
        time.sleep(0.02)
    else:
        pytest.fail(f"worker {worker} outlived its parent")
