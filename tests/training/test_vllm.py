"""GRPO with a real vLLM on this CPU, in the training process and as a server: exact tokens, current weights."""

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from collab.training import grpo
from collab.training.grpo_trainer import GroupTrainer
from collab.training.online_settings import GRPOSettings, RolloutSettings
from simulators.chat_models.protocol import SamplingSettings
from tests.training.embedded import embedded_folder, embedded_run
from tests.training.runs import logged

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (make venv-vllm)"),
]

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

CONTEXT = 512


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A vLLM server with the embedded model that takes new weights; yields its URL."""
    model = embedded_folder()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", str(port)]
    command += ["--dtype", "bfloat16", "--enforce-eager", "--max-model-len", str(CONTEXT), "--max-num-seqs", "16"]
    command += ["--logprobs-mode", "processed_logprobs"]
    process = subprocess.Popen(command, env=os.environ | {"VLLM_SERVER_DEV_MODE": "1"}, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{url}/health", timeout=2)
                break
            except OSError:
                assert process.poll() is None, "the server ended before it was up"
                time.sleep(0.5)
        else:
            pytest.fail("the server did not come up")
        yield url
    finally:
        process.terminate()
        process.wait(60)


def trainer_of(engine: str, folder: Path, url: str | None, **changes: Any) -> GroupTrainer:
    vllm = {"context_tokens": CONTEXT} | ({"server_url": url} if url else {})
    rollout = RolloutSettings(engine=engine, max_tokens=12, max_turns=2, max_batch_size=16, vllm=vllm)  # type: ignore[arg-type]
    settings = GRPOSettings(rollout=rollout, group_size=2, variant="grpo")
    return grpo.build_trainer(embedded_run("grpo", folder, embedded_folder(), **changes), settings)


def greedy(trainer: GroupTrainer) -> tuple[int, ...]:
    player = trainer.rollout._player
    prompt = player.tokens.encode("The capital of France is")

    async def sample() -> tuple[int, ...]:
        (reply,) = await player.sampler.sample(prompt, SamplingSettings(max_tokens=10, temperature=0.0), 0)
        return reply.token_ids

    return trainer.rollout._loop.run(sample())


def check(trainer: GroupTrainer, folder: Path) -> None:
    """Train two steps, then change the weights and change them back: the engine must follow each time."""
    try:
        trainer.train()
        lines = logged(folder)
        assert len(lines) == 2
        for line in lines:  # the engine is in bfloat16, the trainer in float32
            assert line["sampler/ratio"] == pytest.approx(1, abs=0.2) and line["sampler/kl"] < 0.05
            assert line["sampling/importance_sampling_ratio/mean"] == pytest.approx(1, abs=0.5)
        episodes = trainer.last_episodes
        assert any(len(episode.turns) == 2 for episode in episodes)
        assert all(len(e.logprobs) == len(e.completion_ids) == len(e.policy_mask) for e in episodes)
        trainer._weights.push()
        before = greedy(trainer)
        weight = trainer.model.get_base_model().model.layers[0].mlp.down_proj.base_layer.weight
        kept = weight.detach().clone()
        with torch.no_grad():
            weight.mul_(-3.0)
        trainer._weights.push()
        assert greedy(trainer) != before
        with torch.no_grad():
            weight.copy_(kept)
        trainer._weights.push()
        assert greedy(trainer) == before
    finally:
        trainer.close()


def test_grpo_with_vllm_in_the_training_process(tmp_path: Path) -> None:
    check(trainer_of("vllm_in_process", tmp_path, None, max_steps=2), tmp_path)


def test_grpo_with_a_vllm_server(server: str, tmp_path: Path) -> None:
    check(trainer_of("vllm_server", tmp_path, server, max_steps=2), tmp_path)
