"""MediumDocEdit-Chat: a user who wants an article written and knows what it is to say (CollabLLM section 4).

Takes articles (`text`, `title` where there is one). The goal is a summary of the article, the reward is the BLEU of the final
document against it. With a user model the model writes the summary (once a task, journalled like every call) and plays the user;
without one both are made of rules: the user asks for an article on the title, tells its points one by one, and leaves when all
is said and a document is given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from collab.environments.collabllm.records import MAX_CHARACTERS, record_id, text_field
from collab.environments.collabllm.reward import collabllm_reward
from collab.environments.collabllm.summaries import brief_by_model, brief_by_rules
from collab.environments.domain import BadRecord, Domain, Resources
from collab.rewards.conversation_reward import ConversationReward
from collab.tasks.task import Task
from simulators.errors import ConfigurationError
from simulators.users.protocol import User
from simulators.users.role_play import RolePlayUser
from simulators.users.scripted import HiddenFact, ScriptedUser

_WORD = re.compile(r"[a-z]{4,}")
_LENGTH_CUES = frozenset("long length words word short size pages".split())


def make_user(task: Task, resources: Resources) -> User:
    """Return the role-play user where there is a model for it, else the scripted one."""
    if resources.user_model is not None:
        situation = "You want help with a piece of writing that you will publish under your own name."
        return RolePlayUser(resources.user_model, task.goal, situation, resources.role_play)
    points = [str(point) for point in task.metadata["points"]]
    facts = [HiddenFact(f"It should say this: {point}", frozenset(_WORD.findall(point.lower()))) for point in points]
    facts.insert(1, HiddenFact(f"It should be about {task.metadata['words']} words long.", _LENGTH_CUES))
    return ScriptedUser(
        opening=f"Please help me write an article with the title “{task.metadata['title']}”.",
        facts=tuple(facts),
        volunteers=True,
        nothing_left="That is all I have in mind. Please write the article.",
    )


def domain(goals: str = "auto", max_characters: int = MAX_CHARACTERS, reward: str = "paper") -> Domain:
    """The MediumDocEdit-Chat domain.

    `goals` says who summarises the articles: rules, the user's model, or `auto`: the model where there is one. A longer article
    than `max_characters` is a bad record. `reward` is a preset: paper or upstream.

    Raises:
        ConfigurationError: for a value that an option cannot have.
    """
    if goals not in ("auto", "rules", "model"):
        raise ConfigurationError(f"option goals is {goals!r}; it must be auto, rules or model")
    if max_characters < 1:
        raise ConfigurationError(f"option max_characters is {max_characters}; it must be at least 1")

    def task_from_record(record: Mapping[str, Any], default_id: str) -> Task:
        article = text_field(record, "text", max_characters)
        title = record.get("title")
        if title is not None and not isinstance(title, str):
            raise BadRecord("field 'title' must be a text")
        brief = brief_by_rules(title or "", article)
        if not brief.points:
            raise BadRecord("field 'text' holds no prose to summarise (only headings, code or markup)")
        return Task(
            id=record_id(record, default_id),
            goal=brief.text(),
            reference=article,
            metadata={"title": brief.title, "words": brief.words, "points": list(brief.points)},
        )

    async def prepare(task: Task, resources: Resources) -> Task:
        model = resources.user_model
        if model is None and goals == "model":
            raise ConfigurationError("doc_edit: goals=model needs a user model; set user=role_play, or use goals=rules")
        if model is None or goals == "rules":
            return task
        assert task.reference is not None
        return replace(task, goal=await brief_by_model(model, str(task.metadata["title"]), task.reference, task.id))

    def make_reward(resources: Resources) -> ConversationReward:
        return collabllm_reward("document", resources, reward)

    return Domain(
        name="doc_edit",
        summary="Articles written in conversation (MediumDocEdit-Chat); goals are summaries of real articles.",
        task_from_record=task_from_record,
        columns=("text",),
        make_user=make_user,
        make_reward=make_reward,
        bundled="doc_edit.jsonl",
        prepare=prepare,
        max_turns=8,
        base_prompt="You are a helpful assistant. Write and edit documents for the user.",
        proactive_prompt=(
            "You write documents together with a user, who seldom says at once what is wanted. If readers, purpose, main points, "
            "tone or length are open and matter for the next draft, ask one short, specific question about them. Otherwise write "
            "or revise the whole document at once, keep what the user liked, and put nothing around it but one short line."
        ),
    )
