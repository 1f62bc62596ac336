"""Turns on the event loop: in order, one a round, and nobody waits for the dead."""

import asyncio

from collab.rewards.loop_turns import turn


async def test_one_turn_a_round():
    rounds = 0
    taken: list[tuple[int, int]] = []
    done = asyncio.Event()

    async def count_rounds():
        nonlocal rounds
        while not done.is_set():
            rounds += 1
            await asyncio.sleep(0)

    async def worker(number):
        await turn()
        taken.append((number, rounds))

    counter = asyncio.create_task(count_rounds())
    await asyncio.gather(*(worker(number) for number in range(100)))
    done.set()
    await counter
    assert [number for number, _ in taken] == list(range(100))
    assert len({at for _, at in taken}) >= 99


async def test_a_cancelled_waiter_is_passed_over():
    tasks = [asyncio.create_task(turn()) for _ in range(5)]
    await asyncio.sleep(0)
    for task in tasks[1:4]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(result, asyncio.CancelledError) for result in results] == [False, True, True, True, False]
    await turn()


def test_every_event_loop_has_a_line_of_its_own():
    async def main():
        await asyncio.gather(*(turn() for _ in range(10)))
        return True

    assert [asyncio.run(main()) for _ in range(3)] == [True] * 3
