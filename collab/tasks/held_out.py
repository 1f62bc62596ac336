"""Problems that models are measured on, known by what they say, whatever file they come from and whatever their id.

GSM8K's test questions are kept as hashes only (`gsm8k_test_fingerprints.txt`): sharded, evolving and plain training problems are
all compared with them.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files

from collab.tasks.task import Task


def fingerprint(text: str) -> str:
    """Return 16 hex digits that are equal for the same problem however it is spaced, cased or punctuated."""
    words = " ".join(re.findall(r"\w+", text.casefold()))
    return hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@cache
def gsm8k_test_fingerprints() -> frozenset[str]:
    """The fingerprints of all 1,319 GSM8K test questions."""
    text = files(__package__).joinpath("gsm8k_test_fingerprints.txt").read_text("utf-8")
    return frozenset(line for line in text.split() if not line.startswith("#"))


def in_gsm8k_test(task: Task) -> str | None:
    """Name GSM8K's test split where a task's goal is one of its questions (`Domain.held_out`)."""
    return "the test split of GSM8K" if fingerprint(task.goal) in gsm8k_test_fingerprints() else None
