"""Offline DPO on MR-ranked pairs (CollabLLM section 3.2), usually from the SFT adapter on.

TRL's DPOTrainer as it is. Chained from an adapter, the reference is that adapter as it was, frozen, not the base model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collab.training.adapters import save_trained
from collab.training.chat_templates import sampling_chat_template
from collab.training.lora import LoraSettings, load_for_training
from collab.training.metrics_log import MetricsLog
from collab.training.planned_rate import PlannedRate
from collab.training.progress_bar import ProgressBar
from collab.training.settings import OptimizationSettings, latest_checkpoint, trainer_arguments
from simulators.chat_models.transformers_model import load_tokenizer
from simulators.errors import ConfigurationError


def train_dpo(
    rows: Sequence[dict[str, Any]],
    model: str,
    output_dir: Path,
    *,
    settings: OptimizationSettings,
    lora: LoraSettings,
    adapter: str | None = None,
    beta: float = 0.1,
    seed: int = 0,
) -> Path:
    """Train on `{"prompt", "chosen", "rejected"}` rows and return the folder of the trained adapter (or model).

    Goes on from the newest checkpoint in `output_dir` where there is one.

    Raises:
        ConfigurationError: for no rows, an unknown model, a chat template that cannot be trained with, sizes that do not divide.
    """
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import DPOConfig, DPOTrainer

    if not rows:
        raise ConfigurationError("DPO has no pairs to train on; lower min_gap or build more data")
    tokenizer = load_tokenizer(model)
    tokenizer.chat_template = sampling_chat_template(tokenizer)  # keeps prefixes, and stop tokens are trained
    arguments = trainer_arguments(DPOConfig, settings, output_dir / "checkpoints", seed, beta=beta, disable_dropout=True)
    trainer = DPOTrainer(
        model=load_for_training(model, adapter, lora),
        args=arguments,
        train_dataset=Dataset.from_list([{key: row[key] for key in ("prompt", "chosen", "rejected")} for row in rows]),
        processing_class=tokenizer,
        peft_config=None if adapter else lora.peft_config(),
        callbacks=[MetricsLog(output_dir / "metrics.jsonl", "dpo"), ProgressBar("DPO"), PlannedRate()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=latest_checkpoint(output_dir / "checkpoints"))
    return save_trained(trainer, model, output_dir)
