"""Models made ready for training: loaded in a dtype the hardware trains well in, with a new LoRA adapter or an old one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simulators.chat_models.transformers_model import cpu_has_bfloat16
from simulators.errors import ConfigurationError

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedModel


@dataclass(slots=True)
class LoraSettings:
    """A LoRA adapter; the defaults are CollabLLM's Table 6 (rank 32, alpha 16, dropout 0.1, no bias), on all linear layers.

    `enabled` False trains all weights.
    """

    enabled: bool = True
    rank: int = 32
    alpha: int = 16
    dropout: float = 0.1
    target_modules: str = "all-linear"

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


def load_for_training(model: str, adapter: str | None = None) -> PreTrainedModel:
    """Load a causal language model for training, with a trainable LoRA adapter on it where one is named.

    bfloat16 where the hardware multiplies it, float32 elsewhere; a LoRA adapter's own weights are float32 either way.

    Raises:
        ConfigurationError: when the model or the adapter is not there.
    """
    import torch
    from transformers import AutoModelForCausalLM

    on_gpu = torch.cuda.is_available()
    dtype = torch.bfloat16 if (torch.cuda.is_bf16_supported() if on_gpu else cpu_has_bfloat16()) else torch.float32
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot load a causal language model from {model}: {str(error).splitlines()[0]}") from None
    if adapter is not None:
        from peft import PeftModel

        try:
            loaded = PeftModel.from_pretrained(loaded, adapter, is_trainable=True)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"cannot load a LoRA adapter from {adapter}: {str(error).splitlines()[0]}") from None
    return loaded
