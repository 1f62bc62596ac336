"""Agents that act between turns: search over a small corpus, changes to a small code base, both with tools of their own."""

import json
import random
import re
from collections.abc import Callable

import pytest

from collab.environments.domain import BadRecord, Environment, Resources
from collab.environments.evolving_intent.agentic.search import SEARCH, Document, WordIndex, load_corpus, search_tools, source_task
from collab.environments.evolving_intent.agentic.software import SOFTWARE, software_tools, with_written_code, workspace
from collab.environments.evolving_intent.intent_domain import domain_of
from collab.environments.evolving_intent.parts import conversion_from_parts
from collab.environments.loading import load_tasks
from collab.environments.registry import load_domain
from collab.sandbox.protocol import SandboxError
from collab.sandbox.selection import load_sandbox
from simulators.chat_models.protocol import ChatRequest
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.conversation import Conversation, Message, Outcome, ToolCall
from simulators.errors import ConfigurationError
from simulators.forward_sampling import Future, future_seeds, sample_future
from simulators.policy import Policy
from simulators.tools import Toolbox
from tests.evolving_intent.tasks import RETRY, VILLAGE

CORPUS = WordIndex(
    (
        Document("Hollin", "Hollin lies on the river Ard. Its mill was built in 1742. A cheese fair is held every autumn."),
        Document("Brede", "Brede lies on the river Lune. Its mill was built in 1745. A wool fair is held every spring."),
        Document("Rivers", "The Lune has the most mills of the region; the Ard has few that still stand."),
        Document("Millers", "Tomas Grell built the mill of Hollin in 1742."),
    )
)
RESOURCES = Resources(count_tokens=lambda text: len(text.split()))


async def test_the_index_ranks_by_rare_shared_words():
    found = await CORPUS.search("a mill built in 1742 by Grell", 2)
    assert [document.title for document in found] == ["Millers", "Hollin"]
    assert await CORPUS.search("zebra", 3) == []


