"""ChatServer with a real vLLM server on this CPU and the embedded model."""

import importlib.util
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from collab.environments.domain import Resources
from collab.environments.loading import load_tasks
from collab.environments.registry import load_environment
from collab.mr import MultiturnReward
from simulators.chat_models.protocol import ChatRequest, Completion, SamplingSettings
from simulators.chat_models.server import ChatServer, ServerOptions
from simulators.chat_models.transformers_model import load_tokenizer
from simulators.conversation import Message, Outcome
from simulators.errors import ConfigurationError, ContextOverflow
from simulators.journal import Journal, JournaledChatModel
from simulators.policy import Policy
from tests.vllm.conftest import Server

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (make venv-vllm)"),
]

OPTIONS = ServerOptions(extensions=True, token_ids=True, logprobs="processed", send_seed=False)
GREEDY = SamplingSettings(max_tokens=12, temperature=0.0)
LONG_PROMPT = "You keep the diary of a lighthouse. " + " ".join(f"On day {day} the sea was calm." for day in range(1, 21))
DIARY = ChatRequest((Message("system", LONG_PROMPT), Message("user", "What was day 3 like?")), GREEDY)


@pytest.fixture
async def model(server: Server) -> AsyncIterator[ChatServer]:
    """The server without adapter and with an empty prefix cache."""
    chat_server = ChatServer(server.url, server.model, OPTIONS)
    assert await chat_server.reset_prefix_caches()
    yield chat_server
    await chat_server.aclose()


def ask(text: str = "Name three colours.", sampling: SamplingSettings = GREEDY, **settings: object) -> ChatRequest:
    return ChatRequest((Message("user", text),), sampling, **settings)  # type: ignore[arg-type]


async def one(model: ChatServer, request: ChatRequest) -> Completion:
    (completion,) = await model.complete(request)
    return completion


async def test_tokens_and_logprobs_come_with_the_text(model: ChatServer, embedded_folder: str) -> None:
    completion = await one(model, ask(sampling=SamplingSettings(max_tokens=8, temperature=0.7)))
    assert completion.token_ids is not None and completion.logprobs is not None
    assert load_tokenizer(embedded_folder).decode(completion.token_ids, skip_special_tokens=True) == completion.text
    assert len(completion.logprobs) == len(completion.token_ids) == completion.usage.completion_tokens
    assert min(completion.logprobs) < 0 and completion.finish_reason == "length"


async def test_a_reply_prefix_heads_text_and_tokens(model: ChatServer, embedded_folder: str) -> None:
    completion = await one(model, ask(reply_prefix="What is the"))
    prefix = load_tokenizer(embedded_folder)("What is the", add_special_tokens=False).input_ids
    assert completion.text.startswith("What is the") and len(completion.text) > len("What is the")
    assert completion.token_ids is not None and list(completion.token_ids[: len(prefix)]) == prefix
    assert completion.logprobs is not None and set(completion.logprobs[: len(prefix)]) == {0.0}
    assert load_tokenizer(embedded_folder).decode(completion.token_ids, skip_special_tokens=True) == completion.text


async def test_stop_strings_are_cut_or_kept(model: ChatServer) -> None:
    stopping = SamplingSettings(max_tokens=30, temperature=0.0, stop=(" ",))
    cut = await one(model, ask(sampling=stopping, reply_prefix="The first"))
    kept = await one(model, ask(sampling=replace(stopping, include_stop=True), reply_prefix="The first"))
    assert cut.finish_reason == kept.finish_reason == "stop"
    assert cut.text.startswith("The first") and not cut.text.endswith(" ")
    assert kept.text.startswith("The first") and kept.text.endswith(" ")


async def test_samples_of_one_request_differ(model: ChatServer) -> None:
    completions = await model.complete(ask(sampling=SamplingSettings(max_tokens=20), n=3))
    assert len({completion.text for completion in completions}) > 1
    greedy = await model.complete(ask(n=2))  # vLLM refuses n > 1 at temperature 0
    assert greedy[0].text == greedy[1].text


async def test_a_json_schema_is_obeyed(model: ChatServer) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    sampling = SamplingSettings(max_tokens=60, temperature=0.0)
    completion = await one(model, ask("Your favourite colour?", sampling, json_schema=schema))
    assert json.loads(completion.text)["colour"] in ("red", "blue")


async def test_prefix_cache_hits_are_reported(model: ChatServer) -> None:
    first = await one(model, DIARY)
    second = await one(model, replace(DIARY, messages=(DIARY.messages[0], Message("user", "What was day 12 like?"))))
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens > 0.8 * first.usage.prompt_tokens


async def test_what_can_never_work_says_so(model: ChatServer, server: Server) -> None:
    with pytest.raises(ContextOverflow):
        await model.complete(ask("word " * 2000))
    other = ChatServer(server.url, "no-such-model", OPTIONS)
    with pytest.raises(ConfigurationError, match="no-such-model"):
        await other.complete(ask())
    await other.aclose()


async def test_a_new_adapter_is_seen_by_the_next_sample(model: ChatServer, adapters: tuple[Path, Path]) -> None:
    texts, versions = [], []
    for adapter in (None, *adapters):
        if adapter is not None:
            assert await model.load_adapter("policy", adapter) == model.weights_version
        completion = await one(model, DIARY)
        assert completion.usage.cached_tokens == 0  # keys and values of other weights are not met again
        hot = await one(model, DIARY)
        assert hot.usage.cached_tokens > 0 and hot.logprobs and completion.logprobs
        assert hot.logprobs[0] == pytest.approx(completion.logprobs[0], abs=0.1)
        texts.append(completion.text)
        versions.append(completion.weights_version)
    assert len(set(texts)) == len(set(versions)) == 3


async def test_an_adapter_that_is_not_there_is_refused(model: ChatServer, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not load the adapter"):
        await model.load_adapter("policy", tmp_path / "nothing")


async def test_forward_sampling_end_to_end(model: ChatServer, tmp_path: Path) -> None:
    environment = load_environment("errands", Resources(count_tokens=lambda text: len(text.split())))
    tasks = load_tasks("bundled", environment.domain, split="train", limit=4).tasks
    journal = Journal(tmp_path / "journal.jsonl")
    policy = Policy(JournaledChatModel(model, journal), SamplingSettings(max_tokens=60), environment.domain.proactive_prompt)
    reward = MultiturnReward(environment, policy, window_turns=2, num_samples=2)
    for task in tasks:
        history = (Message("user", task.opening or ""), Message("assistant", "Which details should it have?"))
        estimate = await reward.estimate(history, task)
        assert estimate.mean is not None and estimate.failed == 0
        for scored in estimate.futures:
            assert scored.outcome in (Outcome.ENDED, Outcome.WINDOW_FULL, Outcome.TRUNCATED)
            assert all(step.completion and step.completion.token_ids for step in scored.future.policy_steps)
    policy_counts = journal.counts_of("policy")
    assert policy_counts.made >= 8 and policy_counts.cached_tokens > 0
    journal.close()
