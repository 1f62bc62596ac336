"""A chat model that runs in this process on Transformers: the backend of the embedded default, and of small experiments.

What decodes is in `transformers_decoding`, what gathers requests in `dispatcher`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulators.chat_models.chat_template import ChatTemplate
from simulators.chat_models.dispatcher import Dispatcher
from simulators.chat_models.template_model import TemplateChatModel
from simulators.errors import ConfigurationError, first_lines

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class TransformersChatModel(TemplateChatModel):
    """A template over a `TransformersEngine`.

    `model` is used as it stands and stays the caller's: who trains it meanwhile must change `weights_version` after every update.
    `max_batch_size` bounds the samples that are decoded together; it is halved whenever memory runs out.
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
        from simulators.chat_models.transformers_decoding import TransformersEngine

        if not tokenizer.chat_template:
            raise ConfigurationError(f"the tokenizer of {name} has no chat template; use a chat model or add one to its folder")
        self.model = model
        self._weights_version = weights_version
        engine = TransformersEngine(model, tokenizer, end_ids(model, tokenizer))
        sampler = Dispatcher(engine, name, context_tokens(model), max_batch_size)
        super().__init__(sampler, ChatTemplate(tokenizer, name), name, lambda: self._weights_version)

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
            raise ConfigurationError(f"cannot load a causal language model from {model}: {first_lines(error, 2)}") from None
        version = weights_digest(model)
        name = model
        if adapter is not None:
            from peft import PeftModel

            if _looks_like_path(adapter) and not Path(adapter).is_dir():
                raise ConfigurationError(f"adapter folder {adapter} does not exist; give a folder or a Hub id")
            try:
                loaded = PeftModel.from_pretrained(loaded, adapter).merge_and_unload()
            except Exception as error:
                raise ConfigurationError(f"cannot load a LoRA adapter from {adapter}: {first_lines(error, 2)}") from None
            version = f"{version}+{weights_digest(adapter)}"
        loaded.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()
        return cls(loaded, tokenizer, name=name, weights_version=version, max_batch_size=max_batch_size)

    @property
    def weights_version(self) -> str:
        return self._weights_version

    @weights_version.setter
    def weights_version(self, version: str) -> None:
        self._weights_version = version


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
            f"cannot load a tokenizer from {model}: {first_lines(error, 2)}; check the name, or save the tokenizer again"
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


def end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end a reply: those of the model's generation config, and the tokenizer's."""
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(token for token in [*ids, tokenizer.eos_token_id] if token is not None)


def context_tokens(model: Any) -> int:
    """Return how many tokens a model takes, prompt and reply together."""
    return int(getattr(model.config, "max_position_embeddings", 1 << 30))


def cpu_has_bfloat16() -> bool:
    """True where the CPU multiplies bfloat16 in hardware; elsewhere float32 is faster."""
    import torch

    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def _looks_like_path(model: str) -> bool:
    return model.startswith((".", "/", "~")) or model.count("/") > 1
