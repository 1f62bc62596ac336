"""A chat model that runs in this process on vLLM: what a GPU machine without servers uses, and the fastest on a CPU.

    VLLMChatModel("Qwen/Qwen3-4B")
    VLLMChatModel("Qwen/Qwen3-4B", VLLMOptions(adapters=True)), then: await model.load_adapter("policy", "outputs/step-10")

Requests that arrive together reach the engine together, and later ones join while it runs (`vllm_engine`). Adapters and weights
can change between requests; a request finishes with those it began with, and never meets keys and values of others in the
prefix cache: every adapter that is loaded gets an id and a name of its own, which the cache's keys hold, and a change of weights
waits for an empty engine and drops the cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from simulators.chat_models.chat_prompt import chat_prompt_ids
from simulators.chat_models.lora_adapters import adapter_version
from simulators.chat_models.protocol import ChatRequest, Completion, FinishReason
from simulators.chat_models.server_errors import RequestRefused
from simulators.chat_models.transformers_model import load_tokenizer, weights_digest
from simulators.chat_models.vllm_engine import EngineThread, Submission, first_lines
from simulators.conversation import Usage
from simulators.errors import ChatModelError, ConfigurationError, ContextOverflow

_SEED_RANGE = 2**31  # as over a server
_CPU_CACHE_BYTES = 2 << 30
_CPU_BLOCK_TOKENS = 32
"""vLLM's own 128 on CPUs shares prefixes in steps of 128 tokens, longer than many a turn; its kernels want multiples of 32."""


@dataclass(frozen=True, slots=True)
class VLLMOptions:
    """How an engine in this process is set up.

    `dtype` "auto" is the model's own, bfloat16 on a CPU. `context_tokens` None is the model's own limit.
    `max_batch_size` bounds the samples that are decoded at once. `adapters` makes room for LoRA adapters, of rank
    `max_adapter_rank` at most, at some cost in speed. `logprobs` are those of the sampled tokens. `send_seed` gives every
    sample its seed; it is off, as a seeded request can stop vLLM's engine on a CPU, and as seeds do not make a run repeatable
    whose batches differ.
    `engine` holds any further argument of vLLM's `EngineArgs`.

    Raises:
        ConfigurationError: for a value out of its range.
    """

    dtype: str = "auto"
    context_tokens: int | None = None
    max_batch_size: int = 256
    adapters: bool = False
    max_adapter_rank: int = 64
    logprobs: bool = True
    send_seed: bool = False
    engine: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_batch_size < 1:
            raise ConfigurationError(f"vllm: max_batch_size is {self.max_batch_size}; it must be at least 1")
        if self.context_tokens is not None and self.context_tokens < 2:
            raise ConfigurationError(f"vllm: context_tokens is {self.context_tokens}; it must be at least 2")


@dataclass(frozen=True, slots=True)
class _LoadedAdapter:
    """An adapter in the engine: its weights version, and vLLM's LoRA request."""

    version: str
    request: Any


