"""The columns of the public `collabllm/collabllm-multiturn-*` datasets, read into conversation trees and written from them.

One row a candidate reply: `prompt` (messages), `completion`, `conv_id`, `turn_id` (from 0), `score` (its MR),
`single_turn_prompt`, `single_turn_completion` and `single_turn_metadata` (the task: goal, reference, the rest), `sessions` (the
transcript of every future, from the start of the conversation) and `rewards` (`{metric: [one a future], "MR": [one a future]}`).

The large ones of these datasets keep a future in `sessions` as `{"0": {"forward_chat": [...], "average_score": ...}}`; that is
read too. What is written is the first layout.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from collab.data.candidate_note import CandidateNote, candidate_note
from collab.data.views import candidates, kept_nodes, messages_of, mr_of, ranked_replies
from collab.environments.domain import BadRecord
from collab.mr import standard_error
from simulators.conversation import ConversationTree, Message, Node, Outcome

COLUMNS = (
    "prompt",
    "completion",
    "conv_id",
    "score",
    "single_turn_prompt",
    "single_turn_completion",
    "single_turn_metadata",
    "turn_id",
    "sessions",
    "rewards",
)
REQUIRED = ("prompt", "completion", "conv_id", "score")

_MR = "MR"
_ROLES = ("system", "user", "assistant")


# ---------------------------------------------------------------- writing


def public_rows(tree: ConversationTree, conv_id: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of one tree, turn by turn; candidates without an MR have no score and so no row.

    `conv_id` numbers the conversation, unless the tree was read from rows that had one.
    """
    number = tree.metadata.get("conv_id", conv_id)
    named = {} if "conv_id" in tree.metadata else {"task_id": tree.task_id}
    for turn, user in enumerate(node for node in kept_nodes(tree) if node.message.role == "user"):
        prompt = _plain(tree, user.id)
        for reply in candidates(tree, user.id):
            if (worth := mr_of(reply)) is None:
                continue
            scored = [
                future for future in reply.annotations["mr"].get("futures", ()) if future.get("reward") is not None
            ]  # fmt: skip
            names = sorted({name for future in scored for name in future["components"]})
            yield {
                "prompt": prompt,
                "completion": reply.message.content,
                "conv_id": number,
                "score": worth,
                "single_turn_prompt": str(tree.metadata.get("goal") or ""),
                "single_turn_completion": str(tree.metadata.get("reference") or ""),
                "single_turn_metadata": named | tree.metadata.get("task", {}),
                "turn_id": user.annotations.get("turn_id", turn),
                "sessions": [_plain(tree, future["leaf"]) for future in scored],
                "rewards": {
                    **{name: [future["components"].get(name) for future in scored] for name in names},
                    _MR: [future["reward"] for future in scored],
                },
            }


def _plain(tree: ConversationTree, node_id: int | None) -> list[dict[str, str]]:
    return messages_of(tree, tree.conversation(node_id))


class PublicSchema:
    """The Arrow schema of a public dataset. Its structs need the names and types of all their fields before a row is written."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._metadata: dict[str, str] = {}
        self._metrics: dict[str, str] = {}
        for row in rows:
            for name, value in row["single_turn_metadata"].items():
                self._metadata[name] = _joined(self._metadata.get(name), _kind(value))
            for name, values in row["rewards"].items():
                for value in values:
                    self._metrics[name] = _joined(self._metrics.get(name), _kind(value))

    def arrow(self) -> Any:
        """Return it as a pyarrow schema."""
        import pyarrow

        text, number = pyarrow.string(), pyarrow.int64()
        messages = pyarrow.list_(pyarrow.struct([("content", text), ("role", text)]))
        metadata = [(name, pyarrow.type_for_alias(kind)) for name, kind in sorted(self._metadata.items()) if kind]
        metrics = [(name, pyarrow.list_(pyarrow.type_for_alias(kind))) for name, kind in sorted(self._metrics.items()) if kind]
        types = {
            "prompt": messages,
            "conv_id": number,
            "turn_id": number,
            "score": pyarrow.float64(),
            "single_turn_metadata": pyarrow.struct(metadata or [("task_id", text)]),
            "sessions": pyarrow.list_(messages),
            "rewards": pyarrow.struct(metrics or [(_MR, pyarrow.list_(pyarrow.float64()))]),
        }
        return pyarrow.schema([(name, types.get(name, text)) for name in COLUMNS])

    def fit(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row as the schema wants it: metadata that is not of one plain type throughout becomes JSON text."""
        found = row["single_turn_metadata"]
        metadata = {name: _fitting(found.get(name), kind) for name, kind in self._metadata.items() if kind}
        return {**row, "single_turn_metadata": metadata}


