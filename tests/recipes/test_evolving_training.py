"""`collab train grpo environment=evolving_gsm8k`: the settings of the issue, and what it refuses to train on."""

import json
from pathlib import Path

import yaml

from tests.evolving_intent.tasks import PROBLEMS
from tests.recipes.conftest import Collab


def test_problems_of_the_test_split_are_refused_whatever_their_file_and_id(
    collab: Collab, collab_data: Path, tmp_path: Path
) -> None:
    records = [json.loads(line) for line in (collab_data / "gsm8k" / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    mixed = tmp_path / "train.jsonl"
    hidden = [{"id": f"mine-{number}", **record} for number, record in enumerate(records[:60])]
    mixed.write_text("".join(json.dumps(record) + "\n" for record in (*PROBLEMS, *hidden)))
    environments = {"grpo": "evolving_gsm8k", "online-dpo": "math_chat", "ppo": "evolving_gsm8k"}
    for method, name in environments.items():
        ended = collab("train", method, f"environment={name}", f"tasks={mixed}", f"output_dir={tmp_path / method}")
        assert ended.status == 1 and "belongs to the test split of GSM8K; train on other tasks" in ended.sentence
        assert "task mine-" in ended.sentence and not list((tmp_path / method).glob("*/adapter*"))


def test_the_configuration_is_that_of_the_issue(collab: Collab) -> None:
    ended = collab("train", "grpo", "environment=evolving_gsm8k", "tasks=train.jsonl", "model=Qwen/Qwen3-4B", "--cfg", "job")
    assert ended.status == 0, ended.err
    config = yaml.safe_load(ended.out)
    assert config["environment"]["options"] == {"mixture": {1: 0.25, 4: 0.25, 7: 0.5}} and config["split"] == "train"
    method, optimization = config["method"], config["optimization"]
    assert (method["group_size"], method["kl_beta"], method["credit"]) == (8, 0.0, "outcome")
    assert (method["rollout"]["max_tokens"], method["rollout"]["temperature"]) == (512, 1.0)
    assert (optimization["learning_rate"], optimization["batch_size"]) == (1e-6, 16 * 8)
