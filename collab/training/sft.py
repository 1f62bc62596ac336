"""Supervised fine-tuning on kept conversations: the policy imitates its best-ranked replies (CollabLLM section 3.2).

TRL's SFTTrainer as it is. The loss is on the assistant's tokens and their stop tokens only, never on what the user said.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collab.training.adapters import save_trained
from collab.training.chat_templates import training_chat_template
from collab.training.lora import LoraSettings, load_for_training
from collab.training.metrics_log import MetricsLog
from collab.training.planned_rate import PlannedRate
from collab.training.progress_bar import ProgressBar
from collab.training.settings import OptimizationSettings, latest_checkpoint, trainer_arguments
from simulators.chat_models.transformers_model import load_tokenizer
from simulators.errors import ConfigurationError


def train_sft(
    rows: Sequence[dict[str, Any]],
    model: str,
    output_dir: Path,
    *,
    settings: OptimizationSettings,
    lora: LoraSettings,
    adapter: str | None = None,
    seed: int = 0,
) -> Path:
    """Train on `{"messages": [...]}` rows and return the folder of the trained adapter (or model).

    Goes on from the newest checkpoint in `output_dir` where there is one. `adapter` continues an earlier adapter instead of
    starting a new one.

    Raises:
        ConfigurationError: for no rows, an unknown model, a chat template that cannot be trained with, sizes that do not divide.
    """
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import SFTConfig, SFTTrainer

    if not rows:
        raise ConfigurationError("SFT has no conversations to train on; lower the thresholds or build more data")
    tokenizer = load_tokenizer(model)
    tokenizer.chat_template = training_chat_template(tokenizer)
    arguments = trainer_arguments(
        SFTConfig, settings, output_dir / "checkpoints", seed, assistant_only_loss=True, packing=False, loss_type="nll"
    )
    trainer = SFTTrainer(
        model=load_for_training(model, adapter, lora),
        args=arguments,
        train_dataset=Dataset.from_list([{"messages": row["messages"]} for row in rows]),
        processing_class=tokenizer,
        peft_config=None if adapter else lora.peft_config(),
        callbacks=[MetricsLog(output_dir / "metrics.jsonl", "sft"), ProgressBar("SFT"), PlannedRate()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=latest_checkpoint(output_dir / "checkpoints"))
    return save_trained(trainer, model, output_dir)
