"""PPO: a critic with weights of its own that is fitted, GAE into the loss, the divergence in reward or loss, warm-up."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from collab.training.critic import AdapterCritic, CriticFitting, ModelCritic
from collab.training.lora import LoraSettings, load_for_training
from collab.training.online_settings import CriticSettings, PPOSettings
from collab.training.ppo import build_trainer, train_ppo
from collab.training.ppo_trainer import CriticTrainer
from simulators.errors import ConfigurationError
from tests.training import toy
from tests.training.runs import gradients, logged, online_run, optimization, rollout, weights


def trainer_of(folder: Path, model: str, run: dict[str, Any] | None = None, **settings: Any) -> CriticTrainer:
    values = {"rollout": rollout(), "critic": CriticSettings(rank=4, learning_rate=1e-2)} | settings
    return build_trainer(online_run(folder, model, method="ppo", **run or {}), PPOSettings(**values))


def run(trainer: Any) -> None:
    try:
        trainer.train()
    finally:
        trainer.close()


def critic_weights(trainer: CriticTrainer) -> torch.Tensor:
    return torch.cat([weight.detach().flatten().clone() for weight in trainer.fitting.critic.trainable().values()])


def batch_of(rows: int = 12, width: int = 6) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "prompt_ids": torch.randint(5, 200, (rows, 4)),
        "prompt_mask": torch.ones(rows, 4, dtype=torch.long),
        "completion_ids": torch.randint(5, 200, (rows, width)),
        "completion_mask": torch.ones(rows, width, dtype=torch.long),
    }


@pytest.mark.parametrize("kind", ["adapter", "model"])
def test_the_critic_fits_and_touches_only_its_own_weights(kind: str, tiny: str) -> None:
    from peft import get_peft_model

    policy = get_peft_model(load_for_training(tiny), LoraSettings(rank=4).peft_config())
    settings = CriticSettings(kind=kind, rank=8, learning_rate=3e-2, epochs=30, batch_size=12, clip=0)
    critic = AdapterCritic(policy, settings) if kind == "adapter" else ModelCritic(tiny, settings, policy.device, policy.dtype)
    own = {id(weight) for weight in critic.trainable().values()}
    others = {
        name: weight.detach().clone()
        for module in (policy, critic)
        for name, weight in module.named_parameters()
        if id(weight) not in own
    }
    batch, mask = batch_of(), torch.ones(12, 6)
    returns = (batch["completion_ids"][:, :1] % 2).float().expand(-1, 6) * 2 - 1  # known once the first token is seen
    mask[:, 0] = 0
    old = critic.values(batch, 5)
    assert not old.any(), "a new critic says 0 everywhere"
    fitting = CriticFitting(critic, settings, lambda tensor: tensor, seed=1)
    loss = fitting.fit(batch, returns, old, mask, step=0)
    left = ((critic.values(batch, 5) - returns) ** 2 * mask).sum() / mask.sum()
    assert loss < 0.2 and left < 0.3 * (returns**2).mean(), "the critic really fits"
    for module in (policy, critic):
        for name, weight in module.named_parameters():
            if id(weight) not in own:
                assert torch.equal(weight, others[name]) and weight.grad is None, name
    assert policy.active_adapter == "default"
    assert {name for name, weight in policy.named_parameters() if weight.requires_grad} == {
        name for name, _ in policy.named_parameters() if ".default." in name
    }


def test_values_are_read_before_the_token_is_known(tiny: str) -> None:
    settings = CriticSettings(kind="model", rank=4)
    critic = ModelCritic(tiny, settings, torch.device("cpu"), torch.float32)
    torch.nn.init.normal_(critic.head.weight)
    batch = batch_of()
    changed = {name: tensor.clone() for name, tensor in batch.items()}
    changed["completion_ids"][:, 3] = 7
    before, after = critic.values(batch, 12), critic.values(changed, 12)
    assert torch.allclose(before[:, :4], after[:, :4], atol=1e-6) and not torch.allclose(before[:, 4:], after[:, 4:])


def test_value_clipping_bounds_a_step(tiny: str) -> None:
    """Where the clipped value is already past the return's side, nothing is left to learn from."""
    settings = CriticSettings(kind="model", rank=4, clip=0.1, epochs=1, batch_size=12)
    critic = ModelCritic(tiny, settings, torch.device("cpu"), torch.float32)
    fitting = CriticFitting(critic, settings, lambda tensor: tensor, seed=1)
    batch, mask = batch_of(), torch.ones(12, 6)
    values = critic.values(batch, 12)
    old = values - 1.0  # the value has moved up by 1 from the old one, towards returns above it
    loss = fitting.fit(batch, values + 0.5, old, mask, step=0)
    assert loss == pytest.approx(0.5 * (1.0 - 0.1 + 0.5) ** 2, rel=1e-3), "the larger of clipped and unclipped error"


def test_one_conversation_a_task_is_enough_and_everything_is_logged(tiny: str, folder: Path) -> None:
    out = train_ppo(
        toy.environment(component=toy.ReplyBytes()),
        toy.tasks(4),
        tiny,
        folder,
        settings=PPOSettings(rollout=rollout(), critic=CriticSettings(rank=4), eval_steps=1),
        lora=LoraSettings(rank=4),
        optimization=optimization(batch_size=4, per_device_batch_size=2),
        eval_tasks=toy.tasks(2),
        seed=1,
    )
    assert (out / "adapter_model.safetensors").is_file() and not (out / "critic").exists()
    assert (folder / "critic" / "critic.safetensors").is_file()
    (line,) = logged(folder)
    assert {"critic/loss", "critic/explained_variance", "critic/explained_variance_turn_2", "ppo/kl"} <= set(line)
    assert line["rollout/episodes"] == 4 and "rollout/dead_groups" not in line
    lines = [json.loads(each) for each in (folder / "metrics.jsonl").read_text().splitlines()]
    assert sum("eval_reward" in each for each in lines) == 2


