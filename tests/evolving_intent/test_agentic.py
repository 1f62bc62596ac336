"""Agents that act between turns: the loop, search over a small corpus, changes to a small code base."""

import re

import pytest

from collab.environments.domain import BadRecord, Environment, Resources
from collab.environments.evolving_intent.agentic.agent_loop import AgentLoop
from collab.environments.evolving_intent.agentic.search import Document, SearchToolbox, WordIndex, source_task
from collab.environments.evolving_intent.agentic.software import WorkspaceToolbox, workspace
from collab.environments.evolving_intent.parts import conversion_from_parts
from collab.environments.registry import load_domain
from collab.sandbox.selection import load_sandbox
from simulators.chat_models.protocol import ChatRequest
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.conversation import Message, Outcome
from simulators.errors import ConfigurationError
from simulators.forward_sampling import future_seeds, sample_future
from simulators.policy import Policy
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


def _loop(script, toolbox, **options) -> AgentLoop:
    return AgentLoop(ScriptedChatModel(script), toolbox, **options)


async def test_the_loop_shows_results_and_returns_the_reply_alone():
    seen = []

    def script(request, rng):
        seen.append([message.content for message in request.messages])
        return "It is Hollin." if request.messages[-1].content.startswith("RESULT") else "Let me look.\nACTION search: mill 1742"

    (completion,) = await _loop(script, SearchToolbox(CORPUS)).complete(ChatRequest((Message("user", "Which village?"),)))
    assert completion.text == "It is Hollin." and completion.finish_reason == "stop"
    assert "ACTION tool" in seen[0][0] and "Hollin lies on the river" in seen[1][-1]
    assert completion.usage.completion_tokens > 3


async def test_mistakes_of_the_agent_are_told_and_the_budget_is_kept():
    def stubborn(request, rng):
        return "ACTION fly: away"

    loop = _loop(stubborn, SearchToolbox(CORPUS), budget=3)
    (completion,) = await loop.complete(ChatRequest((Message("system", "Be brief."), Message("user", "Go."))))
    assert completion.finish_reason == "length" and loop.model.calls == 4

    def corrected(request, rng):
        return "Done." if "There is no tool 'fly'" in request.messages[-1].content else "ACTION fly: away"

    (completion,) = await _loop(corrected, SearchToolbox(CORPUS)).complete(ChatRequest((Message("user", "Go."),)))
    assert completion.text == "Done."


async def test_samples_of_a_loop_are_drawn_apart():
    def script(request, rng):
        return f"It is {rng.random():.6f}."

    completions = await _loop(script, SearchToolbox(CORPUS)).complete(ChatRequest((Message("user", "Go."),), n=3, seed=5))
    assert len({completion.text for completion in completions}) == 3


def searcher(request, rng):
    """An agent that listens: looks up the clues it was told last, and answers the question asked last."""
    said = [
        message.content for message in request.messages if message.role == "user" and not message.content.startswith("RESULT")
    ]
    text = " ".join(said)
    asked = max(
        ("village", "most mills", "Who built"), key=lambda words: max((i for i, m in enumerate(said) if words in m), default=-1)
    )
    results = [message.content for message in request.messages if message.content.startswith("RESULT")]
    if not results:
        clues = [re.findall(pattern, text)[-1:] for pattern in (r"built in (\d+)", r"the river (\w+)", r"fair in (\w+)")]
        return f"ACTION search: {' '.join(word for words in clues for word in words)} {asked} mill"
    if asked == "most mills":
        return "The Lune."
    if asked == "Who built":
        return "That was Tomas Grell." if "river Ard" in text or "Ard." in text else "I do not know yet."
    return f"It is {results[-1].splitlines()[1]}."


async def test_search_is_played_and_graded():
    environment = Environment(load_domain("evolving_search", {"turns": 7}), RESOURCES)
    task = environment.domain.task_from_record(VILLAGE, "x")
    policy = Policy(AgentLoop(ScriptedChatModel(searcher), SearchToolbox(CORPUS)))
    future = await sample_future((), environment.user_for(task), policy, 7, future_seeds(0, task.id, 0))
    assert future.outcome is Outcome.WINDOW_FULL
    score = await environment.reward.score(future.conversation, task)
    assert score.components["accuracy"] == 1.0
    assert future.conversation[-1].content == "It is Hollin."


