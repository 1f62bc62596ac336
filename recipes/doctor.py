"""Say what this machine can do: `collab doctor`. Exit status 1 where code written by a model cannot be run."""

from __future__ import annotations

import sys
from importlib import util

from collab.embedded_model import cache_folder, is_intact
from collab.sandbox.doctor import examine_sandboxes
from recipes.running.run_folder import versions

_EXTRAS = ("vllm", "wandb", "bitsandbytes", "deepspeed")


def lines() -> list[str]:
    """Return the findings, one a line."""
    found = [f"{name:<14} {version}" for name, version in versions().items()]
    missing = [name for name in _EXTRAS if util.find_spec(name) is None]
    found.append(f"{'not installed':<14} {', '.join(missing) or 'nothing'} (extras)")
    found.append(f"{'accelerators':<14} {_accelerators()}")
    model = cache_folder() / "smollm2-135m-instruct"
    state = "intact" if is_intact(model) else "not fetched yet (`collab model fetch`)"
    found.append(f"{'embedded model':<14} {state}, in {model}")
    report = examine_sandboxes()
    for isolation in report.isolations:
        state = "available" if isolation.available else "not available"
        found.append(f"{'sandbox':<14} {isolation.name} {state}: {isolation.detail}")
    found.append(f"{'sandbox':<14} in use: {report.chosen or 'none, so model-written code is refused'}")
    if report.advice:
        found.append(f"{'':<14} {report.advice}")
    return found


def _accelerators() -> str:
    import torch

    if not torch.cuda.is_available():
        return f"none; {torch.get_num_threads()} CPU threads"
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"{', '.join(names)} (bfloat16: {'yes' if torch.cuda.is_bf16_supported() else 'no'})"


def main() -> None:
    """Start the recipe from the command line."""
    print("\n".join(lines()))
    sys.exit(0 if examine_sandboxes().chosen else 1)


if __name__ == "__main__":
    main()
