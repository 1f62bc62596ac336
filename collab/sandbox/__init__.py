"""Runs code that a model wrote, or refuses to."""

from collab.sandbox.doctor import SandboxReport, examine_sandboxes
from collab.sandbox.protocol import Ended, Limits, Program, Sandbox, SandboxError, SandboxResult
from collab.sandbox.selection import Availability, load_sandbox

__all__ = [
    "Availability",
    "Ended",
    "Limits",
    "Program",
    "Sandbox",
    "SandboxError",
    "SandboxReport",
    "SandboxResult",
    "examine_sandboxes",
    "load_sandbox",
]
