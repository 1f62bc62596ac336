"""The journal: every model call of a run, written down before its reply is used.

Start a killed run again and each call that was answered is read back instead of made: nothing is paid twice, and the run
arrives at the same sample set even where a backend cannot be seeded. With `replay` the journal is the only source: a call it
does not hold is an error, so a recorded run can be reproduced with no model at all.

A call that failed is written down, too, for replays alone: there it fails again in the same words, unless it was answered later.
A run that is started again makes it again.

Key = SHA-256 over role, model, weights version, messages, sampling settings, number of samples, seed, reply prefix and schema.
The seed names the draw, so two draws from one prompt never collapse into one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from simulators.chat_models.protocol import ChatModel, ChatRequest, Completion
from simulators.chat_models.server_errors import RequestRefused
from simulators.conversation import ToolCall, Usage
from simulators.errors import ChatModelError, ContextOverflow, ReplayMiss
from simulators.metering import note
from simulators.record_file import RecordFile

VERSION = 2
"""1 has no records of failed calls."""

_FAILURES: dict[str, type[ChatModelError]] = {kind.__name__: kind for kind in (ChatModelError, ContextOverflow, RequestRefused)}
"""What a failed call may raise in a replay: the errors that end one conversation. All others end the run."""

_TUPLES = ("token_ids", "logprobs", "context_ids")


@dataclass(slots=True)
class CallCounts:
    """What a run asked for: calls made to a model, calls read back from an earlier start's journal, and tokens of both kinds.

    `shared` are calls equal to one that this start made itself: they cost nothing, and their tokens are counted once. `failed`
    calls are not among the made ones; a replay counts those here that fail as recorded.
    """

    made: int = 0
    reused: int = 0
    shared: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclass(slots=True)
class Journal:
    """The journal of one run, for any number of models.

    `failed_calls` is how many calls on record failed, over all starts; its length is how many were answered.

    Raises:
        ConfigurationError, StorageError: as `RecordFile` does.
    """

    path: Path
    replay: bool = False
    counts: dict[str, CallCounts] = field(default_factory=dict)
    failed_calls: int = field(default=0, init=False)
    _file: RecordFile = field(init=False)
    _where: dict[bytes, tuple[int, int]] = field(default_factory=dict, init=False)
    _failures: dict[bytes, tuple[str, str]] = field(default_factory=dict, init=False)
    _earlier_end: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._file = RecordFile(self.path, "journal", VERSION, writable=not self.replay)
        for offset, length, record in self._file.records():
            key = bytes.fromhex(record["key"])
            if "failed" not in record:
                self._where[key] = (offset, length)
            else:
                self.failed_calls += 1
                if self.replay:
                    self._failures[key] = tuple(record["failed"])
            self._earlier_end = offset + length

    def __len__(self) -> int:
        return len(self._where)

    def counts_of(self, role: str) -> CallCounts:
        """Return the running counts of one role (policy, user, judge)."""
        return self.counts.setdefault(role, CallCounts())

    def look_up(self, key: bytes) -> list[Completion] | None:
        """Return the recorded completions of a call, None when it was never answered."""
        where = self._where.get(key)
        return None if where is None else [_completion(data) for data in self._file.read_at(*where)["completions"]]

    def is_of_an_earlier_start(self, key: bytes) -> bool:
        """Return whether a recorded call was on record when the journal was opened."""
        return self._where[key][0] < self._earlier_end

    def failure(self, key: bytes) -> ChatModelError | None:
        """Return the error that a call ended with, None when none is on record; in a replay only."""
        if (recorded := self._failures.get(key)) is None:
            return None
        kind, text = recorded
        return _FAILURES.get(kind, ChatModelError)(text)

    def record(self, key: bytes, role: str, completions: list[Completion]) -> None:
        """Write one answered call down; it is on its way to the disk when this returns.

        Raises:
            StorageError: when the disk refuses.
        """
        record = {"key": key.hex(), "role": role, "completions": [_plain(completion) for completion in completions]}
        self._where[key] = self._file.append(record)

    def record_failure(self, key: bytes, role: str, error: ChatModelError) -> None:
        """Write down that a call failed, with the nearest kind of error that a replay can raise, and its text.

        Raises:
            StorageError: when the disk refuses.
        """
        kind = next(each.__name__ for each in type(error).__mro__ if _FAILURES.get(each.__name__) is each)
        self._file.append({"key": key.hex(), "role": role, "failed": [kind, str(error)]})
        self.failed_calls += 1

    def recorded_calls(self) -> Iterator[tuple[str, list[Completion]]]:
        """Yield (role, completions) of every answered call on record, in the order recorded."""
        for _, _, record in self._file.records():
            if "failed" not in record:
                yield record["role"], [_completion(data) for data in record["completions"]]

    def close(self) -> None:
        """Close the file and give up the lock."""
        self._file.close()

    def summary(self) -> dict[str, dict[str, int]]:
        """Return the counts per role as plain data, for metrics and reports."""
        return {role: asdict(counts) for role, counts in sorted(self.counts.items())}


def call_key(model: ChatModel, request: ChatRequest) -> bytes:
    """Return the journal's key of a call: equal for two requests that ask the same model for the same draw."""
    sampling = request.sampling
    identity = (
        request.role,
        model.name,
        model.weights_version,
        (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k, sampling.stop, sampling.include_stop),
        request.n,
        request.seed,
        request.reply_prefix,
        request.json_schema,
        [(message.role, len(message.content)) for message in request.messages],
    )
    key = hashlib.sha256(json.dumps(identity).encode("ascii"))
    if request.tools:
        called = [message.as_dict() for message in request.messages if message.tool_calls or message.tool_call_id]
        key.update(json.dumps([list(request.tools), called]).encode("ascii"))
    for message in request.messages:  # as they are: escaping them as JSON costs more than all the rest
        key.update(message.content.encode("utf-8", "surrogatepass"))
    return key.digest()