def test_the_loss_is_the_clipped_one_with_gae_advantages(tiny: str, folder: Path) -> None:
    trainer = trainer_of(folder, tiny, kl_beta=0.0, whiten=False, gae_lambda=1.0)
    seen: list[Any] = []
    original = trainer._loss
    trainer._loss = lambda model, inputs: (seen.append(inputs), original(model, inputs))[1]  # type: ignore[method-assign]
    run(trainer)
    (inputs,) = seen
    mask = inputs["completion_mask"] * inputs["tool_mask"]
    by_row = {tuple(episode.completion_ids): episode.reward for episode in trainer.last_episodes}
    for row in range(mask.size(0)):
        ids = tuple(inputs["completion_ids"][row][inputs["completion_mask"][row].bool()].tolist())
        own = inputs["advantages"][row][mask[row].bool()]
        # lambda 1, a critic that still says 0: every policy token, across the user turn, has the episode's reward as advantage
        assert own.tolist() == pytest.approx([by_row[ids]] * len(own), abs=1e-5)
        assert not inputs["advantages"][row][~mask[row].bool()].any()


def test_divergence_is_paid_as_a_reward_or_stands_in_the_loss(tiny: str, folder: Path) -> None:
    figures = {}
    for where in ("reward", "loss"):
        trainer = trainer_of(folder / where, tiny, kl_beta=5.0, kl_in=where, run={"max_steps": 3, "learning_rate": 0.05})
        run(trainer)
        figures[where] = logged(folder / where)
    assert "kl" not in figures["reward"][0] and "ppo/kl" not in figures["loss"][0]
    assert figures["reward"][0]["ppo/kl"] == pytest.approx(0, abs=1e-5) == figures["loss"][0]["kl"]
    returns = [line["critic/return_mean"] - line["reward"] for line in figures["reward"]]
    assert returns[0] == pytest.approx(0, abs=1e-3) and min(abs(value) for value in returns[1:]) > 1e-3
    assert all(line["critic/return_mean"] == pytest.approx(line["reward"], abs=0.1) for line in figures["loss"])


def test_during_the_warm_up_only_the_critic_moves(tiny: str, folder: Path) -> None:
    settings = CriticSettings(rank=4, learning_rate=1e-2, warmup_steps=2)
    trainer = trainer_of(folder, tiny, critic=settings, run={"max_steps": 2, "weight_decay": 0.5})
    policy, critic = weights(trainer), critic_weights(trainer)
    run(trainer)
    assert torch.equal(weights(trainer), policy) and not torch.equal(critic_weights(trainer), critic)
    moving = trainer_of(folder / "on", tiny, critic=settings, run={"max_steps": 3})
    policy = weights(moving)
    run(moving)
    assert not torch.equal(weights(moving), policy)


def test_a_frozen_critic_stays_as_it_was(tiny: str, folder: Path) -> None:
    trainer = trainer_of(folder, tiny, critic=CriticSettings(rank=4, frozen=True), run={"max_steps": 2})
    before = critic_weights(trainer)
    run(trainer)
    assert torch.equal(critic_weights(trainer), before)


def test_rewards_can_be_paid_turn_by_turn(tiny: str, folder: Path) -> None:
    trainer = trainer_of(folder, tiny, credit="mr_difference", kl_beta=0.0, whiten=False, gamma=0.0)
    seen: list[Any] = []
    original = trainer._learn_from
    trainer._learn_from = lambda batch, episodes, mode: (seen.append((original(batch, episodes, mode), episodes)), seen[-1][0])[1]
    run(trainer)
    ((batch, episodes),) = seen
    for row, episode in enumerate(episodes):
        paid = batch["advantages"][row]  # gamma 0 and V = 0: the rewards themselves
        ends = [turn.end - 1 for turn in episode.turns]
        assert (
            sum(paid[end].item() for end in ends) == pytest.approx(episode.reward - episode.worths[0], abs=1e-5) or len(ends) == 1
        )
        assert all(not paid[place] for place in range(paid.numel()) if place not in ends)


def test_accumulation_gives_the_same_gradient(tiny: str, folder: Path) -> None:
    found = []
    for steps in (1, 4):
        trainer = trainer_of(folder / str(steps), tiny, run={"per_device_batch_size": 8 // steps})
        recorded = gradients(trainer)
        run(trainer)
        found.append(recorded[0])
    assert found[0].abs().sum() > 0 and torch.allclose(found[0], found[1], atol=1e-6)


def test_an_adapter_critic_needs_a_lora_policy(tiny: str, folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs a policy that is trained with LoRA"):
        trainer_of(folder, tiny, run={"lora": LoraSettings(enabled=False)})


def test_a_critic_of_another_size_is_refused(tiny: str, tmp_path: Path) -> None:
    made = []
    for rank in (4, 8):
        settings = CriticSettings(kind="model", rank=rank)
        critic = ModelCritic(tiny, settings, torch.device("cpu"), torch.float32)
        made.append(CriticFitting(critic, settings, lambda tensor: tensor, seed=1))
    made[0].save(tmp_path)
    made[0].load(tmp_path)
    with pytest.raises(ConfigurationError, match="holds no critic"):
        made[0].load(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="of another kind or size"):
        made[1].load(tmp_path)
