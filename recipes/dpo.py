"""Offline DPO on a build's pairs, usually from an SFT adapter on.

collab train dpo data=outputs/build/errands adapter=outputs/sft/adapter
"""

from __future__ import annotations

from pathlib import Path

from collab.data.export import training_rows
from collab.embedded_model import resolve_model
from recipes.configuration.launch import launch
from recipes.configuration.schema import Dpo
from recipes.running.run_folder import RunFolder


def run(config: Dpo) -> Path:
    """Train and return the adapter's folder."""
    from collab.training.dpo import train_dpo

    folder = RunFolder(config).claim()
    rows = training_rows(Path(config.data), "dpo")
    trained = train_dpo(
        rows,
        resolve_model(config.model),
        folder.path,
        settings=config.optimization,
        lora=config.lora,
        adapter=config.adapter,
        beta=config.beta,
        seed=config.seed,
    )
    print(f"DPO on {len(rows)} pairs -> {trained}")
    return trained


def main() -> None:
    """Start the recipe from the command line."""
    launch(Dpo, run)


if __name__ == "__main__":
    main()
