"""One sandbox per isolation that this machine can offer; the others skip with the reason."""

import functools

import pytest

from collab.sandbox import isolations
from collab.sandbox.process_sandbox import ProcessSandbox
from collab.sandbox.selection import PREFERENCE, availability


@functools.cache
def sandbox_named(name: str) -> ProcessSandbox:
    return ProcessSandbox(getattr(isolations, name)())


@pytest.fixture(params=PREFERENCE)
def sandbox(request) -> ProcessSandbox:
    """Every isolation in turn: the strongest one, and the ones that must do where it is missing."""
    report = availability(request.param)
    if not report.available:
        pytest.skip(f"{report.name} cannot be used here: {report.detail}")
    return sandbox_named(request.param)
