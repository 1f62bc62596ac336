"""What makes a new domain: one small file that says how a record becomes a task, who the user is, and what counts.

A `Domain` is the definition; an `Environment` is a domain made ready to run with the models at hand. Everything downstream
(forward sampling, MR, the builder, evaluation, training) sees only the environment.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collab.rewards.conversation_reward import ConversationReward
from collab.tasks.task import Task
from simulators.chat_models.protocol import ChatModel
from simulators.conversation import Conversation
from simulators.errors import CollabError
from simulators.tools import Toolbox
from simulators.users.protocol import User
from simulators.users.role_play import RolePlayOptions

TokenCounter = Callable[[str], int]

_USERS_KEPT = 1024


class BadRecord(CollabError):
    """A dataset record is not a task of this domain; the text says which field is wrong and how (the loader adds where)."""


class Unsuitable(BadRecord):
    """A sound record that a domain has no use for as its options are (a problem too short for so many turns); the text says why.

    The loader passes it over and counts the reason, whether bad records are refused or skipped.
    """


@dataclass(frozen=True, slots=True)
class Resources:
    """What an environment may use: the model behind a role-play user, the judge, and how tokens are counted.

    `role_play` says how that user is sampled and what person it is. Without `user_model` a domain falls back on its scripted
    user, without `judge_model` on its rule-based reward; a domain that has none says so. `token_penalty` is lambda of CollabLLM
    equation 4; None takes the domain's own.
    """

    count_tokens: TokenCounter
    user_model: ChatModel | None = None
    judge_model: ChatModel | None = None
    role_play: RolePlayOptions = field(default_factory=RolePlayOptions)
    token_penalty: float | None = None


def every_record(record: Mapping[str, Any]) -> bool:
    """Select every record."""
    return True


def nowhere_held_out(task: Task) -> str | None:
    """Say that no task is known to be held out."""
    return None


@dataclass(frozen=True, slots=True)
class Domain:
    """The definition of a domain.

    `task_from_record(record, default_id)` turns one dataset record into a `Task` or raises `BadRecord`; `columns` are the
    fields it cannot do without. `selects` says which records an option of the domain asks for (level-5 problems, for one); the
    others are no tasks and not bad either. `bundled` names the JSON-lines file below `collab/tasks/bundled` with tasks of our
    own. `prepare` is what must be done once a task with a model before it is played (summarising an article into a goal); it
    may raise `SimulatorError` and whatever the model raises. `held_out` names the published test set that a task belongs to, or
    None; tasks of one are refused for training.

    `max_turns` bounds a whole conversation. `plays_to_end` says that a conversation is worth nothing before it is over (its last
    turn alone is graded): futures then go on until the user leaves, however short the window.

    `make_tools(task, resources)` returns the functions that the policy may call (`simulators.tools`), at most `max_tool_calls`
    times in one turn; None: it has no tools.

    `base_prompt` and `proactive_prompt` are the policy's system prompts as Base (None: no system prompt) and as Proactive Base
    (CollabLLM section 4). `licences` are those of known sources of tasks, as SPDX identifiers by Hub id in lower case, for
    dataset cards.
    """

    name: str
    summary: str
    task_from_record: Callable[[Mapping[str, Any], str], Task]
    columns: tuple[str, ...]
    make_user: Callable[[Task, Resources], User]
    make_reward: Callable[[Resources], ConversationReward]
    bundled: str | None = None
    selects: Callable[[Mapping[str, Any]], bool] = every_record
    prepare: Callable[[Task, Resources], Awaitable[Task]] | None = None
    held_out: Callable[[Task], str | None] = nowhere_held_out
    max_turns: int = 8
    plays_to_end: bool = False
    make_tools: Callable[[Task, Resources], Sequence[Callable[..., Any]]] | None = None
    max_tool_calls: int = 8
    licences: Mapping[str, str] = field(default_factory=dict)
    base_prompt: str | None = None
    proactive_prompt: str = (
        "Work with the user. When something you need is missing or unclear, ask one short, specific question about it before "
        "you go on; when nothing is missing, answer at once. Keep every reply brief."
    )


@dataclass(frozen=True, slots=True)
class Environment:
    """A domain ready to run: tasks meet a user and a reward."""

    domain: Domain
    resources: Resources
    reward: ConversationReward = field(init=False)
    _played: dict[str, tuple[Task, User, Toolbox | None]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reward", self.domain.make_reward(self.resources))

    @property
    def name(self) -> str:
        return self.domain.name

    @property
    def max_turns(self) -> int:
        return self.domain.max_turns

    def window(self, turns: int, conversation: Conversation) -> int:
        """Return how many turns a future of a conversation has that is to have `turns` of them.

        Where only a whole conversation has a worth it is all that are left; a window of 0 stays one.
        """
        if not turns or not self.domain.plays_to_end:
            return turns
        return max(0, self.max_turns - sum(message.role == "assistant" for message in conversation))

    async def prepare(self, task: Task) -> Task:
        """Return a task as it is to be played.

        Raises:
            SimulatorError: the model gave nothing usable.
            ChatModelError, ConfigurationError: as the model does.
        """
        return task if self.domain.prepare is None else await self.domain.prepare(task, self.resources)

    def user_for(self, task: Task) -> User:
        """Return the simulated user of one task. Users hold no state, so all futures of a task share one."""
        return self._playing(task)[1]

    def toolbox_for(self, task: Task) -> Toolbox | None:
        """Return the tools of one task, None where the policy has none. Tools hold no state either."""
        return self._playing(task)[2]

    def _playing(self, task: Task) -> tuple[Task, User, Toolbox | None]:
        made = self._played.get(task.id)
        if made is None or made[0] is not task:
            if len(self._played) >= _USERS_KEPT:
                self._played.clear()
            domain = self.domain
            functions = domain.make_tools(task, self.resources) if domain.make_tools is not None else ()
            toolbox = Toolbox.of(functions, domain.max_tool_calls) if functions else None
            made = self._played[task.id] = (task, domain.make_user(task, self.resources), toolbox)
        return made
