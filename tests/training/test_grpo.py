"""The gates of online training, on GRPO: masks, losses, reference, accumulation, failures, current weights."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from collab.training.grpo import build_trainer, train_grpo
from collab.training.grpo_trainer import GroupTrainer
from collab.training.lora import LoraSettings, load_for_training
from collab.training.online_settings import VARIANTS, GRPOSettings
from simulators.errors import ConfigurationError, TooManyFailures
from simulators.tree_file import read_trees
from tests.training import toy
from tests.training.runs import gradients, logged, online_run, optimization, rollout, scripted, weights


def trainer_of(
    folder: Path, model: str, *, credit: str = "outcome", run: dict[str, Any] | None = None, **settings: Any
) -> GroupTrainer:
    values = {"rollout": rollout(), "group_size": 4, "variant": "grpo", "credit": credit} | settings
    return build_trainer(online_run(folder, model, **run or {}), GRPOSettings(**values))


def spy_on_loss(trainer: GroupTrainer) -> list[tuple[dict[str, Any], torch.Tensor, torch.Tensor]]:
    """Record (inputs, loss, per-token log-probabilities of the policy computed by hand) of every micro-batch."""
    seen: list[Any] = []
    original = trainer._loss

    def spy(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        loss = original(model, inputs)
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        with torch.no_grad():
            logits = trainer.model(input_ids=ids, attention_mask=attention).logits[:, :-1]
        logprobs = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0][:, -inputs["completion_ids"].size(1) :]
        seen.append((inputs, loss.detach(), logprobs))
        return loss

    trainer._loss = spy  # type: ignore[method-assign]
    return seen


def run(trainer: Any) -> None:
    try:
        trainer.train()
    finally:
        trainer.close()


@pytest.mark.parametrize("variant", ["grpo", "dapo"])
def test_loss_is_a_manual_masked_loss(variant: str, tiny: str, folder: Path) -> None:
    trainer = trainer_of(folder, tiny, variant=variant, trl={"mask_truncated_completions": False})
    seen = spy_on_loss(trainer)
    run(trainer)
    ((inputs, loss, logprobs),) = seen
    mask = (inputs["completion_mask"] * inputs["tool_mask"]).float()
    ratio = torch.ones_like(logprobs)  # at the weights that sampled
    per_token = -ratio * inputs["advantages"] * mask
    expected = (per_token.sum(1) / mask.sum(1)).mean() if variant == "grpo" else per_token.sum() / mask.sum()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    assert torch.allclose(logprobs * mask, inputs["sampling_per_token_logps"] * mask, atol=1e-4)


def test_trained_tokens_are_exactly_the_policys(tiny: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, lambda prompt, seed: "A" if "It is" in prompt else "Which?" if seed % 2 else "Hm...")
    trainer = trainer_of(folder, tiny, run={"environment": toy.environment(), "tasks": toy.tasks(2)}, drop_dead_groups=False)
    seen = spy_on_loss(trainer)
    run(trainer)
    tokenizer = trainer.processing_class
    trained = set()
    for inputs, _, _ in seen:
        mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        for row in range(mask.size(0)):
            trained.add(tokenizer.decode(inputs["completion_ids"][row][mask[row]]))
            outside = inputs["completion_ids"][row][~mask[row] & inputs["completion_mask"][row].bool()]
            assert "<|im_start|>user" in tokenizer.decode(outside)
    assert trained <= {"Which?<|im_end|>A<|im_end|>", "HmHm", "HmWhich?<|im_end|>", "Hm"} and "HmHm" in str(trained)


def test_the_stop_token_is_trained_and_padding_with_it_is_harmless(
    tiny: str, padded_with_stop: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """trl#4974, trl#5988: with pad = eos the stop tokens of replies stay in the mask, the padding stays out."""
    scripted(monkeypatch, lambda prompt, seed: "A" if "It is" in prompt else "?" * (1 + seed % 3))
    losses = {}
    for name, model in (("own padding", tiny), ("stop token", padded_with_stop)):
        settings = {"environment": toy.environment(), "tasks": toy.tasks(2)}
        trainer = trainer_of(folder / name, model, run=settings, drop_dead_groups=False)
        seen = spy_on_loss(trainer)
        run(trainer)
        ((inputs, _, _),) = seen
        stop = trainer.rollout._player.policy.tokens.stop_id
        mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        assert ((inputs["completion_ids"] == stop) & mask).sum() == 2 * mask.size(0)
        losses[name] = mask.sum(1).sort().values.tolist()
    assert losses["own padding"] == losses["stop token"]