class VLLMChatModel:
    """See the module. `adapter` is a LoRA folder to start with (it needs no `adapters` in the options).

    Raises:
        ConfigurationError: vLLM is not installed, or the model or the adapter cannot be loaded.
    """

    def __init__(self, model: str, options: VLLMOptions | None = None, *, adapter: str | Path | None = None) -> None:
        options = options or VLLMOptions()
        if adapter is not None:
            options = replace(options, adapters=True)
        self._options = options
        self._name = model
        self.tokenizer = load_tokenizer(model)
        if not self.tokenizer.chat_template:
            raise ConfigurationError(f"the tokenizer of {model} has no chat template; use a chat model or add one to its folder")
        self._weights = weights_digest(model)
        try:
            self._engine = EngineThread(lambda: _build(model, options), model)
        except ImportError as error:
            raise ConfigurationError(
                f"vLLM is not installed ({error}); install the extra: pip install 'collab[vllm]' (on a CPU: make venv-vllm)"
            ) from None
        except Exception as error:  # what a damaged folder or too little memory raises depends on where it is noticed
            raise ConfigurationError(f"vLLM cannot load {model}: {first_lines(error)}") from None
        self._context = int(self._engine.engine.model_config.max_model_len)
        self._waiting: list[Submission] = []
        self._adapter: _LoadedAdapter | None = None
        self._adapter_ids = itertools.count(1)
        self._calls_of_adapter: Counter[int] = Counter()
        self._retired_adapters: set[int] = set()
        if adapter is not None:
            loaded = self._new_adapter("adapter", Path(adapter), adapter_version(Path(adapter)))
            self._load(loaded).result()
            self._adapter = loaded

    @property
    def name(self) -> str:
        return self._name

    @property
    def weights_version(self) -> str:
        return f"{self._weights}+{self._adapter.version}" if self._adapter else self._weights

    def count_tokens(self, text: str) -> int:
        """Return how many tokens the model's tokenizer makes of a text, without special tokens."""
        return len(self.tokenizer(text, add_special_tokens=False).input_ids)

    async def complete(self, request: ChatRequest) -> list[Completion]:
        """Return `request.n` completions; see `ChatModel`. Weights and adapter in use now are used to the end of the call.

        Log-probs are at the given temperature (1 for greedy replies); None where top-k or top-p cut the distribution, as
        vLLM only tells those after the cut.

        Raises:
            ContextOverflow: the conversation leaves no room for a reply.
            ConfigurationError: the chat template fails on the conversation, vLLM has no such sampling settings, or the engine
                has failed for good.
            ChatModelError: the engine refuses the request or gives it up.
        """
        prompt_ids = chat_prompt_ids(self.tokenizer, request.messages, self._name)
        prefix_ids = self.tokenizer(request.reply_prefix, add_special_tokens=False).input_ids if request.reply_prefix else []
        room = self._context - len(prompt_ids) - len(prefix_ids)
        if room < 1:
            raise ContextOverflow(
                f"the conversation has {len(prompt_ids)} tokens and {self._name} takes {self._context}; no room for a reply"
            )
        version, adapter = self.weights_version, self._adapter
        if adapter is not None:
            self._calls_of_adapter[adapter.request.lora_int_id] += 1
        started = time.monotonic()
        try:
            outputs = await self._outputs(request, [*prompt_ids, *prefix_ids], room, adapter.request if adapter else None)
        finally:
            if adapter is not None:
                self._calls_of_adapter[adapter.request.lora_int_id] -= 1
                self._remove_retired()
        latency_s = time.monotonic() - started
        completions = [self._completion(output, request, prefix_ids, version, latency_s) for output in outputs]
        first, *others = completions  # the prompt is counted once
        completions = [first, *(replace(each, usage=Usage(0, each.usage.completion_tokens)) for each in others)]
        if len(completions) < request.n:  # greedy: all samples are the same one, and it is paid once
            completions += [replace(first, usage=Usage())] * (request.n - len(completions))
        return completions

    async def _outputs(self, request: ChatRequest, prompt_ids: list[int], room: int, adapter: Any) -> list[Any]:
        """Return vLLM's output for every sample (one where all are the same), without the schema where vLLM refuses it."""
        with_schema = request.json_schema is not None
        while True:
            loop = asyncio.get_running_loop()
            submissions = [
                Submission(prompt_ids, self._sampling(request, index, room, with_schema), adapter, loop.create_future())
                for index in range(1 if request.sampling.temperature == 0 else request.n)
            ]
            self._submit(submissions)
            try:
                return list(await asyncio.gather(*(submission.answer for submission in submissions)))
            except asyncio.CancelledError:
                self._flush()
                self._engine.abort(submissions)
                raise
            except RequestRefused:
                if not with_schema:
                    raise
                with_schema = False

    def _sampling(self, request: ChatRequest, index: int, room: int, with_schema: bool) -> Any:
        """Return vLLM's sampling parameters of one sample."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        sampling = request.sampling
        schema = StructuredOutputsParams(json=dict(request.json_schema or {})) if with_schema else None
        try:
            return SamplingParams(
                max_tokens=min(sampling.max_tokens, room),
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                seed=(request.seed + index) % _SEED_RANGE if self._options.send_seed else None,
                stop=list(sampling.stop) or None,
                include_stop_str_in_output=sampling.include_stop,
                logprobs=0 if self._options.logprobs else None,
                structured_outputs=schema,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
        except Exception as error:  # vLLM's own kind, which has changed its base; a temperature above 2, for one
            raise ConfigurationError(f"vLLM refuses the sampling settings: {first_lines(error)}") from None

    def _submit(self, submissions: list[Submission]) -> None:
        """Hand submissions over once every coroutine that is ready to ask has asked: one engine step takes them all."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting += submissions

    def _flush(self) -> None:
        if self._waiting:
            self._engine.submit(self._waiting)
            self._waiting = []

    def _completion(self, output: Any, request: ChatRequest, prefix_ids: list[int], version: str, latency_s: float) -> Completion:
        (sample,) = output.outputs
        if sample.finish_reason not in ("stop", "length"):
            raise ChatModelError(f"vLLM gave up a request to {self._name} ({sample.finish_reason})")
        finish: FinishReason = "length" if sample.finish_reason == "length" else "stop"
        sampled = list(sample.token_ids)
        logprobs = None
        if sample.logprobs is not None and request.sampling.top_p == 1 and not request.sampling.top_k:
            of_sampled = (float(at[token].logprob) for token, at in zip(sampled, sample.logprobs, strict=True))
            logprobs = (*(0.0 for _ in prefix_ids), *of_sampled)
        return Completion(
            text=request.reply_prefix + sample.text,
            finish_reason=finish,
            token_ids=(*prefix_ids, *sampled),
            logprobs=logprobs,
            usage=Usage(len(output.prompt_token_ids), len(sampled), output.num_cached_tokens or 0),
            model=self._name,
            weights_version=version,
            latency_s=latency_s,
        )

    async def load_adapter(self, name: str, path: str | Path, version: str | None = None) -> str:
        """Load a LoRA adapter and use it from the next request on; return the new `weights_version`.

        `version` tells versions of one adapter apart; by default it is a digest of the weights. Calls under way finish with the
        adapter they began with, which is removed after the last of them.

        Raises:
            ConfigurationError: there was no room made for adapters, or this one cannot be loaded.
        """
        if not self._options.adapters:
            raise ConfigurationError(f"{self._name}: the engine was started without room for adapters; set adapters to true")
        if version is None:
            version = await asyncio.to_thread(adapter_version, Path(path))
        loaded = self._new_adapter(name, Path(path), version)
        await asyncio.wrap_future(self._load(loaded))
        previous, self._adapter = self._adapter, loaded
        if previous is not None:
            self._retired_adapters.add(previous.request.lora_int_id)
        self._remove_retired()
        # Nothing stale can be hit (see the module); where the engine happens to be idle this makes room at once.
        await asyncio.wrap_future(self._engine.call(lambda engine: engine.reset_prefix_cache()))
        return self.weights_version

    async def reload_weights(self, path: str | Path, version: str | None = None) -> str:
        """Replace the model's weights by those in a folder of the same architecture; return the new `weights_version`.

        Requests made before finish with the old weights, and only then the new ones are loaded; requests made after get those.
        `version` is a digest of the folder by default.

        Raises:
            ConfigurationError: the folder holds no weights, or the engine did not take them; it is of no use then.
        """
        folder = Path(path)
        if not any(folder.glob("*.safetensors")):
            raise ConfigurationError(f"there are no weights to load in {folder}; name a folder with safetensors files")
        if version is None:
            version = await asyncio.to_thread(weights_digest, str(folder))

        def reload(engine: Any) -> None:
            try:
                engine.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
                if not engine.reset_prefix_cache():
                    raise RuntimeError("the prefix cache could not be dropped")
            except Exception as error:
                self._engine.fail(error)
                raise ConfigurationError(f"vLLM did not take the weights in {folder}: {first_lines(error)}") from None

        self._flush()  # what has been asked so far gets the old weights and version
        done = self._engine.call(reload, when_idle=True)
        self._weights = version
        await asyncio.wrap_future(done)
        return self.weights_version

    def _new_adapter(self, name: str, path: Path, version: str) -> _LoadedAdapter:
        from vllm.lora.request import LoRARequest

        number = next(self._adapter_ids)
        return _LoadedAdapter(f"{name}-{version}", LoRARequest(f"{name}-{version}-{number}", number, str(path.absolute())))

    def _load(self, adapter: _LoadedAdapter) -> Any:
        """Return the future of an adapter being loaded."""

        def load(engine: Any) -> None:
            try:
                engine.add_lora(adapter.request)
            except Exception as error:
                raise ConfigurationError(
                    f"vLLM cannot load the LoRA adapter in {adapter.request.lora_path}: {first_lines(error)}"
                ) from None

        return self._engine.call(load)

    def _remove_retired(self) -> None:
        """Remove every adapter that is out of use and that no call under way uses."""
        idle = {number for number in self._retired_adapters if not self._calls_of_adapter[number]}
        self._retired_adapters -= idle
        if idle:
            self._engine.call(lambda engine: [engine.remove_lora(number) for number in idle])

    async def aclose(self) -> None:
        """Stop the engine and release its memory; requests under way are cancelled."""
        await asyncio.to_thread(self._engine.close)


