"""A real vLLM on this CPU with the embedded model, in process and as a server; each is started once a file."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from simulators.chat_models.vllm_model import VLLMChatModel, VLLMOptions
from simulators.errors import ConfigurationError

CONTEXT = 1024


@pytest.fixture(scope="session")
def embedded_folder() -> str:
    from collab.embedded_model import fetch_embedded_model

    try:
        return str(fetch_embedded_model())
    except ConfigurationError as error:
        pytest.skip(str(error))


def _adapter(base: str, folder: Path, seed: int) -> Path:
    """Write a random LoRA adapter that is large enough to change every reply."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="session")
def adapters(embedded_folder: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two LoRA adapters of the embedded model, with different weights."""
    folder = tmp_path_factory.mktemp("adapters")
    return _adapter(embedded_folder, folder / "first", 1), _adapter(embedded_folder, folder / "second", 2)


@pytest.fixture(scope="module")
def engine(embedded_folder: str) -> Iterator[VLLMChatModel]:
    """The engine in this process; use `model`, which leaves it as it was."""
    import asyncio

    options = VLLMOptions(
        context_tokens=CONTEXT,
        max_batch_size=32,
        adapters=True,
        max_adapter_rank=8,
        engine={"kv_cache_memory_bytes": 1 << 30},
    )
    model = VLLMChatModel(embedded_folder, options)
    yield model
    asyncio.run(model.aclose())


@pytest.fixture
async def model(engine: VLLMChatModel) -> AsyncIterator[VLLMChatModel]:
    """The engine in this process, without adapter and with an empty prefix cache."""
    engine.dispatcher.adapter, engine._adapter_version = None, ""
    assert await engine.dispatcher.call_when_idle(engine.engine.engine.reset_prefix_cache)
    yield engine
    engine.dispatcher.adapter, engine._adapter_version = None, ""


@dataclass(frozen=True)
class Server:
    url: str
    model: str


@pytest.fixture(scope="module")
def server(embedded_folder: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A vLLM server with adapters and every administrative route that is used."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {
        "model": embedded_folder,
        "served-model-name": "embedded",
        "host": "127.0.0.1",
        "port": port,
        "dtype": "bfloat16",
        "max-model-len": CONTEXT,
        "block-size": 32,
        "max-num-seqs": 32,
        "max-loras": 2,
        "max-lora-rank": 8,
        "logprobs-mode": "processed_logprobs",
    }
    flags = ["--enforce-eager", "--enable-lora", "--enable-prompt-tokens-details"]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_SERVER_DEV_MODE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *flags]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    log = tmp_path_factory.mktemp("server") / "log.txt"
    with log.open("w") as output:
        process = subprocess.Popen(command, env=os.environ | settings, stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait_until_up(f"http://127.0.0.1:{port}/health", process, log)
        yield Server(f"http://127.0.0.1:{port}", "embedded")
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_up(url: str, process: "subprocess.Popen[Any]", log: Path, patience_s: float = 200.0) -> None:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.5)
    pytest.fail(f"the vLLM server did not come up; its log ends with:\n{log.read_text()[-3000:]}")
