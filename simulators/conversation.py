"""Messages, conversations, and the tree that holds every conversation of a task.

The tree is the one central record of the project. A node is one message; a path from the root is a conversation; a fork is a
candidate reply or a simulated future. SFT rows, DPO pairs, MR estimates, evaluation tables and the viewer are views of trees,
so nothing that was sampled is thrown away and every figure can be traced back to the messages behind it.

A *turn* is one user message and the policy's reply to it: {u_j, m_j} in CollabLLM's notation (section 2).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
Author = Literal["task", "user", "policy", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that a reply asks for. `arguments` is JSON as the model wrote it; a call that could not be read has no `name`."""

    name: str
    arguments: str = "{}"
    id: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the call as chat templates and servers take it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message, as chat templates and servers understand it.

    `content` is what everybody sees: users, judges and the extraction of answers read nothing else. `reasoning` is what a model
    thought before it; it stays in the tree (and in the sampled tokens) and is shown to nobody. A reply may ask for tools
    (`tool_calls`); a message of the role `tool` holds the result of the call that `tool_call_id` names.
    """

    role: Role
    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the message as the mapping that chat templates and servers take; reasoning is left out."""
        data: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            data["tool_calls"] = [call.as_dict() for call in self.tool_calls]
        if self.tool_call_id:
            data["tool_call_id"] = self.tool_call_id
        return data

    def to_record(self) -> dict[str, Any]:
        """Return the whole message as plain JSON data; empty fields are left out."""
        data = self.as_dict()
        if self.reasoning:
            data["reasoning"] = self.reasoning
        return data

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Message:
        """Rebuild a message from `to_record`'s data.

        Raises:
            KeyError, TypeError: when the record is not one of a message.
        """
        calls = tuple(
            ToolCall(call["function"]["name"], call["function"]["arguments"], call.get("id", ""))
            for call in record.get("tool_calls", ())
        )
        rest = {name: value for name, value in record.items() if name != "tool_calls"}
        return cls(**rest, tool_calls=calls)


Conversation = tuple[Message, ...]


class Outcome(StrEnum):
    """How a conversation ended, and whose doing it was. Missing is never zero."""

    ENDED = "ended"
    """The user ended it: satisfied, or gave up."""
    WINDOW_FULL = "window_full"
    """All turns of the window were played (or the turn limit was met)."""
    TRUNCATED = "truncated"
    """The policy's reply or the conversation outgrew a token limit."""
    POLICY_ERROR = "policy_error"
    """The policy itself failed, by an empty reply for one."""
    USER_ERROR = "user_error"
    """The simulated user gave no usable message."""
    JUDGE_ERROR = "judge_error"
    """A judge or verifier gave no usable score."""
    TOOL_LIMIT = "tool_limit"
    """The policy called tools more often in one turn than it may."""
    INFRA_ERROR = "infra_error"
    """An endpoint, a sandbox or a machine failed."""

    @property
    def earns_reward(self) -> bool:
        """True where the policy caused the outcome, so that the conversation can be scored as it stands."""
        return self in _CAUSED_BY_POLICY


_CAUSED_BY_POLICY = frozenset({Outcome.ENDED, Outcome.WINDOW_FULL, Outcome.TRUNCATED, Outcome.TOOL_LIMIT, Outcome.POLICY_ERROR})


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one model call; `cached_tokens` are the prompt tokens that a prefix cache served."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True)
class Node:
    """One message in a conversation tree, with where it came from and what is known about it.

    `token_ids` and `logprobs` are the policy's own, exactly as sampled, where a local policy wrote the message; they are never
    re-made from text. `context_ids` are the tokens that stood between the policy's reply before (or the beginning) and this one,
    where it was sampled by its tokens: template, user and tool results, none of them the policy's. `outcome` and `scores` stand
    on the last node of a future; `annotations` hold what a view needs to read back (a candidate's MR estimate, for one, or the
    users who left without a word right behind it: `departures`).
    """

    id: int
    parent: int | None
    message: Message
    author: Author
    model: str | None = None
    weights_version: str | None = None
    finish_reason: str | None = None
    context_ids: list[int] | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    usage: Usage | None = None
    latency_s: float | None = None
    seed: int | None = None
    outcome: Outcome | None = None
    annotations: dict[str, Any] = field(default_factory=dict)


_DEPARTURES = "departures"


@dataclass(frozen=True, slots=True)
class Departure:
    """A simulated user's leaving without a word: no message and so no node, yet a turn of the user's and mostly a model call.

    It is noted at the last node of the conversation that it ended. Several futures can end at one candidate, so a node has any
    number. The fields are those of `Node`; `flags` are what the turn raised.
    """

    flags: tuple[str, ...] = ()
    model: str | None = None
    weights_version: str | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    latency_s: float | None = None
    seed: int | None = None

    def write(self, node: Node) -> None:
        """Note it at a node, beside those that are there."""
        record = {name: value for name, value in asdict(self).items() if value is not None} | {"flags": list(self.flags)}
        node.annotations.setdefault(_DEPARTURES, []).append(record)


