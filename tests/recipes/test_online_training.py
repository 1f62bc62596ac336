"""Online training as a user types it: one recipe for all methods, its budget, its failures, and training further."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.recipes.conftest import Collab

PLAYED = ["environment=math_chat", "user=role_play", "user.backend=scripted", "user.model=recipes.dry_run:reply"]
SMALL = [
    "limit=8",
    "method.rollout.max_tokens=4",
    "method.rollout.max_turns=2",
    "method.rollout.num_samples=1",
    "method.rollout.window_turns=1",
    "optimization.batch_size=4",
    "optimization.max_steps=2",
    "optimization.max_length=512",
    "optimization.save_steps=1",
    "optimization.lr_scheduler=constant",
    "lora.rank=2",
    "output_dir=run",
]


def metrics() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]


def steps() -> list[int]:
    return [line["step"] for line in metrics() if "loss" in line]


@pytest.fixture
def command(tiny_model_folder: Path) -> list[str]:
    return [*PLAYED, *SMALL, f"model={tiny_model_folder}"]


@pytest.mark.parametrize("method", ["grpo", "online-dpo", "ppo"])
def test_every_method_keeps_to_the_budget_and_goes_on_with_a_larger_one(collab: Collab, command: list[str], method: str) -> None:
    group = [] if method == "ppo" else ["method.group_size=2"]
    ended = collab("train", method, *command, *group, "budget.max_calls=1")
    assert ended.status == 1
    assert ended.sentence == "collab: the budget is spent (1 of 1 calls); raise it and start the same command again to go on"
    again = collab("train", method, *command, *group, "budget.max_calls=1000")
    assert again.status == 0, again.err
    assert "trained in math_chat on 8 tasks -> run/adapter" in again.out
    last = metrics()[-1]
    assert last["stage"] == method.replace("-", "_") and last["calls"]["user"]["made"] > 0 and sum(last["outcomes"].values())
    first_call = last["calls"]["user"]["reused"]
    assert first_call >= 1
    replay = collab("replay", "run")
    assert replay.status == 0, replay.out + replay.err
    assert ", 0 made" in replay.out and "every tree is as recorded" in replay.out


def test_a_replay_of_training_notices_another_reward(collab: Collab, command: list[str], tmp_path: Path) -> None:
    assert collab("train", "grpo", *command, "method.group_size=2").status == 0
    path = Path("run/trees.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    scored = next(node for line in lines for node in line.get("nodes", ()) if node.get("annotations", {}).get("score"))
    scored["annotations"]["score"]["total"] = 0.25
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    replay = collab("replay", "run")
    assert replay.status == 1 and "1 differ from the record: train" in replay.out


def test_the_share_of_a_process_is_that_of_the_limit(collab: Collab, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from recipes.configuration.group_schema import BudgetConfig
    from recipes.configuration.schema import Run
    from recipes.running.run import budget_of
    from simulators.journal import Journal

    monkeypatch.setenv("WORLD_SIZE", "4")
    shares = []
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        journal = Journal(Path(f"rank{rank}") / "journal.jsonl")
        budget = budget_of(Run(output_dir="out", budget=BudgetConfig(max_calls=10, max_tokens=7)), journal)
        shares.append((budget.max_calls, budget.max_tokens))
        journal.close()
    assert shares == [(3, 2), (3, 2), (2, 2), (2, 1)]


def test_too_many_failed_conversations_stop_training(collab: Collab, command: list[str]) -> None:
    Path("mute.py").write_text("def nothing(request, rng):\n    return 'no JSON at all'\n")
    broken = ["user.model=mute:nothing", "method.group_size=2", "optimization.max_steps=40", "limit=8"]
    loose = ["method.rollout.stop_after_failed_rounds=1000"]
    ended = collab("train", "grpo", *command, *broken, *loose)
    assert ended.status == 1
    assert "conversations failed, more than the 30% allowed; most often user_error: " in ended.sentence


def test_a_finished_run_is_trained_further(collab: Collab, command: list[str]) -> None:
    own = ["method.group_size=2"]
    assert collab("train", "grpo", *command, *own).status == 0
    assert steps() == [1, 2]
    free = [
        "method.rollout.logged_conversations=1",
        "method.rollout.vllm.server_url=http://elsewhere:8000",
        "budget.max_calls=999",
    ]
    ended = collab("train", "grpo", *command, *own, *free, "optimization.max_steps=4", "optimization.logging_steps=1")
    assert ended.status == 0, ended.err
    assert steps() == [1, 2, 3, 4]
    assert "the learning rate goes on" not in ended.out
    for other, said in (
        ("optimization.max_steps=3", "optimization.max_steps=4, and this one has 3"),
        ("optimization.learning_rate=1e-3", "optimization.learning_rate=1e-06, and this one has 0.001"),
        ("limit=6", "limit=8, and this one has 6"),
        ("method.group_size=4", "method.group_size=2, and this one has 4"),
    ):
        refused = collab("train", "grpo", *command, *own, "optimization.max_steps=4", other)
        assert refused.status == 1 and said in refused.sentence


def test_a_rate_that_is_planned_by_the_length_says_how_it_goes_on(collab: Collab, command: list[str]) -> None:
    own = ["method.group_size=2", "optimization.lr_scheduler=linear", "optimization.learning_rate=1e-2"]
    assert collab("train", "grpo", *command, *own).status == 0
    ended = collab("train", "grpo", *command, *own, "optimization.max_steps=4")
    assert ended.status == 0, ended.err
    assert (
        "optimization.max_steps was 2 and is 4: the learning rate goes on as a run of the new length would have it" in ended.out
    )
    assert steps() == [1, 2, 3, 4]
    rates = {line["step"]: line["learning_rate"] for line in metrics() if "loss" in line}
    assert rates[3] == pytest.approx(0.5e-2) and rates[4] == pytest.approx(0.25e-2)


def test_supervised_training_goes_on_too(collab: Collab, tiny_model_folder: Path) -> None:
    assert collab("build", "policy=scripted", "limit=8", "max_turns=1", "output_dir=built").status == 0
    train = ["train", "sft", "data=built", f"model={tiny_model_folder}", "output_dir=run", "lora.rank=2"]
    sizes = ["optimization.batch_size=4", "optimization.learning_rate=1e-2", "optimization.save_steps=1"]
    assert collab(*train, *sizes, "optimization.max_steps=2").status == 0
    ended = collab(*train, *sizes, "optimization.max_steps=4")
    assert ended.status == 0, ended.err
    assert "optimization.max_steps was 2 and is 4" in ended.out
    rates = {line["step"]: line["learning_rate"] for line in metrics() if "loss" in line}
    assert [rates[step] for step in (1, 2, 3, 4)] == pytest.approx([1e-2, 0.5e-2, 0.5e-2, 0.25e-2])


def test_what_a_longer_run_samples_is_another_draw_only_where_the_rate_depends_on_it(
    tmp_path: Path, tiny_model_folder: Path
) -> None:
    from collab.training.online_settings import GRPOSettings, RolloutSettings, VLLMSettings
    from tests.training.runs import online_run

    def decisive(settings: GRPOSettings, **optimization: Any) -> Any:
        return online_run(tmp_path, str(tiny_model_folder), **optimization)._decisive(settings)

    plain = GRPOSettings()
    elsewhere = GRPOSettings(rollout=RolloutSettings(logged_conversations=0, vllm=VLLMSettings(server_url="http://b")))
    assert decisive(plain, max_steps=2) == decisive(elsewhere, max_steps=4, save_steps=7)
    assert decisive(plain, max_steps=2) != decisive(GRPOSettings(kl_beta=0.1), max_steps=2)
    linear = {"lr_scheduler": "linear"}
    assert decisive(plain, max_steps=2, **linear) != decisive(plain, max_steps=4, **linear)
    ramp = {"lr_scheduler": "constant_with_warmup"}
    assert decisive(plain, max_steps=2, warmup_steps=0.1, **ramp) != decisive(plain, max_steps=4, warmup_steps=0.1, **ramp)
    assert decisive(plain, max_steps=2, warmup_steps=3, **ramp) == decisive(plain, max_steps=4, warmup_steps=3, **ramp)


def test_the_recipe_is_a_file_that_accelerate_can_launch() -> None:
    file = [sys.executable, "recipes/online.py", "method=ppo", "environment=math_chat", "--cfg", "job"]
    done = subprocess.run(file, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=True)
    assert "algorithm: ppo" in done.stdout and "name: math_chat" in done.stdout
