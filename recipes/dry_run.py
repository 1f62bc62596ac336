"""Canned replies for dry runs: no model, no torch, and everything else as it would be.

    collab build environment=math_chat policy=scripted limit=20
    collab build policy=scripted user=role_play user.backend=scripted user.model=recipes.dry_run:reply

A script is a function of a request and a random generator that is seeded from it; write your own as `module:function`.
"""

from __future__ import annotations

import json
import random

from simulators.chat_models.protocol import ChatRequest
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.object_reference import load_object

WORDS = "words"
"""As a tokenizer's name: count words."""

_QUESTIONS = ("What is it about?", "How much is it?", "When is it?", "Which one do you mean?", "Is there anything I should know?")
_ANSWERS = ("Here it is.", "Done, as you said.", "The answer is {}.", "I would take {} of them.", "That makes {} in all.")
_WISHES = ("I need some help with this.", "It is about {} of them.", "No, I meant the other one.", "That looks good, thanks.")


def reply(request: ChatRequest, rng: random.Random) -> str:
    """Return what a policy, a user or a judge might say."""
    if request.role == "judge":
        return json.dumps({"reason": "a dry run", "rating": rng.randint(1, 5)})
    if request.role == "user":
        answered = "<assistant>" in request.messages[-1].content  # nobody leaves before anything was said
        return json.dumps({"message": rng.choice(_WISHES).format(rng.randint(2, 99)), "done": answered and rng.random() < 0.2})
    first, second = _ANSWERS[int(rng.random() * len(_ANSWERS))], _ANSWERS[int(rng.random() * len(_ANSWERS))]
    question = _QUESTIONS[int(rng.random() * len(_QUESTIONS))] if rng.random() < 0.5 else ""
    return f"{first} {second} {question}".replace("{}", str(int(rng.random() * 98) + 2)).rstrip()


def scripted_model(script: str) -> ScriptedChatModel:
    """Return a chat model that answers by a script, named as `module:function`.

    Raises:
        ConfigurationError: when there is no such function.
    """
    return ScriptedChatModel(load_object(script, "script"), name=script)


def count_words(text: str) -> int:
    """Return the number of words."""
    return len(text.split())
