"""One HTTP session per event loop, and what can go wrong on the way to a server and back.

A session belongs to the event loop it was made in, and blocking calls make a new loop each time. So it is made when first used
in a loop, and closed with the loop: asyncio closes the loop's asynchronous generators before it ends, and one of them holds it.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncGenerator, Callable
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from simulators.chat_models.server_errors import AttemptFailed

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
_OPENED_AT_ONCE = 8
_NEXT_OPENED_AFTER_S = 0.002
_KEEP_ALIVE_S = 4.0  # shorter than the 5 s after which uvicorn, and so vLLM, hangs up: a POST on a closing connection is lost


class Connection:
    """Sends requests; see the module. `on_new_loop` is called whenever a new event loop takes over."""

    def __init__(self, headers: dict[str, str], connect_timeout_s: float, on_new_loop: Callable[[], None]) -> None:
        self._headers = headers
        self._connect_timeout_s = connect_timeout_s
        self._on_new_loop = on_new_loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: aiohttp.ClientSession | None = None
        self._holder: AsyncGenerator[None, None] | None = None

    async def send(self, url: URL, body: bytes | None, timeout_s: float) -> tuple[int, bytes, str | None]:
        """Send one POST request (a GET without a body); return (status, body, Retry-After header).

        Raises:
            AttemptFailed: no response came, or not a whole one. `unreachable` says that nobody answered at all.
        """
        session = self._session if self._is_open() else await self.open()
        assert session is not None
        sent = session.request("GET" if body is None else "POST", url, data=body, allow_redirects=False)
        try:
            async with asyncio.timeout(timeout_s), sent as response:
                raw = await _read(response)
                if response.status != 200:  # error texts are shown, and some servers quote the key in them
                    raw = self._without_key(raw)
                return response.status, raw, response.headers.get("Retry-After")
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise AttemptFailed("this process may open no more files", congested=True, may_cost=False) from None
            raise AttemptFailed(_reason(error), unreachable=True, may_cost=False) from None
        except TimeoutError:
            raise AttemptFailed(f"no answer within {timeout_s:.3g} s", congested=True) from None
        except (aiohttp.ClientError, OSError) as error:
            raise AttemptFailed(f"the connection broke ({_reason(error)})") from None

    def _without_key(self, raw: bytes) -> bytes:
        key = self._headers.get("Authorization", "").removeprefix("Bearer ")
        return raw.replace(key.encode("ascii"), b"(API key)") if key else raw

    def _is_open(self) -> bool:
        return self._session is not None and self._loop is asyncio.get_running_loop() and not self._session.closed

    async def open(self) -> aiohttp.ClientSession:
        """Return the session of the running event loop."""
        if self._session is not None and self._is_open():
            return self._session
        self._on_new_loop()
        self._loop = asyncio.get_running_loop()
        self._session = aiohttp.ClientSession(
            connector=_InOrder(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        self._holder = _close_with_loop(self._session)
        await anext(self._holder)
        return self._session

    async def aclose(self) -> None:
        """Close the session of the running loop."""
        if self._holder is not None and self._loop is asyncio.get_running_loop():
            await self._holder.aclose()
        self._session = self._holder = self._loop = None


class _InOrder(aiohttp.TCPConnector):
    """Opens connections a few at a time, in the order asked for.

    Where hundreds of calls begin together, the first request is then sent at once, and not after the last connection was
    begun: its answer comes while others are still being sent. No connection waits long for another, however far its server.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._places = asyncio.Semaphore(_OPENED_AT_ONCE)

    async def _create_connection(
        self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        await self._places.acquire()
        loop = asyncio.get_running_loop()
        passed_on = loop.call_later(_NEXT_OPENED_AFTER_S, self._places.release)
        try:
            return await super()._create_connection(req, traces, timeout)
        finally:
            if loop.time() < passed_on.when():
                passed_on.cancel()
                self._places.release()


async def _close_with_loop(session: aiohttp.ClientSession) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await session.close()


async def _read(response: aiohttp.ClientResponse) -> bytes:
    if (response.content_length or 0) > MAX_RESPONSE_BYTES:
        raise AttemptFailed(f"the response is larger than {MAX_RESPONSE_BYTES} bytes")
    chunks = []
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > MAX_RESPONSE_BYTES:
            raise AttemptFailed(f"the response is larger than {MAX_RESPONSE_BYTES} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def _reason(error: BaseException) -> str:
    return str(error)[:200] or type(error).__name__
