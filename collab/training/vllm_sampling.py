"""vLLM as the rollout's sampler, as a server or in the training process, with its weights kept in step with the policy's.

Requests carry token ids and get token ids back, so nothing is ever tokenised again. They carry no seeds: a seeded request can
stop vLLM's CPU engine, and a seed would not make a batching engine repeatable anyway; what makes a run repeatable is the journal
of finished episodes.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

from collab.training.online_settings import RolloutSettings, VLLMSettings
from collab.training.token_sampling import BatchingSampler, Request, SampledReply, SamplingCounts, TokenSampler
from collab.training.turn_tokens import TurnTokens
from collab.training.weight_sync import RunnerReload, SharedMemoryReload, TRLTransfer, WeightSync
from simulators.chat_models.protocol import FinishReason, SamplingSettings
from simulators.errors import ChatModelError, ConfigurationError, ContextOverflow

_ATTEMPTS = 4
"""How often a request is sent before its conversation fails; waits between are 1, 2 and 4 seconds."""

_UNCHANGED = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_p": 0.0}
"""What a server takes from the model's own generation config where a request is silent: the trainer would not know of it."""


class VLLMServerSampler:
    """Samples over `/v1/completions` of a vLLM server; each rank asks for its own conversations."""

    def __init__(self, url: str, tokens: TurnTokens, timeout_s: float = 600.0) -> None:
        self.counts = SamplingCounts()
        self._url = url.rstrip("/")
        self._tokens = tokens
        self._timeout_s = timeout_s
        self._session: Any = None
        self._connecting = asyncio.Lock()
        self._model: str | None = None
        self._context = 0
        self._in_flight = 0
        self._busy_since = 0.0

    async def sample(
        self, prompt_ids: Sequence[int], sampling: SamplingSettings, seed: int, n: int = 1, prefix_ids: Sequence[int] = ()
    ) -> list[SampledReply]:
        """Do what `TokenSampler.sample` says; `seed` is not sent (see the module)."""
        async with self._connecting:  # the first rollout asks for everything at once
            if self._session is None:
                await self._connect()
        room = self._context - len(prompt_ids) - len(prefix_ids)
        if self._context and room < 1:
            raise ContextOverflow(f"the conversation has {len(prompt_ids)} tokens and the server takes {self._context}")
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": [*prompt_ids, *prefix_ids],
            "n": n,
            "max_tokens": min(sampling.max_tokens, room) if self._context else sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            **_UNCHANGED,
            "stop_token_ids": sorted(self._tokens.eos_ids),
            "logprobs": 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        if sampling.stop:
            body |= {"stop": list(sampling.stop), "include_stop_str_in_output": sampling.include_stop}
        if self._in_flight == 0:
            self._busy_since = time.perf_counter()
        self._in_flight += 1
        try:
            answer = await self._post(body)
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self.counts.busy_s += time.perf_counter() - self._busy_since
        replies = [self._reply(choice, list(prefix_ids), sampling) for choice in answer["choices"]]
        self.counts.tokens += sum(len(reply.token_ids) - len(prefix_ids) for reply in replies)
        return replies

    async def _connect(self) -> None:
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        try:
            async with session.get(f"{self._url}/v1/models") as response:
                listed = (await response.json())["data"][0]
        except (TimeoutError, aiohttp.ClientError, LookupError, ValueError) as error:
            await session.close()
            raise ConfigurationError(f"no vLLM server answers at {self._url} ({error}); start one, see docs/gpu.md") from None
        self._session = session
        self._model, self._context = listed["id"], int(listed.get("max_model_len") or 0)

    async def _post(self, body: dict[str, Any]) -> Any:
        import aiohttp

        reason = ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(2.0 ** (attempt - 1))
            try:
                async with self._session.post(f"{self._url}/v1/completions", json=body) as response:
                    if response.status == 200:
                        return await response.json()
                    reason = f"status {response.status}: {(await response.text())[:200]}"
                    if response.status < 500 and response.status != 429:
                        break
            except (TimeoutError, aiohttp.ClientError) as error:
                reason = str(error) or type(error).__name__
        raise ChatModelError(f"the vLLM server at {self._url} gave no completion ({reason})")

    def _reply(self, choice: dict[str, Any], prefix_ids: list[int], sampling: SamplingSettings) -> SampledReply:
        sampled = choice["token_ids"]
        logprobs = [math.nan if value is None else float(value) for value in choice["logprobs"]["token_logprobs"]]
        ids = [*prefix_ids, *sampled]
        text = self._tokens.text(prefix_ids) + choice["text"] if sampling.stop else self._tokens.text(ids)
        finish: FinishReason = "length" if choice["finish_reason"] == "length" else "stop"
        zeros = [0.0] * len(prefix_ids)
        return SampledReply(tuple(ids), tuple(zeros + logprobs), text, finish)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


