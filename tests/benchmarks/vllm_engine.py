"""Forward sampling with a real vLLM in this process, on a CPU, with the embedded model: `make bench-vllm`.

The MR of one reply to each of some errands is estimated with futures of two turns. The policy is sampled by vLLM, user and reward
are rules. Then the very same requests (rendered prompts, sampling settings) are handed to the same engine as one offline batch:
no conversation, no turn has to wait for another, all are known from the start. `engine_ratio` is forward sampling's tokens per
second over that batch's. The two take turns, each starting with an empty prefix cache, and the medians are compared.

`prefix_hit_share` is the share of forward sampling's prompt tokens that came from the prefix cache. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import dataclass, replace
from typing import Any

from collab.embedded_model import fetch_embedded_model
from collab.environments.domain import Environment, Resources
from collab.environments.errands import domain, make_user
from collab.environments.loading import load_tasks
from collab.mr import MultiturnReward
from collab.tasks.task import Task
from simulators.chat_models.dispatcher import Request, Row
from simulators.chat_models.protocol import ChatRequest, Completion, SamplingSettings
from simulators.chat_models.vllm_model import VLLMChatModel, VLLMOptions
from simulators.conversation import Conversation, Message
from simulators.policy import Policy
from simulators.users.protocol import UserTurn

CANDIDATE = "Gladly. Which details should it have?"


@dataclass(frozen=True, slots=True)
class InsistentUser:
    """An errand's user that never leaves: it tells its fact, then has a wish, so that every future has two whole turns."""

    told: str

    async def next_turn(self, conversation: Conversation, seed: int) -> UserTurn:
        """Return the fact, and from then on the wish."""
        said = {message.content for message in conversation}
        return UserTurn(self.told if self.told not in said else "Thank you. Please make it a little more friendly.")


@dataclass(frozen=True, slots=True)
class Figures:
    """One run: sampled tokens, prompt tokens, those of them from the prefix cache, and seconds."""

    sampled: int
    prompt: int
    cached: int
    wall_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.sampled / self.wall_s

    def __str__(self) -> str:
        return (
            f"{self.tokens_per_s:7.1f} tokens/s ({self.sampled} tokens in {self.wall_s:.1f} s), "
            f"{self.cached / self.prompt:.0%} of {self.prompt} prompt tokens from the prefix cache"
        )


class Recorder:
    """A chat model that notes what it was asked and what it answered."""

    def __init__(self, model: VLLMChatModel) -> None:
        self._model = model
        self.requests: list[ChatRequest] = []
        self.completions: list[Completion] = []

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def weights_version(self) -> str:
        return self._model.weights_version

    async def complete(self, request: ChatRequest) -> list[Completion]:
        """Do what the model does."""
        self.requests.append(request)
        completions = await self._model.complete(request)
        self.completions += completions
        return completions

    async def aclose(self) -> None:
        """Leave the model open."""


def two_turn_errands(model: VLLMChatModel) -> Environment:
    """The errands environment with users that stay."""

    def insistent(task: Task, resources: Resources) -> InsistentUser:
        assert make_user(task, resources)
        return InsistentUser(str(task.metadata["told"]))

    return Environment(replace(domain(), make_user=insistent), Resources(count_tokens=model.count_tokens))


async def forward_sampling(model: VLLMChatModel, arguments: argparse.Namespace) -> tuple[Figures, list[ChatRequest]]:
    """Estimate the MR of all tasks at once; return what it took and every request it made."""
    environment = two_turn_errands(model)
    tasks = load_tasks("bundled", environment.domain, split="train", limit=arguments.tasks).tasks
    recorder = Recorder(model)
    sampling = SamplingSettings(max_tokens=arguments.max_tokens)
    policy = Policy(recorder, sampling, system_prompt=environment.domain.proactive_prompt)
    reward = MultiturnReward(environment, policy, window_turns=2, num_samples=arguments.futures)
    started = time.perf_counter()
    estimates = await asyncio.gather(
        *(reward.estimate((Message("user", task.opening or ""), Message("assistant", CANDIDATE)), task) for task in tasks)
    )
    wall_s = time.perf_counter() - started
    assert all(estimate.failed == 0 for estimate in estimates)
    usages = [completion.usage for completion in recorder.completions]
    row = Figures(
        sum(usage.completion_tokens for usage in usages),
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.cached_tokens for usage in usages),
        wall_s,
    )
    return row, recorder.requests


def offline_batch(model: VLLMChatModel, requests: list[ChatRequest]) -> Figures:
    """Hand the requests to the engine all at once, rendered beforehand, and step it until the last is done."""
    nobody: Any = None
    prompts = [model.template.prompt_ids(request.messages) for request in requests]
    rows = [
        Row(Request(prompt, [], request.sampling, None, None, nobody), request.seed)
        for prompt, request in zip(prompts, requests, strict=True)
    ]
    sampling = [model.engine.sampling(row) for row in rows]
    engine = model.engine.engine

    def run() -> Figures:
        started = time.perf_counter()
        for number, (prompt_ids, parameters) in enumerate(zip(prompts, sampling, strict=True)):
            engine.add_request(f"offline-{number}", {"prompt_token_ids": prompt_ids}, parameters)
        outputs = []
        while engine.has_unfinished_requests():
            outputs += [output for output in engine.step() if output.finished]
        wall_s = time.perf_counter() - started
        return Figures(
            sum(len(output.outputs[0].token_ids) for output in outputs),
            sum(map(len, prompts)),
            sum(output.num_cached_tokens or 0 for output in outputs),
            wall_s,
        )

    return asyncio.run(model.dispatcher.call_when_idle(run))


def empty_prefix_cache(model: VLLMChatModel) -> None:
    """Let the next run start from nothing."""
    assert asyncio.run(model.dispatcher.call_when_idle(model.engine.engine.reset_prefix_cache))


def main() -> None:
    """Measure, print the figures, JSON last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=32)
    parser.add_argument("--futures", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64, help="the most tokens of one reply")
    parser.add_argument("--batch", type=int, default=64, help="samples that are decoded at once")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    model = VLLMChatModel(str(fetch_embedded_model()), VLLMOptions(max_batch_size=arguments.batch))
    warm_up = argparse.Namespace(**(vars(arguments) | {"tasks": 4, "futures": 1, "max_tokens": 8}))
    asyncio.run(forward_sampling(model, warm_up))
    ours, offline = [], []
    for _ in range(arguments.repeats):
        empty_prefix_cache(model)
        row, requests = asyncio.run(forward_sampling(model, arguments))
        print(f"forward sampling: {row}", flush=True)
        ours.append(row)
        empty_prefix_cache(model)
        offline.append(offline_batch(model, requests))
        print(f"   offline batch: {offline[-1]}", flush=True)
    asyncio.run(model.aclose())
    figures = {
        "engine_ratio": statistics.median(row.tokens_per_s for row in ours)
        / statistics.median(row.tokens_per_s for row in offline),
        "prefix_hit_share": statistics.median(row.cached / row.prompt for row in ours),
    }
    print(json.dumps({key: round(value, 3) for key, value in figures.items()}))


if __name__ == "__main__":
    main()
