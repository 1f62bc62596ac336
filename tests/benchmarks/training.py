"""What does our rollout cost? A GRPO step on single-turn prompts, ours against plain TRL, step by step in turns.

    python -m tests.benchmarks.training [--steps 30]

Both train the same small model with the same adapter, batch, loss and reply length; plain TRL samples with `generate`, ours plays
conversations of one turn with a scripted user and a rule for a reward. The two trainers take turns step by step, in one thread
each, so that whatever else the machine does befalls both. The first steps are left out. The last line is one JSON object;
`grpo_step_ratio` is the median over the pairs of steps of our seconds over TRL's.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import statistics
import tempfile
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from collab.training.grpo import build_trainer
from collab.training.lora import LoraSettings
from collab.training.online_run import OnlineRun
from collab.training.online_settings import GRPOSettings, RolloutSettings
from collab.training.settings import OptimizationSettings, trainer_arguments
from tests.training import toy
from tests.training.tiny_models import tiny_model, tiny_tokenizer

REPLY_TOKENS = 48
GROUP = 8
BATCH = 16
WARM_UP = 2
"""Steps that are not counted."""

LORA = LoraSettings(rank=8)


def optimization(steps: int) -> OptimizationSettings:
    return OptimizationSettings(
        batch_size=BATCH, per_device_batch_size=BATCH, max_steps=steps, max_length=512, save_steps=100_000
    )


class TakingTurns(TrainerCallback):
    """Lets a trainer take a step when it is its turn, times it (rollout, scoring, loss, optimizer), and passes the turn on."""

    def __init__(self, mine: threading.Semaphore, others: threading.Semaphore) -> None:
        self.seconds: list[float] = []
        self._mine = mine
        self._others = others

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._mine.acquire()
        self._started = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.perf_counter() - self._started)
        self._others.release()

    def withdraw(self) -> None:
        """Let the other trainer go on alone, when this one has ended or failed."""
        self._others.release(10_000)


def ours(model: str, folder: Path, steps: int) -> Any:
    """Build our trainer on conversations of one turn."""
    environment = toy.environment(max_turns=1, component=toy.ReplyBytes())
    run = OnlineRun("grpo", environment, toy.tasks(16), (), model, None, folder, LORA, optimization(steps), seed=0)
    rollout = RolloutSettings(max_tokens=REPLY_TOKENS, logged_conversations=0)
    return build_trainer(run, GRPOSettings(rollout=rollout, group_size=GROUP, variant="grpo"))


def plain(model: str, folder: Path, steps: int) -> Any:
    """Build TRL's trainer on the same prompts with the same reward."""
    from collab.training.lora import load_for_training
    from simulators.chat_models.transformers_model import load_tokenizer

    def reward(completions: list[Any], **_: Any) -> list[float]:
        texts = [completion[0]["content"].encode() for completion in completions]
        return [sum(byte < 100 for byte in text) / max(1, len(text)) for text in texts]

    arguments = trainer_arguments(
        GRPOConfig,
        optimization(steps),
        folder,
        0,
        num_generations=GROUP,
        max_completion_length=REPLY_TOKENS,
        loss_type="grpo",
        beta=0.0,
        disable_dropout=True,
    )
    return GRPOTrainer(
        model=load_for_training(model),
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "Pick."}]}] * 16),
        processing_class=load_tokenizer(model),
        peft_config=LORA.peft_config(),
    )


def in_turns(first: Any, second: Any) -> list[tuple[float, float]]:
    """Train both, a step each in turn, and return the seconds of each pair of steps."""
    turns = threading.Semaphore(1), threading.Semaphore(0)
    timed = TakingTurns(*turns), TakingTurns(*reversed(turns))

    def train(trainer: Any, times: TakingTurns) -> None:
        torch.set_num_threads(1)
        trainer.add_callback(times)
        try:
            trainer.train()
        finally:
            times.withdraw()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(train, (first, second), timed))
    return list(zip(timed[0].seconds, timed[1].seconds, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    with (
        tempfile.TemporaryDirectory() as scratch,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        model = str(Path(scratch) / "model")
        tokenizer = tiny_tokenizer()
        tiny_model(tokenizer, hidden=256, layers=6, spread=0.02).save_pretrained(model)
        tokenizer.save_pretrained(model)
        steps = options.steps + WARM_UP
        trainer = ours(model, Path(scratch) / "ours", steps)
        pairs = in_turns(trainer, plain(model, Path(scratch) / "plain", steps))[WARM_UP:]
        trainer.close()
    mine, theirs = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    ratios = sorted(our / their for our, their in pairs)
    print(f"median step: ours {mine:.3f} s, plain TRL {theirs:.3f} s")
    print(f"ratio: quartiles {ratios[len(ratios) // 4]:.3f} and {ratios[3 * len(ratios) // 4]:.3f} over {len(ratios)} pairs")
    print(json.dumps({"grpo_step_ratio": round(statistics.median(ratios), 3), "steps_each": len(pairs)}))


if __name__ == "__main__":
    main()
