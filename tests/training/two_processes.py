"""One rank of a run in two processes: trains GRPO or PPO for a step and writes what must not depend on the number of processes.

torchrun --nproc_per_node 2 -m tests.training.two_processes METHOD MODEL FOLDER PER_DEVICE
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from collab.training import grpo, online_dpo, ppo
from collab.training.online_settings import CriticSettings, GRPOSettings, OnlineDPOSettings, PPOSettings
from tests.training.runs import gradients, logged, online_run, rollout


def main() -> None:
    method, model, folder, per_device = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    run = online_run(folder, model, method=method, per_device_batch_size=per_device)
    if method.startswith("ppo"):
        kind = "model" if method == "ppo_model" else "adapter"
        critic = CriticSettings(kind=kind, rank=4, learning_rate=1e-2, epochs=1, batch_size=per_device)
        settings = PPOSettings(rollout=rollout(), critic=critic)
        trainer = ppo.build_trainer(run, settings)
    elif method == "online_dpo":
        trainer = online_dpo.build_trainer(run, OnlineDPOSettings(rollout=rollout(), group_size=4))
    else:
        credit = method.removeprefix("grpo_") if method != "grpo" else "outcome"
        options = {"mask_truncated_completions": False}
        trainer = grpo.build_trainer(run, GRPOSettings(rollout=rollout(), group_size=4, credit=credit, trl=options))
    recorded = gradients(trainer)
    trainer.train()
    trainer.close()
    if method.startswith("ppo"):
        weights = torch.cat([weight.detach().flatten() for weight in trainer.fitting.critic.trainable().values()])
        ranks = trainer.accelerator.gather(weights[None])
        assert torch.equal(ranks[0], ranks[-1]), "the ranks hold different critics"
    if trainer.accelerator.is_main_process:
        (line,) = logged(folder)
        result = {
            "processes": trainer.accelerator.num_processes,
            "gradient": recorded[0].tolist(),
            "figures": {
                name: line[name] for name in line if name.startswith(("loss", "reward", "rollout/", "pairs/", "critic/"))
            },
        }
        if method.startswith("ppo"):
            result["critic"] = torch.cat([w.detach().flatten() for w in trainer.fitting.critic.trainable().values()]).tolist()
        (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
