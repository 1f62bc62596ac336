"""PPO over conversations, with a critic of its own.

collab train ppo environment=errands
accelerate launch --config_file conf/hardware/ddp.yaml recipes/ppo.py environment=math_chat model=Qwen/Qwen3-4B
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipes.launch import launch
from recipes.online import train


def run(config: Any) -> Path:
    """Train and return the adapter's folder."""
    from collab.training.ppo import train_ppo

    return train(config, train_ppo)


def main() -> None:
    """Start the recipe from the command line."""
    launch("ppo", run)


if __name__ == "__main__":
    main()
