"""Errands: small writing jobs and one-step sums whose opening may lack the one fact that they cannot do without.

The environment of the embedded default. A model of 135M parameters can finish every task once it has the fact (a time copied
into a reminder, a name onto a tag, a sum of two numbers), the user is made of rules, and so is the reward. In a share of the
tasks nothing is missing, so a policy that always asks pays for it in tokens and turns.

Tasks are generated here and bundled as `errands.jsonl`: the two splits share no subject ("dentist appointment"), so a held-out
task is never a reworded training task.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from collab.environments.domain import BadRecord, Domain, Resources
from collab.rewards.accuracy import ContainsFact
from collab.rewards.conversation_reward import ConversationReward
from collab.rewards.token_cost import TokenCost
from collab.tasks.task import Task
from simulators.conversation import Conversation
from simulators.questions import asks
from simulators.users.scripted import HiddenFact, ScriptedUser

TOKEN_PENALTY = 5e-3
"""Lambda of CollabLLM equation 4 for conversations this short: a typical one has 40 to 120 tokens."""

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
NAMES = tuple("Anna Ben Clara David Emma Frank Grace Henry Iris Jack Kate Liam Mia Noah Olga Paul Rosa Sam Tina Victor".split())
STREETS = ("Oak", "Elm", "Hill", "Lake", "Mill", "Park", "River", "Church")


@dataclass(frozen=True, slots=True)
class Errand:
    """A kind of task: how it opens with and without the fact, what the fact is, and how the user tells it when asked."""

    kind: str
    opening: str
    with_fact: str
    told: str
    cues: tuple[str, ...]
    train_subjects: tuple[str, ...]
    test_subjects: tuple[str, ...]
    draw: Callable[[random.Random], str]


def _time(rng: random.Random) -> str:
    return f"{rng.choice(DAYS)} at {rng.randint(1, 11)} {rng.choice(('am', 'pm'))}"


def _address(rng: random.Random) -> str:
    return f"{rng.randint(2, 98)} {rng.choice(STREETS)} Street"


ERRANDS: tuple[Errand, ...] = (
    Errand(
        "reminder",
        "Write a one-line reminder for my {subject} appointment{fact}.",
        " on {}",
        "It is on {}.",
        ("when", "date", "day", "time"),
        ("dentist", "haircut", "vet", "bank", "physio", "eye test"),
        ("doctor", "passport", "garage"),
        _time,
    ),
    Errand(
        "invitation",
        "Write a one-sentence invitation to my {subject}{fact}.",
        " on {}",
        "It is on {}.",
        ("when", "date", "day", "time"),
        ("birthday party", "picnic", "book club", "barbecue", "quiz night", "garden party"),
        ("house party", "film evening", "brunch"),
        _time,
    ),
    Errand(
        "label",
        "Write a short label for my {subject}{fact}.",
        " going to {}",
        "The address is {}.",
        ("address", "where", "destination", "going"),
        ("suitcase", "parcel", "toolbox", "crate", "trunk", "backpack"),
        ("box", "bag", "basket"),
        _address,
    ),
    Errand(
        "price tag",
        "Write a price tag for the {subject}{fact}.",
        " that costs {}",
        "It costs {}.",
        ("price", "cost", "much"),
        ("lamp", "chair", "bike", "radio", "kettle", "mirror"),
        ("table", "clock", "vase"),
        lambda rng: f"{rng.randint(3, 95)} dollars",
    ),
    Errand(
        "name tag",
        "Write a name tag for the new {subject}{fact}.",
        " called {}",
        "The name is {}.",
        ("name", "called", "who"),
        ("student", "driver", "cook", "nurse", "trainer", "gardener"),
        ("teacher", "guest", "pilot"),
        lambda rng: rng.choice(NAMES),
    ),
    Errand(
        "booking",
        "Write a one-line message that books a table at the {subject}{fact}.",
        " for {}",
        "It is for {}.",
        ("many", "people", "guests", "number", "party"),
        ("cafe", "diner", "pub", "pizzeria", "tea room", "bakery"),
        ("grill", "bistro", "canteen"),
        lambda rng: f"{rng.randint(2, 30)} people",
    ),
)


def generate(split: str, count: int, seed: int, share_lacking: float = 0.5) -> Iterator[dict[str, Any]]:
    """Yield `count` distinct errand records of a split ("train" or "test"); `share_lacking` of them open without the fact."""
    rng = random.Random(f"{seed}/{split}")
    seen: set[str] = set()
    while len(seen) < count:
        errand = ERRANDS[len(seen) % len(ERRANDS)]
        subject = rng.choice(errand.train_subjects if split == "train" else errand.test_subjects)
        fact = errand.draw(rng)
        lacking = rng.random() < share_lacking
        key = f"{errand.kind}/{subject}/{fact}"
        if key in seen:
            continue
        seen.add(key)
        yield {
            "id": f"errands-{split}-{len(seen):03d}",
            "split": split,
            "kind": errand.kind,
            "opening": errand.opening.format(subject=subject, fact="" if lacking else errand.with_fact.format(fact)),
            "goal": errand.opening.format(subject=subject, fact=errand.with_fact.format(fact)),
            "fact": fact,
            "told": errand.told.format(fact),
            "lacking": lacking,
        }


def task_from_record(record: Mapping[str, Any], default_id: str) -> Task:
    """Turn an errand record into a task.

    Raises:
        BadRecord: when a field is missing or of the wrong type.
    """
    for field in ("opening", "fact", "told"):
        if not isinstance(record.get(field), str) or not record[field].strip():
            raise BadRecord(f"field {field!r} must be a text that is not empty")
    if not isinstance(record.get("lacking"), bool):
        raise BadRecord("field 'lacking' must be true or false")
    return Task(
        id=str(record.get("id", default_id)),
        goal=str(record.get("goal") or record["opening"]),
        reference=record["fact"],
        opening=record["opening"],
        metadata={"lacking": record["lacking"], "told": record["told"], "kind": str(record.get("kind", ""))},
    )


def make_user(task: Task, resources: Resources) -> ScriptedUser:
    """Return the user: it tells the fact when asked, says so when nothing is missing, and leaves when not asked anything."""
    cues = next((errand.cues for errand in ERRANDS if errand.kind == task.metadata["kind"]), ())
    fact = HiddenFact(str(task.metadata["told"]), frozenset(cues))
    assert task.opening is not None
    return ScriptedUser(
        opening=task.opening,
        facts=(fact,) if task.metadata["lacking"] else (),
        nothing_left="It is all in my message. Please just write it.",
    )


@dataclass(frozen=True, slots=True)
class Delivered:
    """1 if the fact stands in what was delivered: the last reply that is not a question. Asking about it delivers nothing."""

    name: str = "accuracy"
    source: str = "CollabLLM equation 3, with Extract(t) the last reply that does not ask and S containment"
    value_range: tuple[float, float] = (0.0, 1.0)

    async def score(self, conversation: Conversation, task: Task) -> float:
        """Return 1 or 0; it never fails."""
        replies = [message for message in conversation if message.role == "assistant" and not asks(message.content)]
        return await ContainsFact().score(tuple(replies[-1:]), task) if replies else 0.0


def make_reward(resources: Resources) -> ConversationReward:
    """R* = the fact was delivered, less the token cost (no judge: rules only)."""
    penalty = TOKEN_PENALTY if resources.token_penalty is None else resources.token_penalty
    return ConversationReward(((Delivered(), 1.0), (TokenCost(resources.count_tokens, penalty), 1.0)))


def domain() -> Domain:
    """The errands domain; it has no options."""
    return Domain(
        name="errands",
        summary="Small writing jobs whose opening may lack the fact they need; scripted user, rule-based reward.",
        task_from_record=task_from_record,
        columns=("opening", "fact", "told", "lacking"),
        make_user=make_user,
        make_reward=make_reward,
        bundled="errands.jsonl",
        max_turns=3,
        proactive_prompt="If a detail is missing, ask the user one short question about it. Otherwise write it at once.",
    )
