from collections.abc import AsyncIterator

import pytest

from tests.simulators.fault_server import FaultServer


@pytest.fixture
async def fault_server() -> AsyncIterator[FaultServer]:
    server = FaultServer()
    await server.start()
    yield server
    await server.stop()
