"""Episodes: conversations as rows to train on, kept as the exact tokens that were sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from collab.tasks.task import Task
from simulators.chat_models.token_sampler import SampledReply
from simulators.conversation import Conversation, Message, Outcome
from simulators.errors import ConfigurationError
from simulators.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class EpisodeStart:
    """Where episodes begin: a task, and the conversation so far (ending with a user message), where there is one.

    Without a history the simulated user opens.
    """

    task: Task
    history: Conversation = ()

    def __post_init__(self) -> None:
        if self.history and self.history[-1].role != "user":
            raise ConfigurationError(f"task {self.task.id}: a stored history must end with a user message to answer")

    @property
    def id(self) -> str:
        """Name the start within a run: equal tasks with other histories are other starts."""
        if not self.history:
            return self.task.id
        return f"{self.task.id}@{derive_seed(*(message.content for message in self.history)):016x}"


@dataclass(frozen=True, slots=True)
class Opening:
    """The task as it is to be played, and the conversation up to the policy's first turn, or why there is none."""

    task: Task
    conversation: Conversation = ()
    outcome: Outcome | None = None
    error: str | None = None


@dataclass(slots=True)
class PolicyTurn:
    """One reply of the policy: its span in the episode's completion ids, and MR after it, where MR was estimated."""

    start: int
    end: int
    mr: float | None = None


@dataclass(slots=True)
class Episode:
    """One row to train on, as plain data.

    `completion_ids` are everything after the prompt, `policy_mask` 1 where the policy sampled and 0 where it did not (user turns,
    template text, a stop token put after a reply that was cut), `logprobs` the sampler's natural logs (0.0 where the mask is 0).
    `reward` is None when the episode failed for reasons the policy did not cause, or could not be scored: it is then left out.
    `turn` is the policy turn that the row starts at, from 1.
    """

    start_id: str
    sample: int
    messages: list[dict[str, str]]
    prompt_ids: list[int] = field(default_factory=list)
    completion_ids: list[int] = field(default_factory=list)
    policy_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[PolicyTurn] = field(default_factory=list)
    turn: int = 1
    outcome: Outcome = Outcome.WINDOW_FULL
    reward: float | None = None
    components: dict[str, float] = field(default_factory=dict)
    error: str | None = None

    def append_reply(self, reply: SampledReply) -> None:
        """Add a sampled reply: its ids, all of them the policy's own."""
        if reply.logprobs is None:
            raise ConfigurationError("the engine tells no log-probabilities, and training needs them")
        start = len(self.completion_ids)
        self.completion_ids += reply.token_ids
        self.policy_mask += [1] * len(reply.token_ids)
        self.logprobs += reply.logprobs
        self.turns.append(PolicyTurn(start, len(self.completion_ids)))
        self.messages.append({"role": "assistant", "content": reply.text})

    def append_user(self, text: str, ids: Sequence[int]) -> None:
        """Add a user turn, with the ids that stand between the last reply and the next one."""
        self.completion_ids += ids
        self.policy_mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)
        self.messages.append({"role": "user", "content": text})

    @property
    def conversation(self) -> Conversation:
        return tuple(Message(**message) for message in self.messages)  # type: ignore[arg-type]

    @property
    def worths(self) -> list[float | None]:
        """MR after each policy turn; the last one is the episode's reward."""
        return [*(turn.mr for turn in self.turns[:-1]), self.reward] if self.turns else []