class JournaledChatModel:
    """A chat model with a journal in front of it. Two equal requests in flight at once are one call."""

    def __init__(self, model: ChatModel, journal: Journal) -> None:
        self._model = model
        self._journal = journal
        self._in_flight: dict[bytes, asyncio.Future[list[Completion]]] = {}

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def weights_version(self) -> str:
        return self._model.weights_version

    async def complete(self, request: ChatRequest) -> list[Completion]:
        """Return the recorded completions, or ask the model and record them first.

        Raises:
            ReplayMiss: in a replay, when the call was never recorded.
            StorageError: when the disk refuses the record; the reply is then not used.
            ChatModelError, ConfigurationError: as the model does; in a replay, as it did (`ChatModelError` only).
        """
        key = call_key(self._model, request)
        counts = self._journal.counts_of(request.role)
        if (recorded := self._journal.look_up(key)) is not None:
            if self._journal.is_of_an_earlier_start(key):
                counts.reused += 1
                _count_tokens(counts, recorded)
            else:  # its tokens were counted when it was made
                counts.shared += 1
            note(request.role, recorded)
            return recorded
        while (shared := self._in_flight.get(key)) is not None:
            await asyncio.wait({shared})
            if not shared.cancelled():  # else whoever made the call was cancelled, and one of those who waited makes it again
                completions = shared.result()
                counts.shared += 1
                note(request.role, completions)
                return completions
        if self._journal.replay:
            if (failure := self._journal.failure(key)) is not None:
                counts.failed += 1
                raise failure
            raise ReplayMiss(
                f"the replay asked {self.name} for a call ({request.role}, seed {request.seed}) that {self._journal.path} "
                "does not hold; replay with the configuration of the recorded run"
            )
        waiting: asyncio.Future[list[Completion]] = asyncio.get_running_loop().create_future()
        self._in_flight[key] = waiting
        try:
            try:
                completions = await self._model.complete(request)
            except ChatModelError as error:
                self._journal.record_failure(key, request.role, error)
                raise
            self._journal.record(key, request.role, completions)
        except BaseException as error:
            counts.failed += 1
            if not waiting.done():
                if isinstance(error, Exception):
                    waiting.set_exception(error)
                    waiting.exception()  # marked as seen: nobody may be waiting for it
                else:
                    waiting.cancel()
            raise
        finally:
            del self._in_flight[key]
        waiting.set_result(completions)
        counts.made += 1
        _count_tokens(counts, completions)
        note(request.role, completions)
        return completions

    async def aclose(self) -> None:
        """Close the model; the journal stays open for the others that use it."""
        await self._model.aclose()


def _count_tokens(counts: CallCounts, completions: list[Completion]) -> None:
    for completion in completions:
        counts.prompt_tokens += completion.usage.prompt_tokens
        counts.cached_tokens += completion.usage.cached_tokens
        counts.completion_tokens += completion.usage.completion_tokens


def _plain(completion: Completion) -> dict[str, Any]:
    usage = completion.usage
    data: dict[str, Any] = {
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "usage": [usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens],
        "model": completion.model,
        "weights_version": completion.weights_version,
        "latency_s": completion.latency_s,
    }
    data |= {name: value for name in _TUPLES if (value := getattr(completion, name)) is not None}
    if completion.reasoning:
        data["reasoning"] = completion.reasoning
    if completion.tool_calls:
        data["tool_calls"] = [asdict(call) for call in completion.tool_calls]
    return data


def _completion(data: dict[str, Any]) -> Completion:
    data["usage"] = Usage(*data["usage"])
    data["tool_calls"] = tuple(ToolCall(**call) for call in data.get("tool_calls", ()))
    for key in _TUPLES:
        if key in data:
            data[key] = tuple(data[key])
    return Completion(**data)
