import asyncio

import pytest

from simulators.chat_models.concurrency_limit import AdaptiveLimit
from simulators.chat_models.endpoints import Endpoint, EndpointPool
from simulators.errors import ChatModelError


def endpoint(number: int = 0, limit: int = 2) -> Endpoint:
    return Endpoint(f"http://{number}/v1", f"http://{number}", AdaptiveLimit(limit, limit))


def test_the_limit_doubles_a_round_trip_until_the_first_congestion_then_grows_by_one() -> None:
    limit = AdaptiveLimit(4, 100)
    for _ in range(4):
        limit.answered(in_flight=limit.limit)
    assert limit.limit == 8
    limit.congested(limit.epoch)
    assert limit.limit == 4
    for _ in range(4):
        limit.answered(in_flight=limit.limit)
    assert limit.limit == 4
    limit.answered(in_flight=4)
    assert limit.limit == 5


def test_the_limit_does_not_grow_where_it_holds_nobody_back() -> None:
    limit = AdaptiveLimit(4, 100)
    for _ in range(50):
        limit.answered(in_flight=3)
    assert limit.limit == 4


def test_calls_that_met_the_same_congestion_shrink_the_limit_once() -> None:
    limit = AdaptiveLimit(64, 100)
    epoch = limit.epoch
    for _ in range(64):
        limit.congested(epoch)
    assert limit.limit == 32
    for _ in range(20):
        limit.congested(limit.epoch)
    assert limit.limit == 1


def test_the_limit_stays_at_its_maximum() -> None:
    limit = AdaptiveLimit(500, 8)
    for _ in range(50):
        limit.answered(in_flight=8)
    assert limit.limit == 8


async def test_equal_prefixes_meet_at_one_server_and_different_ones_spread() -> None:
    pool = EndpointPool([endpoint(number, limit=100) for number in range(4)], patience_s=1)
    favourites = {}
    for task in range(200):
        affinity = b"task %d" % task
        first = await pool.acquire(affinity)
        second = await pool.acquire(affinity)
        assert first is second
        favourites[task] = first.url
        pool.release(first)
        pool.release(second)
    shares = [list(favourites.values()).count(f"http://{number}/v1") for number in range(4)]
    assert min(shares) > 25  # 50 each on average


async def test_a_favourite_of_many_is_helped_before_it_is_full() -> None:
    pool = EndpointPool([endpoint(number, limit=100) for number in range(2)], patience_s=1)
    for _ in range(60):
        await pool.acquire(b"everybody asks this")
    carried = sorted(each.in_flight for each in pool.endpoints)
    assert carried[0] >= 7
    assert carried[1] >= 32  # it is still the favourite


async def test_a_server_that_leaves_moves_only_its_own_prefixes() -> None:
    everyone = EndpointPool([endpoint(number, limit=100) for number in range(3)], patience_s=1)
    fewer = EndpointPool([endpoint(number, limit=100) for number in range(2)], patience_s=1)
    for task in range(60):
        before = (await everyone.acquire(b"%d" % task)).url
        after = (await fewer.acquire(b"%d" % task)).url
        for pool in (everyone, fewer):
            for each in pool.endpoints:
                each.in_flight = 0
        assert before == "http://2/v1" or before == after


async def test_a_saturated_favourite_spills_over_and_a_full_pool_queues_in_order() -> None:
    pool = EndpointPool([endpoint(0), endpoint(1)], patience_s=1)
    taken = [await pool.acquire(b"x") for _ in range(4)]
    assert taken[0] is taken[1] and taken[2] is taken[3] and taken[0] is not taken[2]
    order: list[str] = []

    async def wait(name: str, again: bool = False) -> None:
        await pool.acquire(b"x", again=again)
        order.append(name)

    calls = [
        asyncio.create_task(wait("first")),
        asyncio.create_task(wait("second")),
        asyncio.create_task(wait("tried before", True)),
    ]
    await asyncio.sleep(0)
    for place in taken[:3]:  # the other server's free place is taken by a call that queues at the favourite
        pool.release(place)
        await asyncio.sleep(0)
    await asyncio.gather(*calls)
    assert order == ["tried before", "first", "second"]


async def test_a_cancelled_call_in_the_queue_leaves_no_hole() -> None:
    pool = EndpointPool([endpoint(limit=1)], patience_s=1)
    place = await pool.acquire(b"")
    given_up = asyncio.create_task(pool.acquire(b""))
    patient = asyncio.create_task(pool.acquire(b""))
    await asyncio.sleep(0)
    given_up.cancel()
    pool.release(place)
    assert (await patient).in_flight == 1


async def test_a_call_cancelled_as_its_turn_comes_passes_its_place_on() -> None:
    pool = EndpointPool([endpoint(limit=1)], patience_s=1)
    place = await pool.acquire(b"")
    unlucky = asyncio.create_task(pool.acquire(b""))
    await asyncio.sleep(0)
    pool.release(place)  # the turn is given ...
    unlucky.cancel()  # ... and the call is cancelled before it sees it
    await asyncio.gather(unlucky, return_exceptions=True)
    assert pool.endpoints[0].in_flight == 0


async def test_a_closed_server_gets_no_calls_until_it_opens() -> None:
    pool = EndpointPool([endpoint(0), endpoint(1)], patience_s=1)
    favourite = await pool.acquire(b"x")
    pool.release(favourite)
    pool.note_failure(favourite, unreachable=False, closed_s=0.05)
    assert await pool.acquire(b"x") is not favourite
    alone = EndpointPool([favourite], patience_s=1)
    started = asyncio.get_running_loop().time()
    assert await alone.acquire(b"x") is favourite
    assert asyncio.get_running_loop().time() - started > 0.02


async def test_a_server_that_answers_nothing_for_long_is_given_up_and_taken_back() -> None:
    pool = EndpointPool([endpoint(limit=1)], patience_s=0.05)
    place = await pool.acquire(b"")
    waiting = asyncio.create_task(pool.acquire(b""))
    await asyncio.sleep(0)
    pool.note_failure(place, unreachable=False, closed_s=None)
    assert not waiting.done()
    await asyncio.sleep(0.06)
    pool.note_failure(place, unreachable=False, closed_s=0.05)
    with pytest.raises(ChatModelError, match="answered nothing"):
        await waiting
    with pytest.raises(ChatModelError, match="answered nothing"):
        await pool.acquire(b"")
    pool.note_answer(place)
    place.closed_until = 0
    pool.release(place)
    assert await pool.acquire(b"") is place
