"""What this machine offers for running code that a model wrote, as data for `collab doctor`."""

from __future__ import annotations

from dataclasses import dataclass

from collab.sandbox.selection import ADVICE, PREFERENCE, Availability, availability


@dataclass(frozen=True, slots=True)
class SandboxReport:
    """Every isolation with its test result, strongest first; `chosen` is what "auto" takes, None where code cannot be run."""

    isolations: tuple[Availability, ...]

    @property
    def chosen(self) -> str | None:
        return next((isolation.name for isolation in self.isolations if isolation.available), None)

    @property
    def advice(self) -> str | None:
        """How to get a sandbox, or a stronger one; None where the strongest is there."""
        if self.chosen == PREFERENCE[0]:
            return None
        if self.chosen is None:
            return f"code written by a model cannot be run here: {ADVICE}"
        return f"{self.chosen} is in use; {PREFERENCE[0]} is better tested: `apt-get install bubblewrap` (or `dnf`)"


def examine_sandboxes() -> SandboxReport:
    """Test every isolation on this machine (a fraction of a second each; the results are kept for this process)."""
    return SandboxReport(tuple(availability(name) for name in PREFERENCE))