def departures(node: Node) -> list[Departure]:
    """Return the users who left without a word right behind a node, in the order in which they were noted."""
    found = []
    for record in node.annotations.get(_DEPARTURES, ()):
        usage = Usage(**record["usage"]) if "usage" in record else None
        found.append(Departure(**{**record, "flags": tuple(record["flags"]), "usage": usage}))
    return found


class ConversationTree:
    """Every conversation of one task, sharing what they have in common.

    Nodes are numbered in the order they are added and never removed. `metadata` describes the task and the run; it must be
    JSON-serialisable.
    """

    def __init__(self, task_id: str, metadata: dict[str, Any] | None = None) -> None:
        self.task_id = task_id
        self.metadata: dict[str, Any] = metadata or {}
        self.nodes: list[Node] = []
        self._children: dict[int | None, list[int]] = {}

    def add(self, parent: int | None, message: Message, author: Author, **details: Any) -> Node:
        """Append a message below `parent` (None: at the root) and return its node.

        Raises:
            KeyError: when `parent` is not a node of this tree.
        """
        if parent is not None and not 0 <= parent < len(self.nodes):
            raise KeyError(f"tree of task {self.task_id} has no node {parent}")
        node = Node(id=len(self.nodes), parent=parent, message=message, author=author, **details)
        self.nodes.append(node)
        self._children.setdefault(parent, []).append(node.id)
        return node

    def extend(self, parent: int | None, messages: Sequence[Message], author: Author = "task") -> int | None:
        """Append a given history message by message and return the id of its last node (`parent` if it is empty)."""
        for message in messages:
            parent = self.add(parent, message, author).id
        return parent

    def adopt(self, other: ConversationTree) -> int:
        """Add all nodes of another tree beside one's own; return what was added to their numbers."""
        first = len(self.nodes)
        for node in other.nodes:
            details = {name: getattr(node, name) for name in _NODE_FIELDS if name not in ("id", "parent", "message", "author")}
            self.add(None if node.parent is None else node.parent + first, node.message, node.author, **details)
        return first

    def path(self, node_id: int | None) -> list[Node]:
        """Return the nodes from the root down to `node_id`, both included ([] for None)."""
        nodes = []
        while node_id is not None:
            node = self.nodes[node_id]
            nodes.append(node)
            node_id = node.parent
        return nodes[::-1]

    def conversation(self, node_id: int | None) -> Conversation:
        """Return the conversation that ends in `node_id`."""
        return tuple(node.message for node in self.path(node_id))

    def children(self, node_id: int | None) -> list[Node]:
        """Return the nodes right below `node_id` (None: the roots), in the order they were added."""
        return [self.nodes[child] for child in self._children.get(node_id, [])]

    def leaves(self) -> Iterator[Node]:
        """Yield the nodes that nothing follows, in order."""
        return (node for node in self.nodes if node.id not in self._children)

    def __len__(self) -> int:
        return len(self.nodes)

    def to_record(self) -> dict[str, Any]:
        """Return the tree as plain JSON data; empty fields are left out."""
        return {"task_id": self.task_id, "metadata": self.metadata, "nodes": [_node_record(node) for node in self.nodes]}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> ConversationTree:
        """Rebuild a tree from `to_record`'s data.

        Raises:
            KeyError, TypeError, ValueError: when the record is not one of a tree.
        """
        tree = cls(record["task_id"], dict(record.get("metadata", {})))
        for position, data in enumerate(record["nodes"]):
            details = {key: value for key, value in data.items() if key not in {"id", "parent", "message", "author"}}
            if data.get("id", position) != position:
                raise ValueError(f"tree of task {tree.task_id}: node {position} says it is node {data['id']}")
            if "outcome" in details:
                details["outcome"] = Outcome(details["outcome"])
            if "usage" in details:
                details["usage"] = Usage(**details["usage"])
            tree.add(data.get("parent"), Message.from_record(data["message"]), data["author"], **details)
        return tree

    def fingerprint(self) -> dict[str, Any]:
        """Return the record without wall-clock figures, as it is read from a file (where tuples are lists).

        It is equal for two runs that sampled the same conversations.
        """
        record = self.to_record()
        for node in record["nodes"]:
            node.pop("latency_s", None)
            if left := node.get("annotations", {}).get(_DEPARTURES):  # the record shares them with the tree: copied, not changed
                timeless = [{name: value for name, value in each.items() if name != "latency_s"} for each in left]
                node["annotations"] = node["annotations"] | {_DEPARTURES: timeless}
        plain: dict[str, Any] = json.loads(json.dumps(record))
        return plain


_NODE_FIELDS = tuple(each.name for each in fields(Node))


def _node_record(node: Node) -> dict[str, Any]:
    """Return a node as plain data that shares its lists with it: copying every token id would cost more than writing them."""
    record = {name: value for name in _NODE_FIELDS if (value := getattr(node, name)) not in (None, {}, [])}
    record["message"] = node.message.to_record()
    if node.usage is not None:
        usage = node.usage
        record["usage"] = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
        }
    return record