def _kind(value: Any) -> str:
    kinds = {bool: "bool", int: "int64", float: "float64", type(None): ""}
    return kinds.get(type(value), "string")


def _joined(known: str | None, found: str) -> str:
    """Return the type that holds both: "" is that of nothing but missing values."""
    if not known or not found or known == found:
        return found or known or ""
    return "float64" if {known, found} == {"int64", "float64"} else "string"


def _fitting(value: Any, kind: str) -> Any:
    if value is None or kind != "string" or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


# ---------------------------------------------------------------- reading


def is_public(columns: Iterable[str]) -> bool:
    """True for the columns of a dataset in the public layout."""
    return set(REQUIRED) <= set(columns)


def trees_from_rows(rows: Iterable[tuple[str, Mapping[str, Any]]], skipped: list[str] | None = None) -> list[ConversationTree]:
    """Return one tree a conversation, in the order of their numbers.

    `rows` are pairs of where a row stands (for messages) and the row. With `skipped` bad rows are left out, and a sentence about
    each is added to it.

    Raises:
        BadRecord: a row is not one of such a dataset, and `skipped` is None.
    """
    conversations: dict[int, list[Mapping[str, Any]]] = {}
    for where, row in rows:
        try:
            _check(row)
        except BadRecord as error:
            if skipped is None:
                raise BadRecord(f"{where}: {error}") from None
            skipped.append(f"{where}: {error}")
            continue
        conversations.setdefault(row["conv_id"], []).append(row)
    return [_tree(number, conversations[number]) for number in sorted(conversations)]


def _check(row: Mapping[str, Any]) -> None:
    if missing := [name for name in REQUIRED if name not in row]:
        raise BadRecord(f"column {missing[0]!r} is missing")
    if not _is_conversation(row["prompt"]) or row["prompt"][-1]["role"] != "user":
        raise BadRecord("field 'prompt' must be a list of messages (role, content) that ends with the user's")
    if not isinstance(row["completion"], str):
        raise BadRecord("field 'completion' must be a text")
    for name in ("conv_id", "turn_id"):
        if name in row and (isinstance(row[name], bool) or not isinstance(row[name], int)):
            raise BadRecord(f"field {name!r} must be a whole number")
    score = row["score"]
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise BadRecord("field 'score' must be a finite number")
    sessions = row.get("sessions")
    if isinstance(sessions, list) and not all(_is_conversation(session) for session in sessions):
        raise BadRecord("field 'sessions' must be a list of conversations")


def _is_conversation(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(message, Mapping) and message.get("role") in _ROLES and isinstance(message.get("content"), str)
            for message in value
        )
    )


