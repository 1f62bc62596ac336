"""Episodes: the paths of a rollout's conversation trees as rows to train on, with exactly the tokens that were sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from collab.mr import ScoredFuture
from collab.tasks.task import Task
from simulators.conversation import Conversation, ConversationTree, Node, Outcome
from simulators.errors import ConfigurationError
from simulators.forward_sampling import Future
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
    """The task as it is to be played, and the conversation up to the policy's first turn; `path.over` where there is none."""

    task: Task
    path: Future

    def going_on(self) -> Future:
        """Return a path of one's own to carry on."""
        return Future(self.path.history, list(self.path.steps))


@dataclass(frozen=True, slots=True)
class PolicyTurn:
    """One turn of the policy: its span in the episode's completion ids, and MR after it, where MR was estimated.

    Results of tools that it called lie inside the span; no token of theirs is the policy's.
    """

    start: int
    end: int
    mr: float | None = None


@dataclass
class Episode:
    """One row to train on: the path of `tree` that ends in node `leaf`, trained from the policy's `turn` on (from 1).

    A row for which nothing could be sampled has no leaf, and `failed` says why. What a row is worth stands at its leaf: the score
    of the conversation, or the MR of a reply (`whole` is False: that reply alone is trained).
    """

    start_id: str
    sample: int
    tree: ConversationTree
    leaf: int | None = None
    turn: int = 1
    whole: bool = True
    failed: tuple[Outcome, str | None] | None = None
    played: list[Node] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.played = self.tree.path(self.leaf)

    @classmethod
    def padding(cls, sample: int) -> Episode:
        """Return an empty row."""
        return cls("", sample, ConversationTree(""), failed=(Outcome.WINDOW_FULL, None))

    @property
    def conversation(self) -> Conversation:
        return tuple(node.message for node in self.played)

    @property
    def outcome(self) -> Outcome:
        if self.failed is not None:
            return self.failed[0]
        return self.played[-1].outcome or Outcome.WINDOW_FULL

    @property
    def error(self) -> str | None:
        if self.failed is not None:
            return self.failed[1]
        return self._worth.get("error")

    @property
    def reward(self) -> float | None:
        """R* or MR; None when the episode failed for reasons the policy did not cause, or could not be scored."""
        return None if self.failed is not None else self._worth.get("total")

    @property
    def components(self) -> dict[str, float]:
        return {} if self.failed is not None else self._worth.get("components", {})

    @property
    def _worth(self) -> dict[str, Any]:
        return self.played[-1].annotations.get("score", {}) if self.played else {}

    @cached_property
    def _turns_of_nodes(self) -> list[list[Node]]:
        """The policy's sampled messages, turn by turn (a turn has several where it called tools)."""
        turns: list[list[Node]] = []
        asked = False
        for node in self.played:
            if node.author == "policy" and node.context_ids is not None:
                if asked or not turns:
                    turns.append([])
                turns[-1].append(node)
            asked = node.author == "user" or (asked and node.author != "policy")
        return turns

    @cached_property
    def _first(self) -> int:
        """How many policy turns lie before those that are trained."""
        return 0 if self.whole else len(self._turns_of_nodes) - 1

    @cached_property
    def prompt_ids(self) -> list[int]:
        """The tokens before the first that is trained."""
        if not self._turns_of_nodes:
            return []
        before = [node for turn in self._turns_of_nodes[: self._first] for node in turn]
        ids = [token for node in before for token in (*(node.context_ids or ()), *(node.token_ids or ()))]
        return [*ids, *(self._turns_of_nodes[self._first][0].context_ids or ())]

    @cached_property
    def _pieces(self) -> tuple[list[int], list[int], list[float], list[PolicyTurn]]:
        ids: list[int] = []
        mask: list[int] = []
        logprobs: list[float] = []
        spans: list[PolicyTurn] = []
        for nodes in self._turns_of_nodes[self._first :]:
            start = -1
            for node in nodes:
                context = [] if not spans and start < 0 else (node.context_ids or [])
                own = node.token_ids or []
                ids += [*context, *own]
                mask += [0] * len(context) + [1] * len(own)
                logprobs += [0.0] * len(context) + (node.logprobs or [math.nan] * len(own))
                start = len(ids) - len(own) if start < 0 else start
            spans.append(PolicyTurn(start, len(ids), _mr_mean(nodes[-1])))
        return ids, mask, logprobs, spans

    @property
    def completion_ids(self) -> list[int]:
        """Everything after the prompt up to the policy's last token: its replies and what stands between them."""
        return self._pieces[0]

    @property
    def policy_mask(self) -> list[int]:
        """1 where the policy sampled, 0 where it did not: user turns, results of tools, template text, a stop token put after a
        reply that was cut."""
        return self._pieces[1]

    @property
    def logprobs(self) -> list[float]:
        """The sampler's natural logs, 0.0 where the mask is 0."""
        return self._pieces[2]

    @property
    def turns(self) -> list[PolicyTurn]:
        return self._pieces[3]

    @property
    def worths(self) -> list[float | None]:
        """MR after each policy turn; the last one is the episode's reward."""
        return [*(turn.mr for turn in self.turns[:-1]), self.reward] if self.turns else []

    def note_credit(self, advantages: Sequence[float] | None) -> None:
        """Note the advantage of every trained turn at its messages; None: the row is left out."""
        for nodes, advantage in zip(self._turns_of_nodes[self._first :], advantages or (), strict=advantages is not None):
            for node in nodes:
                node.annotations["credit"] = advantage

    def to_record(self) -> dict[str, Any]:
        """Return what tells this row from others of its tree, as plain JSON data."""
        record: dict[str, Any] = {"start_id": self.start_id, "sample": self.sample, "leaf": self.leaf, "turn": self.turn}
        record["whole"] = self.whole
        if self.failed is not None:
            record["failed"] = [self.failed[0].value, self.failed[1]]
        return record

    @classmethod
    def from_record(cls, record: dict[str, Any], tree: ConversationTree) -> Episode:
        """Return the row of a tree that `to_record` told of."""
        failed = record.get("failed")
        rest = {name: value for name, value in record.items() if name != "failed"}
        return cls(**rest, tree=tree, failed=(Outcome(failed[0]), failed[1]) if failed else None)


def note_score(node: Node, scored: ScoredFuture) -> None:
    """Note what a conversation is worth at its last message."""
    node.outcome = scored.outcome
    node.annotations["score"] = {"total": scored.reward, "components": dict(scored.score.components) if scored.score else {}}
    if scored.error:
        node.annotations["score"]["error"] = scored.error


def _mr_mean(node: Node) -> float | None:
    return node.annotations["mr"]["mean"] if "mr" in node.annotations else None