class VLLMInProcessSampler(BatchingSampler):
    """Samples from a vLLM engine in the training process (`vllm.LLM`), batch by batch; the engine schedules within a batch."""

    def __init__(
        self, llm: Any, tokens: TurnTokens, context_tokens: int, max_batch_size: int, executor: Executor | None = None
    ) -> None:
        super().__init__(context_tokens, max_batch_size, executor)
        self._llm = llm
        self._tokens = tokens

    def _sample_batch(self, batch: Sequence[Request]) -> list[list[SampledReply]]:
        from vllm import SamplingParams

        prompts = [{"prompt_token_ids": [*request.prompt_ids, *request.prefix_ids]} for request in batch]
        parameters = [
            SamplingParams(
                n=request.n,
                max_tokens=request.sampling.max_tokens,
                temperature=request.sampling.temperature,
                top_p=request.sampling.top_p,
                top_k=request.sampling.top_k or -1,
                **_UNCHANGED,
                stop_token_ids=sorted(self._tokens.eos_ids),
                stop=list(request.sampling.stop) or None,
                include_stop_str_in_output=request.sampling.include_stop,
                logprobs=0,
            )
            for request in batch
        ]
        outputs = self._llm.generate(prompts, sampling_params=parameters, use_tqdm=False)
        return [
            [self._reply(sample, request) for sample in output.outputs] for request, output in zip(batch, outputs, strict=True)
        ]

    def _reply(self, sample: Any, request: Request) -> SampledReply:
        sampled = list(sample.token_ids)
        logprobs = [float(at[token].logprob) for token, at in zip(sampled, sample.logprobs, strict=True)]
        ids = [*request.prefix_ids, *sampled]
        text = self._tokens.text(request.prefix_ids) + sample.text if request.sampling.stop else self._tokens.text(ids)
        finish: FinishReason = "length" if sample.finish_reason == "length" else "stop"
        zeros = [0.0] * len(request.prefix_ids)
        return SampledReply(tuple(ids), tuple(zeros + logprobs), text, finish)


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
    url = settings.vllm.server_url
    if settings.engine == "vllm_server":
        sync: WeightSync = SharedMemoryReload(generation, url) if on_cpu else TRLTransfer(generation)
        return VLLMServerSampler(url, tokens, settings.vllm.server_timeout_s), sync
    context = settings.vllm.context_tokens or int(trainer.model.config.max_position_embeddings)
    sampler = VLLMInProcessSampler(generation.llm, tokens, context, settings.max_batch_size, executor)
    return sampler, RunnerReload(generation) if on_cpu else TRLTransfer(generation)


def _generation(trainer: Any, settings: RolloutSettings, on_cpu: bool) -> Any:
    """Make TRL's vLLM generation: it finds the weights' vLLM names, gathers shards, and merges LoRA while they are read."""
    from trl.generation.vllm_generation import VLLMGeneration

    class CPUGeneration(VLLMGeneration):  # type: ignore[misc]
        """TRL's generation without what needs CUDA: its NCCL group, and an engine without `enforce_eager`."""

        def _init_vllm(self) -> None:
            if self.mode == "colocate":
                self.llm = _cpu_engine(self.model.name_or_path, settings)

    vllm: VLLMSettings = settings.vllm
    kind = CPUGeneration if on_cpu else VLLMGeneration
    try:
        return kind(
            model=trainer.model,
            accelerator=trainer.accelerator,
            processing_class=trainer.processing_class,
            mode="server" if settings.engine == "vllm_server" else "colocate",
            server_base_url=vllm.server_url,
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


def _cpu_engine(model: str, settings: RolloutSettings) -> Any:
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the weights are loaded into this process's model runner
    from vllm import LLM

    options = {"dtype": "bfloat16", "enforce_eager": True, "logprobs_mode": "processed_logprobs"} | settings.vllm.cpu_options
    return LLM(
        model=model,
        max_model_len=settings.vllm.context_tokens,
        max_num_seqs=settings.max_batch_size,
        **options,
    )
