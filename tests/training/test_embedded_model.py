"""One real step of every method on the embedded model, over conversations of two turns."""

from pathlib import Path
from typing import Any

import pytest
import torch

from collab.training import grpo, online_dpo, ppo
from collab.training.online_settings import CriticSettings, GRPOSettings, OnlineDPOSettings, PPOSettings, RolloutSettings
from tests.training.embedded import embedded_folder, embedded_run
from tests.training.runs import logged, weights

pytestmark = pytest.mark.slow

ROLLOUT = {"max_tokens": 12, "window_turns": 1, "num_samples": 1, "max_turns": 2}


@pytest.mark.parametrize("method", ["grpo", "grpo_mr_difference", "online_dpo", "ppo"])
def test_one_step(method: str, tmp_path: Path) -> None:
    run = embedded_run(method, tmp_path, embedded_folder())
    rollout = RolloutSettings(**ROLLOUT)
    trainer: Any
    if method == "ppo":
        settings = PPOSettings(rollout=rollout, critic=CriticSettings(rank=4, epochs=1, batch_size=4))
        trainer = ppo.build_trainer(run, settings)
    elif method == "online_dpo":
        trainer = online_dpo.build_trainer(run, OnlineDPOSettings(rollout=rollout, group_size=2))
    else:
        credit = "mr_difference" if method.endswith("difference") else "outcome"
        trainer = grpo.build_trainer(run, GRPOSettings(rollout=rollout, group_size=2, credit=credit, variant="grpo"))
    before = weights(trainer)
    try:
        trainer.train()
    finally:
        trainer.close()
    (line,) = logged(tmp_path)
    played = [episode for episode in trainer.last_episodes if episode.start_id]
    conversations = [[message.role for message in episode.conversation] for episode in played]
    assert ["user", "assistant", "user", "assistant"] in conversations, "the conversations have two turns"
    assert line["sampler/kl"] < 1e-3 and line["sampler/ratio"] == pytest.approx(1, abs=1e-2)
    assert (line["rollout/dropped"], line["reward"] is not None) == (0, True)
    moved = not torch.equal(weights(trainer), before)
    assert moved or line.get("rollout/skipped_steps"), "only a step that ties altogether may leave the policy as it was"