def test_at_the_start_the_divergence_is_0_and_the_ratio_1(tiny: str, folder: Path) -> None:
    run(trainer_of(folder, tiny, kl_beta=0.1))
    (line,) = logged(folder)
    assert line["kl"] == pytest.approx(0, abs=1e-6)
    assert line["sampler/ratio"] == pytest.approx(1, abs=1e-4) and line["sampler/kl"] == pytest.approx(0, abs=1e-6)
    assert line["clip_ratio/region_mean"] == 0


def test_accumulation_gives_the_same_gradient(tiny: str, folder: Path) -> None:
    found = []
    for steps in (1, 2, 4):
        trainer = trainer_of(
            folder / str(steps),
            tiny,
            variant="dapo",
            trl={"mask_truncated_completions": False},
            run={"per_device_batch_size": 8 // steps},
        )
        recorded = gradients(trainer)
        run(trainer)
        assert trainer.args.gradient_accumulation_steps == steps
        found.append(recorded[0])
    assert found[0].abs().sum() > 0
    assert torch.allclose(found[0], found[1], atol=1e-6) and torch.allclose(found[0], found[2], atol=1e-6)


@pytest.mark.parametrize("variant", ["grpo", "dapo", "dr_grpo"])
def test_missing_and_nan_rewards_drop_the_sample(variant: str, tiny: str, folder: Path) -> None:
    """trl#5775: the loss is that of the other rows; in their groups' means, too, the dropped do not count."""

    class Choosy(toy.ReplyBytes):
        drop = ""

        async def score(self, conversation: Any, task: Any) -> float:
            if task.reference == self.drop[:1]:
                return float("nan")
            return await super().score(conversation, task)

    class Nothing(Choosy):
        drop = "A"

    trainer = trainer_of(
        folder,
        tiny,
        variant=variant,
        trl={"mask_truncated_completions": False},
        run={"environment": toy.environment(component=Nothing()), "tasks": toy.tasks(2)},
    )
    learn_from = trainer._learn_from

    def positive(*arguments: Any) -> dict[str, Any]:  # advantages of a group sum to 0, and so would the loss
        batch = learn_from(*arguments)
        return batch | {"advantages": batch["advantages"].abs()}

    trainer._learn_from = positive  # type: ignore[method-assign]
    seen = spy_on_loss(trainer)
    run(trainer)
    ((inputs, loss, _),) = seen
    kept = torch.tensor([episode.start_id != "letter-0" for episode in trainer.last_episodes])
    assert kept.sum() == 4
    trained = (inputs["completion_mask"] * inputs["tool_mask"]).sum(1)
    assert (trained > 0).sum() == 4 and (inputs["advantages"].abs().sum(1) > 0).sum() <= 4
    assert inputs["num_items_in_batch"] == trained.sum()
    mask = (inputs["completion_mask"] * inputs["tool_mask"]).float()[trained > 0]
    per_token = -inputs["advantages"][trained > 0] * mask
    alone = {
        "grpo": (per_token.sum(1) / mask.sum(1)).mean(),
        "dapo": per_token.sum() / mask.sum(),
        "dr_grpo": per_token.sum() / (len(mask) * trainer.max_completion_length),
    }
    assert loss.item() == pytest.approx(alone[variant].item(), rel=1e-4) and loss.item() < -1e-3
    (line,) = logged(folder)
    assert (line["rollout/dropped"], line["rollout/failed_groups"]) == (4, 1)


@pytest.mark.parametrize("drop", [True, False])
def test_groups_with_equal_rewards_are_out_of_the_loss_and_its_mean(drop: bool, tiny: str, folder: Path) -> None:
    class Flat(toy.ReplyBytes):
        async def score(self, conversation: Any, task: Any) -> float:
            return 0.1 if task.reference == "A" else await super().score(conversation, task)

    run_settings = {"environment": toy.environment(component=Flat()), "tasks": toy.tasks(2)}
    whole = {"mask_truncated_completions": False}
    trainer = trainer_of(folder, tiny, variant="dapo", trl=whole, run=run_settings, drop_dead_groups=drop)
    seen = spy_on_loss(trainer)
    run(trainer)
    ((inputs, _, _),) = seen
    trained = (inputs["completion_mask"] * inputs["tool_mask"]).sum(1)  # TRL has shuffled the rows
    assert (trained > 0).sum() == (4 if drop else 8) and (inputs["advantages"].abs().sum(1) > 1e-3).sum() == 4
    assert inputs["num_items_in_batch"] == trained.sum()
    (line,) = logged(folder)
    assert (line["rollout/dropped"], line["rollout/dead_groups"]) == (0, 1)


def test_a_step_in_which_everything_failed_leaves_the_weights_alone(
    tiny: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Weight decay and momentum must not move them either."""
    environment = toy.environment(failing=toy.LETTERS)
    trainer = trainer_of(folder, tiny, run={"environment": environment, "max_steps": 2, "weight_decay": 0.5})
    before = weights(trainer)
    with caplog.at_level(logging.WARNING, logger="collab.training.conversation_trainer"):
        run(trainer)
    assert torch.equal(weights(trainer), before)
    assert "step 1 is skipped" in caplog.text and "step 2 is skipped" in caplog.text
    assert [line["rollout/skipped_steps"] for line in logged(folder)] == [1, 1]


def test_a_run_that_only_fails_stops(tiny: str, folder: Path) -> None:
    environment = toy.environment(failing=toy.LETTERS)
    trainer = trainer_of(folder, tiny, run={"environment": environment, "max_steps": 9})
    with pytest.raises(TooManyFailures, match=r"3 rollouts in a row failed \(the user said nothing usable\)"):
        run(trainer)


def test_single_replies_of_trls_own_are_refused(tiny: str, folder: Path) -> None:
    """verl#4441: a run that is meant to be multi-turn must not fall back on single turns."""
    trainer = trainer_of(folder, tiny)
    trainer.rollout_func = None
    with pytest.raises(ConfigurationError, match="TRL sampled single replies of its own"):
        run(trainer)


def test_every_rollout_is_sampled_with_the_current_weights(tiny: str, folder: Path) -> None:
    trainer = trainer_of(folder, tiny, run={"max_steps": 4, "learning_rate": 0.1})
    before = weights(trainer)
    run(trainer)
    lines = logged(folder)
    assert (weights(trainer) - before).abs().max() > 0.1
    assert len(lines) == 4 and all(line["sampler/max_log_ratio"] < 1e-3 for line in lines)


def test_a_stale_sampler_would_be_seen(tiny: str, folder: Path) -> None:
    """The mismatch that is logged grows when sampling goes on with the weights of the first step."""
    trainer = trainer_of(folder, tiny, run={"max_steps": 3, "learning_rate": 0.1})
    trainer.rollout._player.policy.sampler.engine._model = load_for_training(
        tiny
    ).eval()  # a new adapter starts as the base model
    run(trainer)
    lines = logged(folder)
    assert lines[0]["sampler/max_log_ratio"] < 1e-3 < 0.05 < lines[2]["sampler/max_log_ratio"]
    assert lines[2]["sampler/kl"] > 10 * max(lines[0]["sampler/kl"], 1e-6)


def test_lora_dropout_is_off_while_sampling_and_training(tiny: str, folder: Path) -> None:
    trainer = trainer_of(folder, tiny, run={"lora": LoraSettings(rank=4, dropout=0.5), "learning_rate": 0.1, "max_steps": 2})
    run(trainer)
    assert all(line["sampler/max_log_ratio"] < 1e-3 for line in logged(folder))
    assert trainer.model.training, "the rollout gives the model back in the mode it was in"


def test_turns_carry_their_own_advantages(tiny: str, folder: Path) -> None:
    """Per-turn advantages stand on the tokens of their turns and sum to R* - MR_0 when turn counts differ."""
    trainer = trainer_of(
        folder,
        tiny,
        credit="mr_difference",
        trl={"scale_rewards": "none"},
        run={"environment": toy.environment(3, toy.ReplyBytes())},
    )
    batches = []
    original = trainer._learn_from
    trainer._learn_from = lambda batch, episodes, mode: (
        batches.append((original(batch, episodes, mode), episodes)),
        batches[-1][0],
    )[1]
    run(trainer)
    ((batch, episodes),) = batches
    groups: dict[str, list[float]] = {}
    for episode in episodes:
        groups.setdefault(episode.start_id, []).append(episode.worths[0])
    for row, episode in enumerate(episodes):
        start = sum(groups[episode.start_id]) / len(groups[episode.start_id])
        by_turn = [batch["advantages"][row, turn.start : turn.end] for turn in episode.turns]
        assert all((values == values[0]).all() for values in by_turn)
        assert sum(values[0].item() for values in by_turn) == pytest.approx(episode.reward - start, abs=1e-5)
        outside = batch["tool_mask"][row] * batch["completion_mask"][row] == 0
        assert not batch["advantages"][row][outside].any()


def test_branches_train_every_reply_of_every_turn(tiny: str, folder: Path) -> None:
    trainer = trainer_of(folder, tiny, credit="mr_branch", run={"per_device_batch_size": 4})
    run(trainer)
    rows = [episode for episode in trainer.last_episodes if episode.start_id]
    assert {episode.turn for episode in rows} == {1, 2} and len(trainer.last_episodes) % 8 == 0
    (line,) = logged(folder)
    assert line["rollout/episodes"] == len(rows) and line["rollout/turns"] == 1


def test_branches_need_whole_groups_on_a_rank(tiny: str, folder: Path) -> None:
    trainer = trainer_of(folder, tiny, credit="mr_branch")
    trainer.num_generations = 3
    with pytest.raises(ConfigurationError, match="do not hold whole groups of 3 replies"):
        run(trainer)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_takes_a_step(variant: str, tiny: str, folder: Path) -> None:
    trainer = trainer_of(folder, tiny, variant=variant, trl={"mask_truncated_completions": False})
    before = weights(trainer)
    run(trainer)
    assert not torch.equal(weights(trainer), before)
    for name, value in VARIANTS[variant].items():
        if name != "mask_truncated_completions":
            assert getattr(trainer.args, name) == value


def test_evaluation_and_the_trees_of_a_run(tiny: str, folder: Path) -> None:
    out = train_grpo(
        toy.environment(component=toy.ReplyBytes()),
        toy.tasks(4),
        tiny,
        folder,
        settings=GRPOSettings(rollout=rollout(), group_size=4, variant="grpo", drop_dead_groups=False, eval_steps=1),
        lora=online_run(folder, tiny).lora,
        optimization=optimization(batch_size=4, per_device_batch_size=4),
        eval_tasks=toy.tasks(2),
        seed=1,
    )
    assert (out / "adapter_model.safetensors").is_file() and (out / "tokenizer.json").is_file()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "eval_reward" in line] == [0, 1]
    trees = list(read_trees(folder))
    found = [(tree.metadata["mode"], tree.metadata["step"], tree.metadata["start"]) for tree in trees]
    evaluated = [("eval", step, f"letter-{number}") for step in (0, 1) for number in (0, 1)]
    assert sorted(found) == sorted([*evaluated, ("train", 0, next(start for mode, _, start in found if mode == "train"))])
    for tree in trees:
        policy = [node for node in tree.nodes if node.author == "policy"]
        assert len(policy) == 8 and all(node.token_ids and node.logprobs and node.context_ids for node in policy)
        assert all("credit" in node.annotations for node in policy if tree.metadata["mode"] == "train")
    (trained,) = [line for line in lines if "loss" in line]
    for name in ("time/rollout_s", "time/update_s", "throughput/sampled_tokens_per_s", "throughput/trained_tokens_per_s"):
        assert trained[name] > 0
    assert trained["rollout/groups"] == 1 and trained["outcomes/truncated"] + trained["outcomes/window_full"] == 1


def test_a_rollout_for_several_updates_takes_as_many_more_tasks(tiny: str, folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there are 8 task\(s\), and one rollout takes 10 .* groups of 4, 5 of them"):
        trainer_of(folder, tiny, updates_per_rollout=5)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"batch_size": 6}, "does not hold whole groups of 4"),
        ({"batch_size": 64, "per_device_batch_size": 64}, "there are 8 task"),
        ({"per_device_batch_size": 3}, "not a multiple of per_device_batch_size"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, int], complaint: str, tiny: str, folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        trainer_of(folder, tiny, run=changes)


def test_stored_histories_are_trained_on(tiny: str, folder: Path) -> None:
    """CollabLLM's own online setting: one reply to a stored history, rewarded by its MR."""
    from collab.training.episode import EpisodeStart
    from simulators.conversation import Message

    starts = [
        EpisodeStart(task, (Message("user", "Pick."), Message("assistant", "Hm?"), Message("user", "So?")))
        for task in toy.tasks(2)
    ]
    trainer = trainer_of(folder, tiny, rollout=rollout(max_turns=1, reward="mr"), run={"tasks": starts})
    run(trainer)
    assert all(len(episode.turns) == 1 and len(episode.conversation) == 4 for episode in trainer.last_episodes)


def test_full_fine_tuning_with_a_reference(tiny: str, folder: Path) -> None:
    trainer = trainer_of(folder, tiny, kl_beta=0.1, run={"lora": LoraSettings(enabled=False)})
    assert trainer.ref_model is not None
    run(trainer)
    (line,) = logged(folder)
    assert line["kl"] == pytest.approx(0, abs=1e-6)
