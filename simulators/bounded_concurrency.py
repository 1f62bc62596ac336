"""A loop over many pieces of work at once: what builds, evaluations, ablations and simulations have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

Piece = TypeVar("Piece")


async def each(
    pieces: Iterable[Piece],
    work: Callable[[Piece], Awaitable[None]],
    limit: asyncio.Semaphore,
    done: Callable[[], None] = lambda: None,
) -> None:
    """Do every piece of work, begun in their order, as many at once as `limit` allows (which several loops may share).

    The first error cancels the others and is raised. `done` is called after each piece.
    """

    async def one(piece: Piece) -> None:
        try:
            await work(piece)
        finally:
            limit.release()
        done()

    try:
        async with asyncio.TaskGroup() as group:
            for piece in pieces:
                await limit.acquire()
                group.create_task(one(piece))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
