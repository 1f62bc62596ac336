"""Runs *inside* a container: waits for the program and ends the container with it, or when its time is up.

Killing the command that started a container does not end the container, so the clock must run inside as well. The guard is the
container's first process; when it exits, the container runtime takes down whatever is left.

Sent to the inside as text, before `confine.py`; standard library only.
"""

# mypy: disable-error-code="type-arg"

import os
import time

POLL_S = 0.01
MARGIN_S = 1.0
"""Seconds after the limit, so that whoever watches from outside is the first to say that time is up."""


def guard(settings: dict) -> None:
    """Return in a child process; the calling process exits as the child does, or with 137 after the limit and a margin."""
    child = os.fork()
    if child == 0:
        return
    ends = time.monotonic() + settings["wall_s"] + MARGIN_S
    while time.monotonic() < ends:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
        if ended == 0:
            time.sleep(POLL_S)
    os._exit(137)
