"""GRPO over conversations with a simulated user.

collab train grpo environment=errands
accelerate launch --config_file conf/hardware/ddp.yaml recipes/grpo.py environment=math_chat model=Qwen/Qwen3-4B
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipes.launch import launch
from recipes.online import train


def run(config: Any) -> Path:
    """Train and return the adapter's folder."""
    from collab.training.grpo import train_grpo

    return train(config, train_grpo)


def main() -> None:
    """Start the recipe from the command line."""
    launch("grpo", run)


if __name__ == "__main__":
    main()