def test_records_with_parts_must_fit_together():
    assert not conversion_from_parts(VILLAGE, "x").exact and conversion_from_parts(RETRY, "x").exact
    for change in ({"arguments": [{"text": "a"}]}, {"reference": "{a9}"}, {"text": None}, {"predecessors": [{"function": "f"}]}):
        with pytest.raises(BadRecord):
            conversion_from_parts(VILLAGE | change, "x")
    with pytest.raises(BadRecord, match="'reference'"):
        source_task({"text": "Who?"}, "x")
    assert source_task({"text": "Who?", "reference": "Ann"}, "x").id == "x"


# ---------------------------------------------------------------- software


def test_a_workspace_is_what_the_replies_left():
    files = {"a.py": "x = 1\n", "b.py": "y = 1\n"}
    first = Message("assistant", "Done.\n\n```python file=a.py\nx = 2\n```")
    second = Message("assistant", "Again.\n\n```python file=a.py\nx = 3\n```\n```python\nz = 1\n```")
    assert workspace(files, (Message("user", "go"), first)) == {"a.py": "x = 2\n", "b.py": "y = 1\n"}
    assert workspace(files, (first, second))["a.py"] == "x = 3\n"


async def test_files_are_read_written_and_kept_between_turns():
    def script(request, rng):
        last = request.messages[-1].content
        if last == "Change x.":
            return "ACTION read: a.py"
        if last.startswith("RESULT\nx = 1"):
            return "ACTION write: a.py\n```python\nx = 2\n```"
        if last == "And now?":
            return "ACTION read: a.py"
        if last.startswith("RESULT\nx = 2"):
            return "ACTION write: new.py\nz"
        return "Finished." if "Wrote a.py" in last or "no file 'new.py'" in last else "ACTION list:"

    loop = _loop(script, WorkspaceToolbox({"a.py": "x = 1\n"}))
    first = (Message("user", "Change x."),)
    (reply,) = await loop.complete(ChatRequest(first))
    assert reply.text == "Finished.\n\n```python file=a.py\nx = 2\n```"
    (again,) = await loop.complete(ChatRequest((*first, Message("assistant", reply.text), Message("user", "And now?"))))
    assert again.text == "Finished."  # read the written file, was refused a new one, wrote nothing


def programmer(request, rng):
    """An agent that writes the function with the values it was told last."""
    last = request.messages[-1].content
    if last.startswith("RESULT"):
        return "It is done."
    said = [message.content for message in request.messages if message.role == "user"]
    text = " ".join(said)
    first = (re.findall(r"waiting time is (\d+)", text) or ["1"])[-1]
    most = (re.findall(r"exceed (\d+)", text) or ["999"])[-1]
    simple = max(i for i, m in enumerate(said) if "times over" in m or "list of waiting" in m)
    body = f"[{first}] * count" if "times over" in said[simple] else f"[min({first} * 2 ** k, {most}) for k in range(count)]"
    return f"ACTION write: delays.py\ndef retry_delays(count):\n    return {body}\n"


@pytest.fixture
def sandbox():
    try:
        return load_sandbox()
    except ConfigurationError as error:
        pytest.skip(str(error))


async def test_software_is_played_and_graded_by_its_tests(sandbox):
    environment = Environment(load_domain("evolving_software", {"turns": 5, "switches": 1, "revisions": 2}), RESOURCES)
    task = environment.domain.task_from_record(RETRY, "x")
    policy = Policy(AgentLoop(ScriptedChatModel(programmer), WorkspaceToolbox(task.metadata["files"])))
    future = await sample_future((), environment.user_for(task), policy, 5, future_seeds(0, task.id, 0))
    score = await environment.reward.score(future.conversation, task)
    assert score.components["accuracy"] == 1.0 and score.components["intent_tracking"] == 1.0
    broken = (*future.conversation[:-1], Message("assistant", "```python\ndef retry_delays(count):\n    return [5] * count\n```"))
    assert (await environment.reward.score(broken, task)).components["accuracy"] == 0.0
