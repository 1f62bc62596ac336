"""LoRA SFT on a build's kept conversations.

collab train sft data=outputs/build/errands
accelerate launch recipes/sft.py data=outputs/build/errands model=Qwen/Qwen3-4B
"""

from __future__ import annotations

from pathlib import Path

from collab.data.export import training_rows
from collab.embedded_model import resolve_model
from recipes.configuration.launch import launch
from recipes.configuration.schema import Sft
from recipes.running.run_folder import RunFolder


def run(config: Sft) -> Path:
    """Train and return the adapter's folder."""
    from collab.training.sft import train_sft

    folder = RunFolder(config).claim()
    rows = training_rows(Path(config.data), "sft")
    trained = train_sft(
        rows,
        resolve_model(config.model),
        folder.path,
        settings=config.optimization,
        lora=config.lora,
        adapter=config.adapter,
        seed=config.seed,
    )
    print(f"SFT on {len(rows)} conversations -> {trained}")
    return trained


def main() -> None:
    """Start the recipe from the command line."""
    launch(Sft, run)


if __name__ == "__main__":
    main()
