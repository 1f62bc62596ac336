"""How a sampler comes to see the policy's current weights. One interface; which engine samples decides what it takes.

Transformers samples from the very weights that are trained: nothing to do. For vLLM on GPUs TRL's own transfer is used (NCCL to a
server, in place in the process). On CPU neither exists, and the weights go over a file in shared memory (server) or through the
model runner (in process). Every way drops the engine's prefix cache: keys and values of old weights must never be met again.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import shutil
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from simulators.chat_models.server_options import api_urls
from simulators.errors import ChatModelError


class WeightSync(Protocol):
    """Pushes weights to where sampling happens."""

    def push(self) -> None:
        """Make the sampler see the weights as they are now. Gathering may be collective, so every rank calls it.

        Raises:
            ChatModelError: when the engine did not take them.
        """
        ...


class SharedWeights:
    """The sampler holds the trained model itself."""

    def push(self) -> None:
        """Nothing to do."""


class TRLTransfer:
    """TRL's own synchronisation, for vLLM on GPUs; `generation` is TRL's VLLMGeneration."""

    def __init__(self, generation: Any) -> None:
        self._generation = generation

    def push(self) -> None:
        """Send every tensor over NCCL (server) or load it in place (in process), and reset the prefix cache."""
        self._generation.sync_weights()
        self._generation.accelerator.wait_for_everyone()  # rank 0 sends; no rank may sample before the server has it all


class SharedMemoryReload:
    """For vLLM servers on this machine's CPU: the weights are written to memory, and the servers told to load them from there.

    They must run with VLLM_SERVER_DEV_MODE=1 and see the same /dev/shm. The files are removed when the process ends.
    """

    def __init__(self, generation: Any, server_urls: Sequence[str]) -> None:
        self._generation = generation
        self._roots = [root for _, root in api_urls(server_urls)]
        self._folder: Path | None = None

    def push(self) -> None:
        """Write the weights on rank 0 and have the servers load them."""
        import torch
        from safetensors.torch import save_file

        # PEFT's merged weights are views of one storage at times; safetensors wants each tensor by itself.
        weights = {
            name: parameter.detach().to("cpu", torch.bfloat16).clone().contiguous()
            for name, parameter in self._generation._iter_named_params()
        }
        if self._generation.accelerator.is_main_process:
            folder = self._shared_folder()
            partial = folder / "model.partial"
            save_file(weights, partial)
            partial.replace(folder / "model.safetensors")
            for root in self._roots:
                _post(root, "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
                _post(root, "/reset_prefix_cache", {})
        self._generation.accelerator.wait_for_everyone()

    def _shared_folder(self) -> Path:
        if self._folder is None:
            memory = Path("/dev/shm")
            self._folder = Path(tempfile.mkdtemp(prefix="collab-weights-", dir=memory if memory.is_dir() else None))
            atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder


class RunnerReload:
    """For vLLM in process on CPU, whose linear layers are packed at load time: the whole set goes through the model runner."""

    def __init__(self, generation: Any) -> None:
        self._generation = generation

    def push(self) -> None:
        """Reload all weights in place and reset the prefix cache."""
        runner = self._generation.llm.llm_engine.model_executor.driver_worker.model_runner
        dtype = runner.model_config.dtype
        weights = ((name, parameter.detach().to(dtype)) for name, parameter in self._generation._iter_named_params())
        runner.reload_weights(weights_iterator=weights)
        self._generation.llm.reset_prefix_cache()


def _post(root: str, path: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(root + path, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST")
    try:
        with contextlib.closing(urllib.request.urlopen(request, timeout=600)):
            pass
    except OSError as error:
        raise ChatModelError(
            f"the vLLM server at {root} did not take the new weights ({error}); start it with VLLM_SERVER_DEV_MODE=1"
        ) from None
