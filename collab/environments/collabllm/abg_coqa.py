"""Abg-CoQA: a question about a story that may be ambiguous; the policy should ask back when, and only when, it is.

CollabLLM section 5.3 and Appendix D (Guo et al. 2021). Takes the benchmark's records: `story`, `target_turn`, `history_turns`,
`ambiguity` and, for ambiguous questions, `clarification_turn` with what the user may have meant and the answers to that. The
user means one of them (drawn from the task's id, so always the same one), tells it when asked, and leaves once answered. Asking
back pays through the future: only then does the policy know which answer is wanted.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collab.environments.collabllm.clarifying import (
    ActionAccuracy,
    ActionClassifier,
    ModelClassifier,
    RuleClassifier,
    asks_back,
)
from collab.environments.collabllm.records import record_id, text_field
from collab.environments.domain import BadRecord, Domain, Resources
from collab.rewards.component import RewardComponent
from collab.rewards.conversation_reward import ConversationReward
from collab.rewards.judge import interactivity_judge
from collab.rewards.token_cost import TokenCost
from collab.tasks.task import Task
from simulators.conversation import Conversation
from simulators.errors import ConfigurationError
from simulators.seeds import derive_seed
from simulators.users.protocol import User, UserTurn
from simulators.users.role_play import RolePlayUser
from simulators.users.scripted import HiddenFact, ScriptedUser

TOKEN_PENALTY = 5e-4
"""The paper only evaluates on Abg-CoQA; this is its lambda for short texts."""

LONGEST_STORY = 12_000
LABELS = {"ambiguous": True, "non_ambiguous": False}

_BARE = re.compile(r"^(yes|yeah|no|nope)\b[.,! ]*$", re.IGNORECASE)
_NO = re.compile(r"^no[,.]?\s+", re.IGNORECASE)
_OPENINGS = (
    (re.compile(r"^do you (?=mean|want)", re.IGNORECASE), "I "),
    (re.compile(r"^are you (?=asking|referring|talking)", re.IGNORECASE), "I am "),
)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = re.compile(r"[^\w\s]")


@dataclass(frozen=True, slots=True)
class Meaning:
    """One thing an ambiguous question may have meant: how the user says it, and the answers that are right then."""

    statement: str
    answers: tuple[str, ...]


def task_from_record(record: Mapping[str, Any], default_id: str) -> Task:
    """Turn an Abg-CoQA record into a task.

    Raises:
        BadRecord: when a part is missing or of the wrong type.
    """
    story = text_field(record, "story", LONGEST_STORY)
    target = _mapping(record, "target_turn")
    question = text_field(target, "question")
    label = record.get("ambiguity")
    if label not in LABELS:
        raise BadRecord(f"field 'ambiguity' must be one of {', '.join(LABELS)}, not {str(label)[:40]!r}")
    task_id = record_id(record, default_id)
    if LABELS[label]:
        found = meanings(_mapping(record, "clarification_turn"))
        meaning = found[derive_seed("meaning", task_id) % len(found)]
    else:
        meaning = Meaning("", (text_field(target, "answer"),))
    return Task(
        id=task_id,
        goal=_goal(story, question, meaning.statement),
        reference=meaning.answers[0],
        opening=_opening(story, _history(record), question),
        metadata={
            "ambiguous": LABELS[label],
            "question": question,
            "meaning": meaning.statement,
            "references": list(meaning.answers),
            "group": hashlib.sha256(story.encode("utf-8", "surrogatepass")).hexdigest()[:16],
        },
    )


def meanings(clarification: Mapping[str, Any]) -> list[Meaning]:
    """Return what the question may have meant. One that the record states with a bare "No" says nothing, and is left out.

    Raises:
        BadRecord: when none is left.
    """
    question = text_field(clarification, "question")
    answers = clarification.get("answers")
    if not isinstance(answers, list) or not answers:
        raise BadRecord("field 'clarification_turn' has no 'answers'")
    found = []
    for entry in answers:
        if not isinstance(entry, Mapping):
            raise BadRecord("field 'answers' must be a list of objects")
        told = text_field(entry, "clr_ans").strip()
        right = [entry[name] for name in ("org_ans", "org_ans_2", "org_ans_3") if isinstance(entry.get(name), str)]
        right = list(dict.fromkeys(answer.strip() for answer in right if answer.strip()))
        statement = _statement(question, told)
        if right and statement is not None:
            found.append(Meaning(statement, tuple(right)))
    if not found:
        raise BadRecord("field 'clarification_turn' has no meaning with an answer")
    return found


def _statement(question: str, told: str) -> str | None:
    """Return how the user says what it means when it is asked anything: "Yes" to "Do you mean X?" is "I mean X."."""
    bare = _BARE.match(told)
    if bare is None:
        said = _NO.sub("", told).strip()
        return said[:1].upper() + said[1:]
    if bare[1].lower() in ("no", "nope"):
        return None
    for pattern, replacement in _OPENINGS:
        if pattern.match(question):
            return f"{pattern.sub(replacement, question).rstrip(' ?.')}."
    return None


def _mapping(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = record.get(name)
    if not isinstance(value, Mapping):
        raise BadRecord(f"field {name!r} must be an object")
    return value


def _history(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    turns = record.get("history_turns") or []
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        raise BadRecord("field 'history_turns' must be a list of objects")
    return [(text_field(turn, "question"), text_field(turn, "answer")) for turn in turns]


def _opening(story: str, history: list[tuple[str, str]], question: str) -> str:
    said = "".join(f"\nI asked: {asked}\nI was told: {answer}" for asked, answer in history)
    before = f"\n\nWhat I have asked about it so far:{said}" if said else ""
    return f"Please help me with a question about a story.\n\nThe story:\n{story.strip()}{before}\n\nMy question: {question}"


def _goal(story: str, question: str, meaning: str) -> str:
    meant = (
        f"The question can be read in more than one way. What you mean by it: {meaning} Say so only if you are asked."
        if meaning
        else "You mean just what it says."
    )
    return (
        f"Get your question about a story answered in a few words.\nThe story: {story.strip()}\n"
        f"Your question: {question}\n{meant}\n"
        "You do not know the answer. Leave as soon as you are given one, right or wrong."
    )


@dataclass(frozen=True, slots=True)
class FixedOpening:
    """A user whose first message is given; `user` plays the rest."""

    user: User
    opening: str

    async def next_turn(self, conversation: Conversation, seed: int) -> UserTurn:
        """Return the opening, or what the user says next."""
        return await self.user.next_turn(conversation, seed) if conversation else UserTurn(self.opening)


def make_user(task: Task, resources: Resources) -> User:
    """Return the role-play user where there is a model for it, else the scripted one. Both open with story and question."""
    assert task.opening is not None
    if resources.user_model is not None:
        situation = "You have shown the assistant a story and asked a question about it."
        return FixedOpening(RolePlayUser(resources.user_model, task.goal, situation, resources.role_play), task.opening)
    meaning = str(task.metadata["meaning"])
    return ScriptedUser(
        opening=task.opening,
        facts=(HiddenFact(meaning),) if meaning else (),
        nothing_left="I mean it just as I asked it.",
    )


@dataclass(frozen=True, slots=True)
class AnswerOverlap:
    """Word F1 of the last reply that does not ask back against the closest reference answer, as CoQA measures it.

    Articles, case and punctuation do not count. A policy that only ever asked gave no answer: 0.
    """

    name: str = "answer_f1"
    source: str = "CollabLLM equation 3; CoQA's F1"
    value_range: tuple[float, float] = (0.0, 1.0)

    async def score(self, conversation: Conversation, task: Task) -> float:
        """Return F1 in [0, 1]; it never fails."""
        replies = [message.content for message in conversation if message.role == "assistant"]
        answer = next((reply for reply in reversed(replies) if reply.strip() and not asks_back(reply)), None)
        return 0.0 if answer is None else max(word_f1(answer, str(each)) for each in task.metadata["references"])


def word_f1(answer: str, reference: str) -> float:
    """Return the F1 of two texts as bags of words."""
    given, wanted = _bag(answer), _bag(reference)
    if not given or not wanted:
        return float(given == wanted)
    shared = (given & wanted).total()
    return 2 * shared / (given.total() + wanted.total())


def _bag(text: str) -> Counter[str]:
    return Counter(_ARTICLES.sub(" ", _PUNCTUATION.sub("", text.lower())).split())


def domain(reward: str = "answer", classifier: str = "rules") -> Domain:
    """The Abg-CoQA domain.

    `reward` is what R* counts beside tokens and interactivity: the `answer` in the end (word F1), or the first `action` (asked
    back when ambiguous, answered when not). The other one is measured. `classifier` tells asking from answering by `rules`, or
    lets the judge do it (`model`).

    Raises:
        ConfigurationError: for a value that an option cannot have.
    """
    if reward not in ("answer", "action"):
        raise ConfigurationError(f"option reward is {reward!r}; it must be answer or action")
    if classifier not in ("rules", "model"):
        raise ConfigurationError(f"option classifier is {classifier!r}; it must be rules or model")

    def make_reward(resources: Resources) -> ConversationReward:
        judge = resources.judge_model
        chosen: ActionClassifier = RuleClassifier()
        if classifier == "model":
            if judge is None:
                raise ConfigurationError("abg_coqa: classifier=model needs a judge; set one, or use classifier=rules")
            chosen = ModelClassifier(judge)
        penalty = TOKEN_PENALTY if resources.token_penalty is None else resources.token_penalty
        terms: list[tuple[RewardComponent, float]] = [
            (AnswerOverlap(), float(reward == "answer")),
            (ActionAccuracy(chosen), float(reward == "action")),
            (TokenCost(resources.count_tokens, penalty), 1.0),
        ]
        if judge is not None:
            terms.append((interactivity_judge(judge), 1.0))
        return ConversationReward(terms)

    return Domain(
        name="abg_coqa",
        summary="Questions about stories, some of them ambiguous: ask back or answer (Abg-CoQA, CollabLLM Table 2).",
        task_from_record=task_from_record,
        columns=("story", "target_turn", "ambiguity"),
        make_user=make_user,
        make_reward=make_reward,
        bundled="abg_coqa.jsonl",
        max_turns=3,
        base_prompt="You are a helpful assistant. Answer the user's question about the story, in a few words.",
        proactive_prompt=(
            "You answer questions about a story. If the question could mean two different things in the story and the answers "
            "would differ, ask the user which is meant, in one short question. Otherwise answer at once, in a few words."
        ),
    )
