"""Software engineering as an evolving task family: a change to a small code base, made with tools, graded by tests in a sandbox.

The agent lists, reads and writes files, runs commands and the code's own tests. Files are what the calls of `write_file` in the
conversation left, so a conversation can be forked anywhere; commands see a copy of them in the sandbox, and what they change is
gone with it. The verifier runs the task's hidden tests on the file that defines the function asked for. Real repositories
(SWE-bench) need a container behind the same functions.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from collab.environments.domain import Resources
from collab.environments.evolving_intent.agentic.search import from_parts
from collab.environments.evolving_intent.conversion import Conversion
from collab.environments.evolving_intent.intent_domain import IntentDomain, Tools, domain_factory
from collab.environments.evolving_intent.rendering import Phrases
from collab.rewards.code import PassRate
from collab.rewards.extraction import fenced_blocks
from collab.sandbox.protocol import Ended, Limits, Program, Sandbox, SandboxError
from collab.sandbox.selection import load_sandbox
from collab.tasks.task import Task
from simulators.conversation import Conversation, Message, ToolCall
from simulators.errors import ToolError

MAX_FILE_CHARACTERS = 100_000
MAX_FILES = 50
_PATH = re.compile(r"(?!.*\.\.)[\w][\w./-]{0,199}")
_TEST_RUN = (
    "import sys, unittest\nsys.path.insert(0, '.')\nunittest.main(module=None, argv=['tests', 'discover', '-p', 'test*.py'])\n"
)
_RUN, _COMMAND = "run_tests.py", "_command.py"


def workspace(files: Mapping[str, str], conversation: Conversation) -> dict[str, str]:
    """Return the files as they stand: the task's, overlaid with what the agent's calls wrote, in order."""
    current = dict(files)
    for call in (call for message in conversation for call in message.tool_calls):
        if (written := _written(call, current)) is not None:
            current[written[0]] = written[1]
    return current


def _written(call: ToolCall, files: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the path and content that a call writes, None where it writes nothing."""
    if call.name != "write_file":
        return None
    try:
        arguments = json.loads(call.arguments)
        path, content = arguments["path"], arguments["content"]
    except (ValueError, KeyError, TypeError):
        return None
    return (path, content) if _refusal(path, content, files) is None else None


def _refusal(path: Any, content: Any, files: Mapping[str, str]) -> str | None:
    if not isinstance(path, str) or not isinstance(content, str) or not _PATH.fullmatch(path):
        return "A path is relative and has letters, digits and ./_- only; the content is a text."
    if len(content) > MAX_FILE_CHARACTERS:
        return f"That file is too long; it may have {MAX_FILE_CHARACTERS} characters."
    return f"There may be {MAX_FILES} files." if path not in files and len(files) >= MAX_FILES else None


def software_tools(find_sandbox: Callable[[], Sandbox] = load_sandbox, limits: Limits | None = None) -> Tools:
    """Return what gives a task the tools over its files; programs run in the sandbox under `limits`."""
    bounds = limits or Limits(cpu_s=10, wall_s=20)

    def make_tools(task: Task, resources: Resources) -> Sequence[Callable[..., Any]]:
        given: Mapping[str, str] = task.metadata.get("files", {})

        def list_files(conversation: Conversation) -> str:
            """Show the paths of all files."""
            return "\n".join(sorted(workspace(given, conversation)))

        def read_file(path: str, conversation: Conversation) -> str:
            """Show a file.

            Args:
                path: the file's path
            """
            return workspace(given, conversation).get(path, f"There is no file {path!r}.")

        def write_file(path: str, content: str, conversation: Conversation) -> str:
            """Write a file, new or not; it is then as given.

            Args:
                path: the file's path
                content: the whole new content
            """
            return _refusal(path, content, workspace(given, conversation)) or f"Wrote {path}."

        async def run(command: str, conversation: Conversation) -> str:
            """Run one command on a copy of the files: python FILE [ARGUMENTS], python -c CODE, ls, cat FILES, grep TEXT [FILES].

            Args:
                command: the command line
            """
            return await _run(command, workspace(given, conversation), find_sandbox, bounds)

        async def run_tests(conversation: Conversation) -> str:
            """Run the tests among the files (unittest, in files called test*.py)."""
            files = workspace(given, conversation) | {_RUN: _TEST_RUN}
            return await _in_sandbox(Program(files, _RUN), find_sandbox, bounds)

        return (list_files, read_file, write_file, run, run_tests)

    return make_tools


async def _run(command: str, files: Mapping[str, str], find_sandbox: Callable[[], Sandbox], limits: Limits) -> str:
    try:
        words = shlex.split(command)
    except ValueError as error:
        return f"That command cannot be read: {error}."
    match words:
        case ["python" | "python3", "-c", code, *arguments]:
            return await _in_sandbox(
                Program({**files, "_command.py": code}, "_command.py", tuple(arguments)), find_sandbox, limits
            )
        case ["python" | "python3", path, *arguments] if path in files:
            return await _in_sandbox(Program(dict(files), path, tuple(arguments)), find_sandbox, limits)
        case ["ls", *_]:
            return "\n".join(sorted(files))
        case ["cat", *paths] if paths and all(path in files for path in paths):
            return "".join(files[path] for path in paths)
        case ["grep", text, *paths] if all(path in files for path in paths):
            lines = ((path, line) for path in paths or sorted(files) for line in files[path].splitlines())
            return "\n".join(f"{path}: {line}" for path, line in lines if text in line) or "Nothing found."
    return "This shell knows python FILE, python -c CODE, ls, cat FILES and grep TEXT [FILES], for files that exist."


async def _in_sandbox(program: Program, find_sandbox: Callable[[], Sandbox], limits: Limits) -> str:
    try:
        ended = await find_sandbox().run(program, limits)
    except SandboxError as error:
        raise ToolError(f"a command could not be run: {error}") from None
    said = (ended.stdout + ended.stderr).strip()
    if ended.ended is Ended.EXITED:
        return said if ended.exit_code == 0 and said else f"{said}\nexit code {ended.exit_code}".strip()
    return f"{said}\nended by {ended.ended.value}".strip()


def with_written_code(conversation: Conversation, task: Task) -> str:
    """Return the last reply, with the file that defines the function asked for, where the agent wrote it."""
    files, given = workspace(task.metadata.get("files", {}), conversation), task.metadata.get("files", {})
    defines = re.compile(rf"^(async )?def {re.escape(task.metadata['entry_point'])}\b", re.MULTILINE)
    written = [text for path, text in files.items() if given.get(path) != text and defines.search(text)]
    return "\n\n".join([conversation[-1].content, *(f"```python\n{text.rstrip()}\n```" for text in written[-1:])])


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


def software_tools_of_this_machine() -> Tools:
    """Return the tools with the strongest sandbox of this machine."""
    return software_tools()


SOFTWARE = IntentDomain(
    name="evolving_software",
    summary="Changes to a small code base whose user adds requirements bit by bit, corrects them, and wants other changes first.",
    phrases=SOFTWARE_PHRASES,
    convert=from_parts,
    verifier=PassRate,
    reply_verifier=TestVerifier,
    metadata=_metadata,
    shown=with_written_code,
    bundled="evolving_software.jsonl",
)

domain = domain_factory(SOFTWARE, software_tools_of_this_machine)
"""The factory of `evolving_software`; its options are `domain_of`'s."""
