"""A chat model that runs in this process on Transformers: the backend of the embedded default, and of small experiments.

Requests that arrive together are decoded together: while one batch is on the device (in a thread of its own, so the event loop
stays free), the next ones gather.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulators.chat_models.chat_prompt import chat_prompt_ids
from simulators.chat_models.protocol import ChatRequest, Completion
from simulators.conversation import Conversation, Usage
from simulators.errors import ChatModelError, ConfigurationError, ContextOverflow

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from simulators.chat_models.transformers_decoding import Row

    _Waiting = tuple[ChatRequest, list[Row], asyncio.Future[list[Completion]]]


class TransformersChatModel:
    """See the module.

    `model` is used as it stands and stays the caller's: a trainer may hand in the model it trains, and must then change
    `weights_version` after every update. `max_batch_size` bounds the samples that are decoded together.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str,
        weights_version: str = "0",
        max_batch_size: int = 64,
    ) -> None:
        if max_batch_size < 1:
            raise ConfigurationError(f"max_batch_size is {max_batch_size}; it must be at least 1")
        if not tokenizer.chat_template:
            raise ConfigurationError(f"the tokenizer of {name} has no chat template; use a chat model or add one to its folder")
        self.model = model
        self.tokenizer = tokenizer
        self._name = name
        self._weights_version = weights_version
        self._max_batch_size = max_batch_size
        self._waiting: list[_Waiting] = []
        self._dispatcher: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="decode")
        self._eos_ids = _eos_ids(model, tokenizer)
        self._context = int(getattr(model.config, "max_position_embeddings", 1 << 30))

    @classmethod
    def from_pretrained(
        cls, model: str, adapter: str | None = None, *, dtype: str = "auto", device: str | None = None, max_batch_size: int = 64
    ) -> TransformersChatModel:
        """Load a model folder or Hub id, with a LoRA adapter folder on top where one is given.

        Raises:
            ConfigurationError: when either is not there, or is not a causal model with a tokenizer.
        """
        import torch
        from transformers import AutoModelForCausalLM

        tokenizer = load_tokenizer(model)
        if dtype == "auto" and not torch.cuda.is_available():
            dtype = "bfloat16" if cpu_has_bfloat16() else "float32"
        if dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise ConfigurationError(f"unknown dtype {dtype!r}; use auto, float32, bfloat16 or float16")
        try:
            loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
        except Exception as error:  # what a damaged file raises depends on where it is damaged
            raise ConfigurationError(f"cannot load a causal language model from {model}: {_first_line(error)}") from None
        version = weights_digest(model)
        name = model
        if adapter is not None:
            from peft import PeftModel

            if _looks_like_path(adapter) and not Path(adapter).is_dir():
                raise ConfigurationError(f"adapter folder {adapter} does not exist; give a folder or a Hub id")
            try:
                loaded = PeftModel.from_pretrained(loaded, adapter).merge_and_unload()
            except Exception as error:
                raise ConfigurationError(f"cannot load a LoRA adapter from {adapter}: {_first_line(error)}") from None
            version = f"{version}+{weights_digest(adapter)}"
        loaded.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()
        return cls(loaded, tokenizer, name=name, weights_version=version, max_batch_size=max_batch_size)

    @property
    def name(self) -> str:
        return self._name

    @property
    def weights_version(self) -> str:
        return self._weights_version

    @weights_version.setter
    def weights_version(self, version: str) -> None:
        self._weights_version = version

    def count_tokens(self, text: str) -> int:
        """Return how many tokens the model's tokenizer makes of a text, without special tokens."""
        return len(self.tokenizer(text, add_special_tokens=False).input_ids)

    async def complete(self, request: ChatRequest) -> list[Completion]:
        """Return `request.n` completions, decoded together with whatever else is waiting.

        `json_schema` is not enforced: this backend has no grammar engine, and callers parse what they get.

        Raises:
            ContextOverflow: when the conversation leaves no room for a reply.
            ConfigurationError: when the chat template fails on the conversation.
        """
        rows = self._rows(request)
        answer: asyncio.Future[list[Completion]] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, rows, answer))
        if self._dispatcher is None or self._dispatcher.done():
            self._dispatcher = asyncio.create_task(self._dispatch())
        return await answer

    async def aclose(self) -> None:
        """Stop the decoding thread; requests that still wait are cancelled."""
        if self._dispatcher is not None:
            self._dispatcher.cancel()
        for _, _, answer in self._waiting:
            answer.cancel()
        self._waiting.clear()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _rows(self, request: ChatRequest) -> list[Row]:
        from dataclasses import replace

        from simulators.chat_models.transformers_decoding import Row

        prompt_ids = self.prompt_ids(request.messages)
        prefix_ids = self.tokenizer(request.reply_prefix, add_special_tokens=False).input_ids if request.reply_prefix else []
        room = self._context - len(prompt_ids) - len(prefix_ids)
        if room < 1:
            raise ContextOverflow(
                f"the conversation has {len(prompt_ids)} tokens and {self._name} takes {self._context}; no room for a reply"
            )
        sampling = replace(request.sampling, max_tokens=min(request.sampling.max_tokens, room))
        return [Row(prompt_ids, sampling, request.seed + index, list(prefix_ids)) for index in range(request.n)]

    def prompt_ids(self, messages: Conversation) -> list[int]:
        """Return the token ids of a conversation rendered for a reply.

        Raises:
            ConfigurationError: when the chat template fails on it.
        """
        return chat_prompt_ids(self.tokenizer, messages, self._name)

    async def _dispatch(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # let every coroutine that is ready to ask do so first
            self._waiting = [entry for entry in self._waiting if not entry[2].done()]  # without those who gave up
            if not self._waiting:
                return
            batch = self._next_batch()
            try:
                await self._answer(batch)
            except asyncio.CancelledError:
                for _, _, answer in batch:
                    answer.cancel()
                raise

    async def _answer(self, batch: list[_Waiting]) -> None:
        """Decode a batch and answer its requests; where it fails as a whole, each of them by itself."""
        rows = [row for _, rows, _ in batch for row in rows]
        started = time.perf_counter()
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._decode, rows)
        except Exception as error:
            if len(batch) > 1:
                for request, _, answer in batch:
                    await self._answer([(request, self._rows(request), answer)])
            elif not batch[0][2].done():
                batch[0][2].set_exception(ChatModelError(f"{self._name} failed to decode: {_first_line(error)}"))
            return
        latency = time.perf_counter() - started
        for _, done, answer in batch:
            if not answer.done():
                answer.set_result([self._completion(row, latency) for row in done])

    def _next_batch(self) -> list[_Waiting]:
        """Take the oldest request and those nearest to it in length, up to the batch size: little padding, nobody starves."""
        oldest = self._waiting.pop(0)
        length = len(oldest[1][0].prompt_ids)
        by_likeness = sorted(self._waiting, key=lambda entry: abs(len(entry[1][0].prompt_ids) - length))
        batch, size = [oldest], len(oldest[1])
        for entry in by_likeness:
            if size + len(entry[1]) > self._max_batch_size:
                break
            batch.append(entry)
            size += len(entry[1])
        taken = set(map(id, batch))
        self._waiting = [entry for entry in self._waiting if id(entry) not in taken]
        return batch

    def _decode(self, rows: Sequence[Row]) -> None:
        import torch

        from simulators.chat_models.transformers_decoding import decode

        for start in range(0, len(rows), self._max_batch_size):
            part = list(rows[start : start + self._max_batch_size])
            try:
                decode(self.model, self.tokenizer, part, self._eos_ids)
            except torch.OutOfMemoryError:
                if self._max_batch_size == 1:
                    raise
                self._max_batch_size = max(1, self._max_batch_size // 2)
                torch.cuda.empty_cache()
                for row in part:
                    row.__post_init__()
                self._decode(part)

    def _completion(self, row: Row, latency_s: float) -> Completion:
        return Completion(
            text=row.text,
            finish_reason=row.finish_reason,
            token_ids=tuple(row.token_ids),
            logprobs=tuple(row.logprobs),
            usage=Usage(prompt_tokens=len(row.prompt_ids), completion_tokens=len(row.token_ids)),
            model=self._name,
            weights_version=self._weights_version,
            latency_s=latency_s,
        )


_TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model")


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model folder or Hub id, padding on the left.

    Raises:
        ConfigurationError: when there is no such model, or it has no tokenizer.
    """
    from transformers import AutoTokenizer

    if _looks_like_path(model) and not Path(model).is_dir():
        raise ConfigurationError(f"model folder {model} does not exist; give a folder, a Hub id, or `embedded`")
    if Path(model).is_dir() and not any(list(Path(model).glob(pattern)) for pattern in _TOKENIZER_FILES):
        raise ConfigurationError(f"model folder {model} has no tokenizer; save the tokenizer beside the weights")
    try:
        return AutoTokenizer.from_pretrained(model, padding_side="left")
    except Exception as error:  # the tokenizers library raises plain exceptions
        raise ConfigurationError(
            f"cannot load a tokenizer from {model}: {_first_line(error)}; check the name, or save the tokenizer again"
        ) from None


def weights_digest(folder: str) -> str:
    """Return a short digest that changes when the weights in a folder do; of a Hub id, the id itself is all that is known.

    Of every weight file the size and the first and last MiB are read, which is quick for any model and sees a retrained one.
    """
    path = Path(folder)
    if not path.is_dir():
        return "hub"
    digest = hashlib.sha256()
    for file in sorted([*path.glob("*.safetensors"), *path.glob("*config.json")]):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}\n".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(1 << 20))
            stream.seek(max(0, size - (1 << 20)))
            digest.update(stream.read())
    return digest.hexdigest()[:12]


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(token for token in [*ids, tokenizer.eos_token_id] if token is not None)


def cpu_has_bfloat16() -> bool:
    """True where the CPU multiplies bfloat16 in hardware; elsewhere float32 is faster."""
    import torch

    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def _looks_like_path(model: str) -> bool:
    return model.startswith((".", "/", "~")) or model.count("/") > 1


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return " ".join(line.strip() for line in (lines[:2] if lines[0].endswith(":") else lines[:1]))