def call(tool: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


async def played(
    environment: Environment, record: dict, script: Callable[[ChatRequest, random.Random], str]
) -> tuple[Future, object]:
    task = environment.domain.task_from_record(record, "x")
    user, toolbox = environment.user_for(task), environment.toolbox_for(task)
    turns = environment.max_turns
    future = await sample_future((), user, Policy(ScriptedChatModel(script)), turns, future_seeds(0, task.id, 0), toolbox)
    return future, task


async def test_results_are_shown_and_stand_in_the_conversation():
    environment = Environment(domain_of(SEARCH, search_tools(CORPUS, 2), turns=1), RESOURCES)
    offered, seeds = [], []

    def script(request, rng):
        seeds.append(request.seed)
        offered.append([tool["function"]["name"] for tool in request.tools])
        return "It is Hollin." if request.messages[-1].role == "tool" else "Let me look.\n" + call("search", query="mill 1742")

    future, _ = await played(environment, VILLAGE, script)
    assert [message.role for message in future.conversation] == ["user", "assistant", "tool", "assistant"]
    assert len(set(seeds)) == 2, "every call of the model is a draw of its own"
    assert offered == [["search"]] * 2 and future.conversation[1].content == "Let me look."
    assert future.conversation[2].content.startswith("Hollin\nHollin lies on the river Ard.")


async def test_mistakes_are_told_and_too_many_calls_end_the_conversation():
    environment = Environment(domain_of(SEARCH, search_tools(CORPUS, 2), turns=1, max_tool_calls=3), RESOURCES)
    future, _ = await played(environment, VILLAGE, lambda request, rng: call("fly", to="away"))
    assert future.outcome is Outcome.TOOL_LIMIT and future.outcome.earns_reward
    assert [message.content for message in future.conversation if message.role == "tool"] == [
        "There is no tool 'fly'; there are search."
    ] * 3

    def corrected(request, rng):
        return "Done." if "arguments of search do not fit" in request.messages[-1].content else call("search", words="away")

    future, _ = await played(environment, VILLAGE, corrected)
    assert (future.outcome, future.conversation[-1].content) == (Outcome.WINDOW_FULL, "Done.")


def searcher(request, rng):
    """An agent that listens: looks up the clues it was told last, and answers the question asked last."""
    said = [message.content for message in request.messages if message.role == "user"]
    text = " ".join(said)
    asked = max(
        ("village", "most mills", "Who built"), key=lambda words: max((i for i, m in enumerate(said) if words in m), default=-1)
    )
    if request.messages[-1].role == "user":
        clues = [re.findall(pattern, text)[-1:] for pattern in (r"built in (\d+)", r"the river (\w+)", r"fair in (\w+)")]
        return call("search", query=f"{' '.join(word for words in clues for word in words)} {asked} mill")
    if asked == "most mills":
        return "The Lune."
    if asked == "Who built":
        return "That was Tomas Grell." if "river Ard" in text or "Ard." in text else "I do not know yet."
    return f"It is {request.messages[-1].content.splitlines()[0]}."


async def test_search_is_played_and_graded():
    environment = Environment(domain_of(SEARCH, search_tools(CORPUS, 3), turns=7), RESOURCES)
    future, task = await played(environment, VILLAGE, searcher)
    assert future.outcome is Outcome.WINDOW_FULL
    score = await environment.reward.score(future.conversation, task)
    assert score.components["accuracy"] == 1.0
    assert future.conversation[-1].content == "It is Hollin."


def test_the_bundled_tasks_have_their_answers_in_the_bundled_documents():
    corpus = load_corpus(None)
    texts = " ".join(document.text for document in corpus.documents)
    for split, count in (("train", 16), ("test", 8)):
        tasks = load_tasks("bundled", load_domain("evolving_search"), split=split).tasks
        assert len(tasks) == count and all(task.reference in texts for task in tasks)
    assert len(load_tasks("bundled", load_domain("evolving_software", {"turns": 5, "switches": 1, "revisions": 2})).tasks) == 3


def test_a_corpus_of_ones_own_is_a_file_of_documents(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"title": "A", "text": "about a"}\n{"title": "B"}\n')
    with pytest.raises(ConfigurationError, match="line 2: a document needs the texts 'title' and 'text'"):
        load_domain("evolving_search", {"corpus": str(path)})
    path.write_text('{"title": "A", "text": "about a"}\n')
    assert load_domain("evolving_search", {"corpus": str(path), "results": 1, "turns": 4}).max_turns == 4


def test_records_with_parts_must_fit_together():
    assert not conversion_from_parts(VILLAGE, "x").exact and conversion_from_parts(RETRY, "x").exact
    for change in ({"arguments": [{"text": "a"}]}, {"reference": "{a9}"}, {"text": None}, {"predecessors": [{"function": "f"}]}):
        with pytest.raises(BadRecord):
            conversion_from_parts(VILLAGE | change, "x")
    with pytest.raises(BadRecord, match="'reference'"):
        source_task({"text": "Who?"}, "x")
    assert source_task({"text": "Who?", "reference": "Ann"}, "x").id == "x"


# ---------------------------------------------------------------- software


def wrote(path: str, content: str) -> Message:
    return Message("assistant", "", tool_calls=(ToolCall("write_file", json.dumps({"path": path, "content": content}), "c"),))


def test_a_workspace_is_what_the_calls_left():
    files = {"a.py": "x = 1\n", "b.py": "y = 1\n"}
    first, second = wrote("a.py", "x = 2\n"), wrote("new/c.py", "z = 1\n")
    assert workspace(files, (Message("user", "go"), first)) == {"a.py": "x = 2\n", "b.py": "y = 1\n"}
    assert workspace(files, (first, second, wrote("a.py", "x = 3\n"))) == files | {"a.py": "x = 3\n", "new/c.py": "z = 1\n"}
    refused = (wrote("../evil.py", "x"), wrote("/etc/passwd", "x"), wrote("a/../../b.py", "x"), wrote("big.py", "x" * 100_001))
    broken = Message(
        "assistant", "", tool_calls=(ToolCall("write_file", "not json", "c"), ToolCall("write_file", '{"path": 3}', "c"))
    )
    assert workspace(files, (*refused, broken)) == files


def box(files: dict[str, str], **options: object) -> Toolbox:
    environment = Environment(domain_of(SOFTWARE, software_tools(**options), turns=1), RESOURCES)
    task = environment.domain.task_from_record(RETRY | {"details": {"entry_point": "f", "files": files}}, "x")
    found = environment.toolbox_for(task)
    assert found is not None
    return found


async def use(tools: Toolbox, tool: str, conversation: Conversation = (), **arguments: str) -> str:
    return await tools.call(ToolCall(tool, json.dumps(arguments)), conversation)


async def test_files_are_listed_read_and_written():
    tools = box({"a.py": "x = 1\n"})
    assert await use(tools, "list_files") == "a.py"
    assert await use(tools, "read_file", path="a.py") == "x = 1\n"
    assert await use(tools, "read_file", path="b.py") == "There is no file 'b.py'."
    assert await use(tools, "write_file", path="b.py", content="y") == "Wrote b.py."
    assert await use(tools, "read_file", (wrote("b.py", "y"),), path="b.py") == "y"
    assert "relative" in await use(tools, "write_file", path="/etc/passwd", content="y")


async def test_commands_run_in_the_sandbox_on_a_copy(sandbox):
    tools = box({"a.py": "import sys\nprint('hi', *sys.argv[1:])\n", "pkg/m.py": "v = 1\n"})
    assert await use(tools, "run", command="python a.py one 'two three'") == "hi one two three"
    assert await use(tools, "run", command="python -c 'import pkg.m; print(pkg.m.v)'") == "1"
    assert await use(tools, "run", command="ls -l") == "a.py\npkg/m.py"
    assert await use(tools, "run", command="cat pkg/m.py") == "v = 1\n"
    assert await use(tools, "run", command="grep hi") == "a.py: print('hi', *sys.argv[1:])"
    assert "exit code 3" in await use(tools, "run", command="python -c 'raise SystemExit(3)'")
    for command in ("rm -rf /", "python missing.py", "cat 'x", "curl http://127.0.0.1"):
        said = await use(tools, "run", command=command)
        assert "This shell knows" in said or "cannot be read" in said
    assert (await use(tools, "run", command="python -c 'open(\"/etc/hostname\").read()'")).endswith("exit code 1")


async def test_the_codes_own_tests_can_be_run(sandbox):
    test = (
        "import unittest\nfrom a import x\n\nclass T(unittest.TestCase):\n    def test_x(self):\n        self.assertEqual(x, 2)\n"
    )
    tools = box({"a.py": "x = 1\n", "test_a.py": test})
    assert "FAILED (failures=1)" in await use(tools, "run_tests")
    assert "OK" in await use(tools, "run_tests", (wrote("a.py", "x = 2\n"),))


async def test_a_sandbox_that_fails_is_not_the_policys_doing():
    class Broken:
        name = "broken"

        async def run(self, program, limits):
            raise SandboxError("no namespaces here")

    environment = Environment(domain_of(SOFTWARE, software_tools(Broken), turns=1), RESOURCES)
    future, _ = await played(environment, RETRY, lambda request, rng: call("run_tests"))
    assert (future.outcome, future.error) == (Outcome.INFRA_ERROR, "a command could not be run: no namespaces here")


def programmer(request, rng):
    """An agent that writes the function with the values it was told last."""
    if request.messages[-1].role == "tool":
        return "It is done."
    said = [message.content for message in request.messages if message.role == "user"]
    text = " ".join(said)
    first = (re.findall(r"waiting time is (\d+)", text) or ["1"])[-1]
    most = (re.findall(r"exceed (\d+)", text) or ["999"])[-1]
    simple = max(i for i, m in enumerate(said) if "times over" in m or "list of waiting" in m)
    body = f"[{first}] * count" if "times over" in said[simple] else f"[min({first} * 2 ** k, {most}) for k in range(count)]"
    return call("write_file", path="delays.py", content=f"def retry_delays(count):\n    return {body}\n")


@pytest.fixture
def sandbox():
    try:
        return load_sandbox()
    except ConfigurationError as error:
        pytest.skip(str(error))


async def test_software_is_played_and_graded_by_its_tests(sandbox):
    environment = Environment(load_domain("evolving_software", {"turns": 5, "switches": 1, "revisions": 2}), RESOURCES)
    future, task = await played(environment, RETRY, programmer)
    score = await environment.reward.score(future.conversation, task)
    assert score.components["accuracy"] == 1.0 and score.components["intent_tracking"] == 1.0
    worse = (
        *future.conversation,
        wrote("delays.py", "def retry_delays(count):\n    return [5] * count\n"),
        Message("assistant", "So."),
    )
    assert (await environment.reward.score(worse, task)).components["accuracy"] == 0.0
    block = Message("assistant", "```python\ndef retry_delays(count):\n    return [5] * count\n```")
    assert with_written_code((Message("user", "go"), block), task) == block.content
