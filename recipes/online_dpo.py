"""Online DPO: the best and the worst reply by MR at every turn.

collab train online-dpo environment=errands
accelerate launch --config_file conf/hardware/ddp.yaml recipes/online_dpo.py environment=math_chat model=Qwen/Qwen3-4B
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipes.launch import launch
from recipes.online import train


def run(config: Any) -> Path:
    """Train and return the adapter's folder."""
    from collab.training.online_dpo import train_online_dpo

    return train(config, train_online_dpo)


def main() -> None:
    """Start the recipe from the command line."""
    launch("online_dpo", run)


if __name__ == "__main__":
    main()
