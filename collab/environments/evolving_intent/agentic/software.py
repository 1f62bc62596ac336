"""Software engineering as an evolving task family: a change to a small code base, made with tools, graded by tests in a sandbox.

The agent reads and writes files; what it wrote stands in its reply as fenced blocks, and later turns start from there. The
verifier runs the task's tests. Real repositories (SWE-bench) need a container behind the same two protocols: a toolbox whose
tools act in it, and a verifier that runs its test suite.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from collab.environments.evolving_intent.agentic.agent_loop import Tool
from collab.environments.evolving_intent.agentic.search import from_parts
from collab.environments.evolving_intent.conversion import Conversion
from collab.environments.evolving_intent.intent_domain import IntentDomain, domain_factory
from collab.environments.evolving_intent.rendering import Phrases
from collab.rewards.code import PassRate
from collab.rewards.extraction import fenced_blocks
from collab.tasks.task import Task
from simulators.conversation import Conversation, Message

_BLOCK = re.compile(r"^```python file=(?P<path>[\w./-]{1,200})\n(?P<content>.*?)^```$", re.MULTILINE | re.DOTALL)
MAX_FILE_CHARACTERS = 100_000


def workspace(files: Mapping[str, str], conversation: Conversation) -> dict[str, str]:
    """Return the files as they stand: the task's, overlaid with what the agent's replies wrote, in order."""
    current = dict(files)
    for message in conversation:
        if message.role == "assistant":
            current |= {match["path"]: match["content"] for match in _BLOCK.finditer(message.content)}
    return current


@dataclass(slots=True)
class _Files:
    """The files of one turn, and which of them were written."""

    current: dict[str, str]
    written: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class ListFiles:
    """The action `list`."""

    files: _Files
    usage: str = "list: (nothing); shows the files"

    async def use(self, argument: str) -> str:
        """Return the paths."""
        return "\n".join(sorted(self.files.current))


@dataclass(frozen=True, slots=True)
class ReadFile:
    """The action `read`."""

    files: _Files
    usage: str = "read: path; shows a file"

    async def use(self, argument: str) -> str:
        """Return the file's content."""
        path = argument.strip()
        return self.files.current.get(path, f"There is no file {path!r}.")


@dataclass(frozen=True, slots=True)
class WriteFile:
    """The action `write`."""

    files: _Files
    usage: str = "write: path, then the whole new content on the following lines"

    async def use(self, argument: str) -> str:
        """Replace a file; only files of the code base can be written."""
        path, _, content = argument.partition("\n")
        path = path.strip()
        if path not in self.files.current:
            return f"There is no file {path!r} to write."
        if len(content) > MAX_FILE_CHARACTERS:
            return "That file is too long."
        self.files.current[path] = "".join(block for _, block in fenced_blocks(content)) or content
        self.files.written.add(path)
        return f"Wrote {path}."


@dataclass(frozen=True, slots=True)
class WorkspaceToolbox:
    """The toolbox of an agent that works on a task's files."""

    files: Mapping[str, str]

    def tools(self, conversation: Conversation) -> Mapping[str, Tool]:
        """Return tools over the files as the conversation left them."""
        files = _Files(workspace(self.files, conversation))
        return {"list": ListFiles(files), "read": ReadFile(files), "write": WriteFile(files)}

    def closing(self, tools: Mapping[str, Tool]) -> str:
        """Return what was written on this turn as fenced blocks."""
        writer = tools["write"]
        assert isinstance(writer, WriteFile)
        blocks = []
        for path in sorted(writer.files.written):
            content = writer.files.current[path].rstrip("\n")
            blocks.append(f"```python file={path}\n{content}\n```")
        return "\n\n".join(blocks)


SOFTWARE_PHRASES = Phrases(
    reveal=("One more requirement: {}", "I should add this: {}", "Please also note: {}"),
    reveal_many=("Some more requirements: {}", "I should add this: {}"),
    revision=("Sorry, that was wrong. {}", "Wait, I have to take that back. {}", "Correction: {new}, not {old}. {}"),
    switch=("Thanks. The next thing I need: {}", "Good. Now this: {}"),
    switch_request=("Thanks. Next: {}", "Good. Now this: {}", "OK, on to the next change. {}"),
    repeat=("Could you do that again? {}", "Please go over it once more. {}"),
    function_first=True,
)


@dataclass(frozen=True, slots=True)
class TestVerifier:
    """A reply gives a target when the code in it passes the target's tests (`check(candidate)`)."""

    __test__ = False  # not a test case, whatever its name looks like to pytest
    pass_rate: PassRate = field(default_factory=PassRate)

    async def gives(self, reply: str, target: str, task: Task) -> bool:
        """Return whether all tests pass.

        Raises:
            ScoringError: as `PassRate` does.
        """
        asked = replace(task, metadata={**task.metadata, "test": target})
        return await self.pass_rate.score((Message("assistant", reply),), asked) == 1.0

    def answers(self, reply: str) -> bool:
        """Return whether the reply holds code."""
        return bool(fenced_blocks(reply))


def _metadata(conversion: Conversion) -> Mapping[str, Any]:
    details = conversion.task.details
    return {"test": conversion.task.reference, "entry_point": details["entry_point"], "files": details.get("files", {})}


SOFTWARE = IntentDomain(
    name="evolving_software",
    summary="Changes to a small code base whose user adds requirements bit by bit, corrects them, and wants other changes first.",
    phrases=SOFTWARE_PHRASES,
    convert=from_parts,
    verifier=PassRate,
    reply_verifier=TestVerifier,
    metadata=_metadata,
)

domain = domain_factory(SOFTWARE)
"""The factory of `evolving_software`; its options are `domain_of`'s."""