def _build(model: str, options: VLLMOptions) -> Any:
    """Start an engine. On a CPU it runs in this process, uncompiled: 3 seconds instead of a minute or more."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # nothing is reported home
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")  # the terminal belongs to the run's own progress
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.llm_engine import LLMEngine

    on_cpu = current_platform.is_cpu()
    arguments: dict[str, Any] = {
        "model": model,
        "dtype": "bfloat16" if on_cpu and options.dtype == "auto" else options.dtype,
        "max_model_len": options.context_tokens,
        "max_num_seqs": options.max_batch_size,
        # vLLM's own is always 0: a run that is resumed would draw the same samples again, as futures of other numbers.
        "seed": secrets.randbelow(2**31),
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    if options.adapters:  # two at once: the old one's last calls and the new one's first
        arguments |= {"enable_lora": True, "max_loras": 2, "max_cpu_loras": 4, "max_lora_rank": options.max_adapter_rank}
    if on_cpu:
        arguments |= {"enforce_eager": True, "kv_cache_memory_bytes": _CPU_CACHE_BYTES, "block_size": _CPU_BLOCK_TOKENS}
    with _in_this_process() if on_cpu else contextlib.nullcontext():
        return LLMEngine.from_engine_args(EngineArgs(**(arguments | dict(options.engine))))


@contextlib.contextmanager
def _in_this_process() -> Iterator[None]:
    """Have vLLM build its engine in this process. It reads that from the environment only, where children would find it too."""
    name = "VLLM_ENABLE_V1_MULTIPROCESSING"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