def _tree(number: int, rows: Sequence[Mapping[str, Any]]) -> ConversationTree:
    """Build the tree of one conversation: its prompts are the kept conversation, its completions the candidates."""
    first = rows[0]
    goal = str(first.get("single_turn_prompt") or "")
    metadata = first.get("single_turn_metadata")
    tree = ConversationTree(
        f"conv-{number:06d}",
        {
            "environment": "public",
            "goal": goal,
            "reference": first.get("single_turn_completion"),
            "task": _present(metadata) if isinstance(metadata, Mapping) else {},
            "group": hashlib.sha256(goal.encode("utf-8", "surrogatepass")).hexdigest()[:16] if goal else None,
            "conv_id": number,
        },
    )
    turns: dict[tuple[tuple[str, str], ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        turns.setdefault(tuple((message["role"], message["content"]) for message in row["prompt"]), []).append(row)
    last = None
    for prompt in sorted(turns, key=len):
        last = _walk(tree, [Message(role, content) for role, content in prompt])  # type: ignore[arg-type]
        if (turn_id := turns[prompt][0].get("turn_id")) is not None:
            tree.nodes[last].annotations["turn_id"] = turn_id
        _add_candidates(tree, last, turns[prompt])
    assert last is not None
    best = next(iter(ranked_replies(tree, last)), None)
    for node in tree.path(best.id if best else last):
        node.annotations["kept"] = True
    return tree


def _walk(tree: ConversationTree, messages: Sequence[Message]) -> int:
    """Follow messages from the root, adding those that are not there; return the last one's node."""
    node_id: int | None = None
    for message in messages:
        same = [child for child in tree.children(node_id) if child.message == message]
        same.sort(key=_rank)
        if not same:
            author = "user" if message.role == "user" else "task"
            same = [tree.add(node_id, message, author)]  # type: ignore[arg-type]
        node_id = same[0].id
    assert node_id is not None
    return node_id


def _rank(node: Node) -> int:
    note = candidate_note(node)
    return 0 if note is None or note.rank is None else note.rank


def _add_candidates(tree: ConversationTree, user_id: int, rows: Sequence[Mapping[str, Any]]) -> None:
    order = sorted(range(len(rows)), key=lambda index: (-rows[index]["score"], index))
    for index, row in enumerate(rows):
        node = tree.add(user_id, Message("assistant", row["completion"]), "policy")
        rank = order.index(index)
        CandidateNote.ranked(index, "public", rank, len(rows)).write(node)
        futures = [_future(tree, node, *future) for future in enumerate(_futures(row))]
        rewards = [future["reward"] for future in futures]
        node.annotations["mr"] = {
            "mean": float(row["score"]),
            "std_error": standard_error(rewards),
            "used": len(futures),
            "failed": 0,
            "components": _means(futures),
            "futures": futures,
        }


def _futures(row: Mapping[str, Any]) -> list[tuple[list[Mapping[str, str]], float, dict[str, Any]]]:
    """Return (messages, reward, components) of a row's futures, from either layout; those without a reward are left out."""
    sessions, rewards = row.get("sessions"), row.get("rewards")
    found = []
    if isinstance(sessions, Mapping):
        for _, session in sorted((each for each in sessions.items() if isinstance(each[1], Mapping)), key=lambda each: each[0]):
            chat, reward = session.get("forward_chat"), session.get("average_score")
            components = {name: value.get("score") for name, value in session.items() if isinstance(value, Mapping)}
            if _is_conversation(chat) and isinstance(reward, int | float):
                found.append((chat, float(reward), _present(components)))
        return found
    if not isinstance(rewards, Mapping) or not isinstance(sessions, list):
        return found
    of_futures = rewards.get(_MR) or []
    for index, (session, reward) in enumerate(zip(sessions, of_futures, strict=False)):
        if reward is None:
            continue
        metrics = {name: values[index] for name, values in rewards.items() if name != _MR and values and index < len(values)}
        found.append((session, reward, _present(metrics)))
    return found


def _future(
    tree: ConversationTree, node: Node, index: int, future: tuple[list[Mapping[str, str]], float, dict[str, Any]]
) -> dict[str, Any]:
    """Add a future's messages below its candidate; a transcript from the start of the conversation is cut to what follows."""
    session, reward, components = future
    before = [(message.role, message.content) for message in tree.conversation(node.id)]
    said = [(message["role"], message["content"]) for message in session]
    if said[: len(before)] == before:
        said = said[len(before) :]
    elif said[:1] == before[-1:]:
        said = said[1:]
    leaf = node.id
    for role, content in said:
        leaf = tree.add(leaf, Message(role, content), "user" if role == "user" else "policy").id  # type: ignore[arg-type]
    if leaf != node.id:
        tree.nodes[leaf].outcome = Outcome.WINDOW_FULL
    outcome = Outcome.WINDOW_FULL.value
    return {"index": index, "leaf": leaf, "outcome": outcome, "reward": reward, "components": components}


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _means(futures: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for future in futures:
        for name, value in future["components"].items():
            values.setdefault(name, []).append(float(value))
    return {name: math.fsum(each) / len(each) for name, each in values.items()}
