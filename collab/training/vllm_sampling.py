"""vLLM as the rollout's sampler, as servers or in the training process, with its weights kept in step with the policy's.

Requests carry token ids and get token ids back, so nothing is ever tokenised again. They carry no seeds: a seeded request can
stop vLLM's CPU engine, and a seed would not make a batching engine repeatable anyway; what makes a run repeatable is the journal
of finished episodes.
"""

from __future__ import annotations

from concurrent.futures import Executor
from types import SimpleNamespace
from typing import Any

from collab.training.online_settings import RolloutSettings, VLLMSettings
from collab.training.turn_tokens import TurnTokens
from collab.training.weight_sync import RunnerReload, SharedMemoryReload, TRLTransfer, WeightSync
from simulators.chat_models.dispatcher import Dispatcher
from simulators.chat_models.server_options import ServerOptions
from simulators.chat_models.server_sampler import ServerTokenSampler
from simulators.chat_models.token_sampler import TokenSampler
from simulators.chat_models.vllm_engine import VLLMEngine, VLLMOptions, build_engine
from simulators.errors import ConfigurationError


def make_vllm_sampler(
    trainer: Any, settings: RolloutSettings, tokens: TurnTokens, executor: Executor
) -> tuple[TokenSampler, WeightSync]:
    """Start (or connect to) the vLLM engine that the settings name and return its sampler and weight synchronisation.

    An engine in this process is built here and called by `executor`, which must be the same thread.

    `trainer` is TRL's; it is told that vLLM samples, so that its loss corrects for the difference between engine and policy.

    Raises:
        ConfigurationError: when vLLM is not installed or no server answers.
    """
    from trl.import_utils import is_vllm_available

    if not is_vllm_available():
        raise ConfigurationError(f"rollout.engine {settings.engine} needs vLLM; install the extra: pip install 'collab[vllm]'")
    on_cpu = trainer.accelerator.device.type == "cpu"
    generation = _generation(trainer, settings, on_cpu)
    trainer.use_vllm = True
    trainer.vllm_generation = generation
    trainer.vllm_mode = generation.mode
    vllm = settings.vllm
    if settings.engine == "vllm_server":
        options = ServerOptions(send_seed=False, attempt_timeout_s=vllm.server_timeout_s, deadline_s=vllm.server_timeout_s)
        sync: WeightSync = SharedMemoryReload(generation, vllm.server_urls) if on_cpu else TRLTransfer(generation)
        return ServerTokenSampler(vllm.server_urls, tokens.tokenizer, tokens.eos_ids, options), sync
    engine = VLLMEngine(generation.llm.llm_engine, "the policy", tokens.eos_ids)
    sampler = Dispatcher(engine, "the policy", engine.context_tokens, executor=executor, closes=False)
    return sampler, RunnerReload(generation) if on_cpu else TRLTransfer(generation)


def _generation(trainer: Any, settings: RolloutSettings, on_cpu: bool) -> Any:
    """Make TRL's vLLM generation: it finds the weights' vLLM names, gathers shards, and merges LoRA while they are read."""
    from trl.generation.vllm_generation import VLLMGeneration

    vllm: VLLMSettings = settings.vllm

    class CPUGeneration(VLLMGeneration):  # type: ignore[misc]
        """TRL's generation without what needs CUDA: its NCCL group, and an engine without `enforce_eager`."""

        def _init_vllm(self) -> None:
            if self.mode == "colocate":
                options = VLLMOptions(
                    context_tokens=vllm.context_tokens, max_batch_size=settings.max_batch_size, engine=vllm.cpu_options
                )
                engine = build_engine(self.model.name_or_path, options)
                self.llm = SimpleNamespace(llm_engine=engine, reset_prefix_cache=engine.reset_prefix_cache)

    if settings.engine == "vllm_server" and not on_cpu and len(vllm.server_urls) > 1:
        raise ConfigurationError(
            "on GPUs TRL sends the weights to one vLLM server; name one in server_url and raise its --data-parallel-size"
        )
    kind = CPUGeneration if on_cpu else VLLMGeneration
    try:
        return kind(
            model=trainer.model,
            accelerator=trainer.accelerator,
            processing_class=trainer.processing_class,
            mode="server" if settings.engine == "vllm_server" else "colocate",
            server_base_url=vllm.server_urls[0],
            server_timeout=vllm.server_timeout_s,
            group_port=vllm.group_port,
            gpu_memory_utilization=vllm.memory_share,
            max_model_length=vllm.context_tokens,
            max_num_seqs=settings.max_batch_size,
            temperature=settings.temperature,
            top_p=settings.top_p,
            max_completion_length=settings.max_tokens,
        )
    except ConnectionError as error:
        raise ConfigurationError(f"{error} docs/gpu.md has the command.") from None
