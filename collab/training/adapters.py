"""Trained adapters on disk: saved for use, merged into their base model, exported as a plain model."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collab.training.chat_templates import sampling_chat_template
from simulators.chat_models.transformers_model import load_tokenizer
from simulators.errors import ConfigurationError


def save_trained(trainer: Any, model: str, output_dir: Path) -> Path:
    """Save what was trained with the tokenizer that samples from it, and return the folder.

    The tokenizer has the template that the policy was sampled with, without generation markers: those are for training only.
    Helpers of the training (a frozen reference, a critic) are not part of the policy and are left out.
    """
    trained_adapter = hasattr(trainer.accelerator.unwrap_model(trainer.model), "peft_config")
    folder = output_dir / ("adapter" if trained_adapter else "model")
    trainer.save_model(str(folder))
    if trainer.is_world_process_zero():
        for helper in ("ref", "critic"):
            shutil.rmtree(folder / helper, ignore_errors=True)
        tokenizer = load_tokenizer(model)
        tokenizer.chat_template = sampling_chat_template(tokenizer)
        tokenizer.save_pretrained(str(folder))
    return folder


def merge_adapters(loaded: Any, adapters: Sequence[str]) -> Any:
    """Merge LoRA adapters into a loaded model, one after the other, and return the plain model.

    Raises:
        ConfigurationError: when an adapter is not there or does not fit.
    """
    from peft import PeftModel

    for adapter in adapters:
        try:
            loaded = PeftModel.from_pretrained(loaded, adapter).merge_and_unload()
        except (OSError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigurationError(f"cannot merge the LoRA adapter in {adapter}: {reason}") from None
    return loaded


def export_merged(model: str, adapters: Sequence[str], output_dir: Path, *, dtype: str = "bfloat16") -> Path:
    """Write a plain model folder with the adapters merged into the base, for serving without PEFT; return the folder.

    Several adapters are merged in the order given: each must have been trained on the base with those before it merged
    (`LoraSettings.merge_first`).

    Raises:
        ConfigurationError: when the model or an adapter is not there, or none is named.
    """
    from transformers import AutoModelForCausalLM

    if not adapters:
        raise ConfigurationError("export needs at least one adapter to merge; a model without adapters is exported already")
    try:
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot load a causal language model from {model}: {str(error).splitlines()[0]}") from None
    merge_adapters(loaded, adapters).save_pretrained(str(output_dir))
    tokenizer = load_tokenizer(model)
    tokenizer.chat_template = sampling_chat_template(tokenizer)
    tokenizer.save_pretrained(str(output_dir))
    return output_dir
