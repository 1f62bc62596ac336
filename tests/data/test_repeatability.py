"""The same seed gives the same tree where the backend can be seeded, and a replay gives it with every backend, without a call."""

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from collab.data.builder import CandidateSource, DatasetBuilder
from collab.mr import MultiturnReward
from collab.tasks.task import Task
from simulators.chat_models.protocol import ChatModel, ChatRequest, Completion, SamplingSettings
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.chat_models.server import ChatServer
from simulators.chat_models.transformers_model import TransformersChatModel
from simulators.conversation import Conversation
from simulators.errors import ReplayMiss
from simulators.journal import Journal, JournaledChatModel
from simulators.policy import Policy
from simulators.users.protocol import UserTurn
from tests.scripted_environment import assistant_texts, scripted_environment
from tests.simulators.fault_server import FaultServer


@dataclass
class Silent:
    """Stands in for a model in a replay: it has the name, and must not be asked."""

    name: str
    weights_version: str

    async def complete(self, request: ChatRequest) -> list[Completion]:
        raise AssertionError("a replay asks no model")

    async def aclose(self) -> None: ...


def asks_on(conversation: Conversation, seed: int) -> UserTurn:
    return UserTurn(f"Write label {seed % 10}, please.")


def length_of_replies(conversation: Conversation) -> float:
    return float(sum(map(len, assistant_texts(conversation))))


async def tree_of(model: ChatModel, seed: int = 0) -> list[dict[str, Any]]:
    """Build the trees of two tasks, with sources that differ in prompt and sampling."""
    environment = scripted_environment(asks_on, length_of_replies)
    policy = Policy(model, SamplingSettings(max_tokens=6, temperature=0.9))
    asking = Policy(model, SamplingSettings(max_tokens=6, top_p=0.9), system_prompt="Ask.", name="asking")
    sources = [CandidateSource(policy, 2), CandidateSource(asking, 1)]
    builder = DatasetBuilder(environment, MultiturnReward(environment, policy, 1, 2, seed), sources, seed, max_turns=2)
    return [(await builder.build(Task(task_id, goal=""))).fingerprint() for task_id in ("one", "two")]


def mumbles(request: ChatRequest, rng: random.Random) -> str:
    return f"{rng.choice(('When is it?', 'Where?', 'Done.', 'Here you are.'))} {rng.randrange(3)}"


@pytest.fixture(params=["scripted", "transformers", "server"])
async def model(request: pytest.FixtureRequest, tiny_model_folder: Path) -> AsyncIterator[ChatModel]:
    server = FaultServer()
    made: ChatModel
    if request.param == "scripted":
        made = ScriptedChatModel(mumbles)
    elif request.param == "transformers":
        made = TransformersChatModel.from_pretrained(str(tiny_model_folder), dtype="float32")
    else:
        await server.start()
        noise = random.Random(0)  # answers differ from call to call, as those of a server that takes no seed
        server.reply = lambda body: str(noise.random())
        made = ChatServer(server.url, "served")
    yield made
    await made.aclose()
    await server.stop()


async def test_a_replay_gives_the_same_tree_and_asks_nobody(model: ChatModel, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    recorded = await tree_of(JournaledChatModel(model, journal))
    calls = sum(counts.made for counts in journal.counts.values())
    journal.close()
    assert calls > 20

    replay = Journal(tmp_path / "journal.jsonl", replay=True)
    stand_in = JournaledChatModel(Silent(model.name, model.weights_version), replay)
    assert await tree_of(stand_in) == recorded
    assert sum(counts.reused for counts in replay.counts.values()) >= calls
    assert sum(counts.made for counts in replay.counts.values()) == 0
    with pytest.raises(ReplayMiss):
        await tree_of(stand_in, seed=1)
    replay.close()


async def test_transformers_one_at_a_time_give_the_same_tree_twice(tiny_model_folder: Path) -> None:
    async def fresh(seed: int) -> list[dict[str, Any]]:
        model = TransformersChatModel.from_pretrained(str(tiny_model_folder), dtype="float32", max_batch_size=1)
        trees = await tree_of(model, seed)
        await model.aclose()
        return trees

    first = await fresh(5)
    assert first == await fresh(5)
    assert [tree["nodes"] for tree in first] != [tree["nodes"] for tree in await fresh(6)]
    policy_nodes = [node for tree in first for node in tree["nodes"] if node["author"] == "policy"]
    assert all(len(node["token_ids"]) == len(node["logprobs"]) for node in policy_nodes)


async def test_the_scripted_backend_gives_the_same_trees_twice() -> None:
    assert await tree_of(ScriptedChatModel(mumbles), seed=5) == await tree_of(ScriptedChatModel(mumbles), seed=5)
