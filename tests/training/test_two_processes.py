"""Two processes compute what one does: losses, gradients, whitening, the critic's step."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]


def result(method: str, model: str, folder: Path, processes: int) -> dict[str, Any]:
    arguments = [method, model, str(folder), str(8 // processes)]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    command = [sys.executable, *(launch if processes > 1 else []), "-m", "tests.training.two_processes", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize("method", ["grpo", "grpo_mr_difference", "grpo_mr_branch", "online_dpo", "ppo", "ppo_model"])
def test_two_processes_do_what_one_does(method: str, tiny: str, tmp_path: Path) -> None:
    one = result(method, tiny, tmp_path / "one", 1)
    two = result(method, tiny, tmp_path / "two", 2)
    assert (one["processes"], two["processes"]) == (1, 2)
    assert two["gradient"] == pytest.approx(one["gradient"], abs=2e-5)
    assert any(abs(value) > 1e-3 for value in one["gradient"])
    ours = {name: value for name, value in one["figures"].items() if name != "rollout/reused"}
    assert {name: two["figures"][name] for name in ours} == pytest.approx(ours, abs=1e-4)
    if method.startswith("ppo"):
        assert two["critic"] == pytest.approx(one["critic"], abs=2e-5)
