"""Models made ready for training: loaded in a dtype the hardware trains well in, with a new LoRA adapter or an old one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simulators.errors import ConfigurationError

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedModel


@dataclass(slots=True)
class LoraSettings:
    """A LoRA adapter; the defaults are CollabLLM's Table 6 (rank 32, alpha 16, dropout 0.1, no bias), on all linear layers.

    `enabled` False trains all weights. `quantize` loads the base model in 4 bits (QLoRA, 2305.14314: NF4 with double
    quantization; needs bitsandbytes and a GPU). Adapters named in `merge_first` are merged into the base before training, in that
    order, so that adapters can be stacked; `collab.training.adapters.export_merged` takes them in the same order.
    """

    enabled: bool = True
    rank: int = 32
    alpha: int = 16
    dropout: float = 0.1
    target_modules: str = "all-linear"
    quantize: bool = False
    merge_first: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.merge_first = tuple(self.merge_first)
        if self.quantize and not self.enabled:
            raise ConfigurationError("lora.quantize trains an adapter on frozen 4-bit weights; set lora.enabled to true")
        if self.quantize and self.merge_first:
            raise ConfigurationError("lora.merge_first cannot merge into 4-bit weights; export the merged model first")
        if self.merge_first and not self.enabled:
            raise ConfigurationError(
                "lora.merge_first with lora.enabled=false would train against the unmerged model as its reference; export the "
                "merged model (collab.training.adapters.export_merged) and train that"
            )
        if self.rank < 1 or self.alpha < 1:
            raise ConfigurationError(f"lora.rank {self.rank} and lora.alpha {self.alpha} must be at least 1")

    def peft_config(self) -> LoraConfig | None:
        """Return PEFT's configuration, None for full fine-tuning."""
        if not self.enabled:
            return None
        from peft import LoraConfig

        return LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            bias="none",
            target_modules=self.target_modules,
            task_type="CAUSAL_LM",
        )


def load_for_training(model: str, adapter: str | None = None, lora: LoraSettings | None = None) -> PreTrainedModel:
    """Load a causal language model for training, with a trainable LoRA adapter on it where one is named.

    bfloat16 on GPUs that have it, float32 elsewhere; 4-bit and merged adapters as `lora` says.

    Raises:
        ConfigurationError: when the model or an adapter is not there, or 4-bit weights cannot be had here.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from collab.training.adapters import merge_adapters

    lora = lora or LoraSettings()
    dtype = torch.bfloat16 if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else torch.float32
    options = {"quantization_config": _four_bits()} if lora.quantize else {}
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, **options)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot load a causal language model from {model}: {str(error).splitlines()[0]}") from None
    loaded = merge_adapters(loaded, lora.merge_first)
    if lora.quantize:
        from peft import prepare_model_for_kbit_training

        loaded = prepare_model_for_kbit_training(loaded, use_gradient_checkpointing=False)  # the trainer switches that on
    if adapter is not None:
        from peft import PeftModel

        try:
            loaded = PeftModel.from_pretrained(loaded, adapter, is_trainable=True)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"cannot load a LoRA adapter from {adapter}: {str(error).splitlines()[0]}") from None
    return loaded


def _four_bits() -> Any:
    """Return QLoRA's quantization, or say what is missing."""
    import torch
    from transformers import BitsAndBytesConfig
    from transformers.utils import is_bitsandbytes_available

    if not torch.cuda.is_available() or not is_bitsandbytes_available():
        raise ConfigurationError("lora.quantize needs a GPU and bitsandbytes; install bitsandbytes there, or set it to false")
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
