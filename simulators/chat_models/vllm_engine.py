"""A vLLM engine in this process that is stepped here, for builds and for training.

vLLM's own offline `generate` takes a batch and returns when its last request is done: with conversations, whose next turns come
as soon as the first replies are there, the engine would run half empty. Its asynchronous engine always puts the model into
another process, which costs throughput on a CPU. So the dispatcher steps the engine itself, in one thread.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulators.chat_models.dispatcher import Row
from simulators.chat_models.protocol import FinishReason
from simulators.chat_models.server_errors import RequestRefused
from simulators.chat_models.token_sampler import SampledReply
from simulators.errors import ChatModelError, ConfigurationError, first_lines

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


class VLLMEngine:
    """The dispatcher's side of `engine`, a `vllm.v1.engine.llm_engine.LLMEngine`; `name` is the model's, for errors.

    `stop_ids` end a reply besides those of the model's generation config. An engine that fails in a step is of no use again.
    """

    joins = True
    working = staticmethod(contextlib.nullcontext)

    def __init__(
        self, engine: Any, name: str, stop_ids: frozenset[int] = frozenset(), *, logprobs: bool = True, send_seed: bool = False
    ) -> None:
        self.engine = engine
        self.context_tokens = int(engine.model_config.max_model_len)
        self._name = name
        self._stop_ids = sorted(stop_ids)
        self._logprobs = 0 if logprobs else None
        self._send_seed = send_seed
        self._numbers = itertools.count()
        self._running: dict[str, Row] = {}
        self._finished: list[Row] = []
        self._retired: list[Any] = []

    def admit(self, rows: Sequence[Row]) -> None:
        """Hand rows to vLLM, without the schema where it refuses that; a row that it refuses altogether is finished."""
        for row in rows:
            for schema in (True, False) if row.request.json_schema is not None else (False,):
                number = str(next(self._numbers))
                prompt = {"prompt_token_ids": row.prompt}
                row.error = None
                try:
                    self.engine.add_request(number, prompt, self.sampling(row, schema), lora_request=row.request.adapter)
                except ConfigurationError as error:
                    row.error = error
                except Exception as error:  # the engine checks a request before it takes it in
                    row.error = RequestRefused(f"vLLM refuses a request to {self._name}: {first_lines(error, 2)}")
                else:
                    self._running[number] = row
                    break
            if row.error is not None:
                self._finished.append(row)

    def sampling(self, row: Row, with_schema: bool = False) -> Any:
        """Return vLLM's sampling parameters for a row.

        Raises:
            ConfigurationError: vLLM has no such settings.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        settings = row.request.sampling
        try:
            return SamplingParams(
                max_tokens=settings.max_tokens,
                temperature=settings.temperature,
                top_p=settings.top_p,
                top_k=settings.top_k,
                seed=row.seed % _SEED_RANGE if self._send_seed else None,
                stop=list(settings.stop) or None,
                stop_token_ids=self._stop_ids,
                include_stop_str_in_output=settings.include_stop,
                logprobs=self._logprobs,
                structured_outputs=StructuredOutputsParams(json=dict(row.request.json_schema or {})) if with_schema else None,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
        except Exception as error:  # vLLM's own kind, which has changed its base; a temperature above 2, for one
            raise ConfigurationError(f"vLLM refuses the sampling settings: {first_lines(error, 2)}") from None

    def step(self) -> list[Row]:
        """Take one step; return the rows that are finished."""
        try:
            outputs = self.engine.step() if self._running else ()
        except Exception as error:
            raise ConfigurationError(
                f"the vLLM engine of {self._name} failed ({first_lines(error, 2)}); start the run again to go on"
            ) from None
        for output in outputs:
            if output.finished and (row := self._running.pop(output.request_id, None)) is not None:
                self._read(row, output)
        finished, self._finished = self._finished, []
        if finished and self._retired:
            self._remove_retired()
        return finished

    def _read(self, row: Row, output: Any) -> None:
        (sample,) = output.outputs
        self._finished.append(row)
        if sample.finish_reason not in ("stop", "length"):
            row.error = ChatModelError(f"vLLM gave up a request to {self._name} ({sample.finish_reason})")
            return
        finish: FinishReason = "length" if sample.finish_reason == "length" else "stop"
        sampled, prefix = sample.token_ids, row.request.prefix_ids
        logprobs = None
        if sample.logprobs is not None:
            of_sampled = (float(at[token].logprob) for token, at in zip(sampled, sample.logprobs, strict=True))
            logprobs = (*(0.0 for _ in prefix), *of_sampled)
        given = self.engine.get_tokenizer().decode(prefix, skip_special_tokens=True) if prefix else ""
        row.reply = SampledReply((*prefix, *sampled), logprobs, given + sample.text, finish, output.num_cached_tokens or 0)

    def abort(self, rows: Sequence[Row]) -> None:
        """Stop rows that nobody waits for any more."""
        if gone := [number for number, row in self._running.items() if row in rows]:
            self.engine.abort_request(gone)
        for number in gone:
            del self._running[number]

    def load(self, adapter: Any) -> None:
        """Load a LoRA adapter (vLLM's LoRARequest).

        Raises:
            ConfigurationError: when vLLM cannot.
        """
        try:
            self.engine.add_lora(adapter)
        except Exception as error:
            raise ConfigurationError(
                f"vLLM cannot load the LoRA adapter in {adapter.lora_path}: {first_lines(error, 2)}"
            ) from None

    def retire(self, adapter: Any) -> None:
        """Remove an adapter once no row uses it any more; make room in the prefix cache at once where nothing runs."""
        if adapter is not None:
            self._retired.append(adapter)
        self._remove_retired()
        self.engine.reset_prefix_cache()

    def _remove_retired(self) -> None:
        used = {row.request.adapter for row in self._running.values()}
        for adapter in set(self._retired) - used:
            self.engine.remove_lora(adapter.lora_int_id)
            self._retired.remove(adapter)

    def reload(self, folder: str) -> None:
        """Replace the model's weights, and drop all keys and values of the old ones.

        Raises:
            ConfigurationError: vLLM did not take them; the engine is of no use then.
        """
        try:
            self.engine.collective_rpc("reload_weights", kwargs={"weights_path": folder})
            if not self.engine.reset_prefix_cache():
                raise RuntimeError("the prefix cache could not be dropped")
        except Exception as error:
            raise ConfigurationError(f"vLLM did not take the weights in {folder}: {first_lines(error, 2)}") from None

    def close(self) -> None:
        """Release the engine's memory."""
        self.engine.engine_core.shutdown()
        self.engine = None


def build_engine(model: str, options: VLLMOptions) -> Any:
    """Start an LLMEngine. On a CPU it runs in this process, uncompiled: 3 seconds instead of a minute or more.

    Raises:
        ConfigurationError: vLLM is not installed, or cannot load the model.
    """
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # nothing is reported home
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")  # the terminal belongs to the run's own progress
    try:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.llm_engine import LLMEngine
    except ImportError as error:
        raise ConfigurationError(
            f"vLLM is not installed ({error}); install the extra: pip install 'collab[vllm]' (on a CPU: make venv-vllm)"
        ) from None
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
    try:
        with _in_this_process() if on_cpu else contextlib.nullcontext():
            return LLMEngine.from_engine_args(EngineArgs(**(arguments | dict(options.engine))))
    except Exception as error:  # what a damaged folder or too little memory raises depends on where it is noticed
        raise ConfigurationError(f"vLLM cannot load {model}: {first_lines(error, 2)}") from None


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
