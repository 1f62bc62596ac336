"""Policies for `policy=scripted` that read evolving conversations about a file of problems: perfectly, or deaf to one thing.

The file is named by the environment variable EVOLVING_PROBLEMS.
"""

from __future__ import annotations

import json
import os
import random
from functools import cache
from pathlib import Path

from collab.environments.evolving_intent.conversion import Conversion
from collab.environments.evolving_intent.gsm8k.builder import convert_record
from collab.environments.evolving_intent.reader import Reader
from simulators.chat_models.protocol import ChatRequest


def perfect(request: ChatRequest, rng: random.Random) -> str:
    """Answer the intent of today."""
    return _reply(request)


def deaf_to_revisions(request: ChatRequest, rng: random.Random) -> str:
    """Keep the first value told."""
    return _reply(request, ignores_revisions=True)


def deaf_to_switches(request: ChatRequest, rng: random.Random) -> str:
    """Keep the first question asked."""
    return _reply(request, ignores_switches=True)


def _reply(request: ChatRequest, **ignores: bool) -> str:
    said = [message.content.split("\n\n")[0] for message in request.messages if message.role == "user"]  # without a recap
    problem = next((one for one in conversions() if said[0] == one.task.text), None)
    if problem is not None:  # the single turn and its repetitions: nothing to follow
        return f"The answer is {problem.task.reference}."
    words = set(said[0].split())
    meant = max(conversions(), key=lambda one: len(words & set(one.task.text.split())))
    answer = Reader(meant, **ignores).answer(said)
    return "Could you tell me more?" if answer is None else f"So the answer is {answer}."


@cache
def conversions() -> list[Conversion]:
    """Return the problems of the file, taken apart."""
    lines = Path(os.environ["EVOLVING_PROBLEMS"]).read_text(encoding="utf-8").splitlines()
    return [convert_record(json.loads(line), "x", seed=0) for line in lines]
