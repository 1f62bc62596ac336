"""The arms of an evaluation: Single against Evolve, each transition on its own, the repeat control, and the recaps.

An arm is a set of options of `domain_of`. All arms are played on the same tasks: with the option `every_arm` a domain takes only
those that allow every one of them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from collab.environments.evolving_intent.schedule import Shape

SINGLE, EVOLVE, REPEAT = "Single", "Evolve", "Repeat"

ARMS: dict[str, dict[str, Any]] = {
    SINGLE: {"turns": 1},
    EVOLVE: {"turns": 7, "switches": 2, "revisions": 2},
    "Reveal": {"turns": 3, "switches": 0, "revisions": 0},
    "Revision": {"turns": 3, "switches": 0, "revisions": 2},
    "Switch": {"turns": 3, "switches": 2, "revisions": 0},
    REPEAT: {"turns": 7, "control": "repeat"},
    "Prompt recap": {"turns": 7, "switches": 2, "revisions": 2, "recap": "prompt"},
    "Oracle recap": {"turns": 7, "switches": 2, "revisions": 2, "recap": "oracle"},
    "Dump recap": {"turns": 7, "switches": 2, "revisions": 2, "recap": "dump"},
}
"""The paper's settings (T = 7, g = 2, p = 2) with its controls, by the names used in tables."""


@cache
def arm_shapes() -> tuple[Shape, ...]:
    """Return the shapes that a task must allow to be played in every arm; the repeat control takes any task."""
    evolving = [options for options in ARMS.values() if "control" not in options]
    return tuple(
        dict.fromkeys(Shape(options["turns"], options.get("switches", 0), options.get("revisions", 0)) for options in evolving)
    )
