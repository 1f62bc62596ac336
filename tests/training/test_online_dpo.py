"""Online DPO: pairs by MR, ties skipped, a loss that does not depend on how pairs fall into micro-batches, evaluation."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from collab.training.online_dpo import build_trainer, train_online_dpo
from collab.training.online_dpo_trainer import PairTrainer, _pair
from collab.training.online_settings import OnlineDPOSettings
from tests.training import toy
from tests.training.runs import gradients, logged, online_run, optimization, rollout, scripted, weights


def trainer_of(folder: Path, model: str, run: dict[str, Any] | None = None, **settings: Any) -> PairTrainer:
    values = {"rollout": rollout(), "group_size": 4} | settings
    return build_trainer(online_run(folder, model, method="online_dpo", **run or {}), OnlineDPOSettings(**values))


def run(trainer: Any) -> None:
    try:
        trainer.train()
    finally:
        trainer.close()


@pytest.mark.parametrize(
    ("rewards", "pair"),
    [
        ([0.1, 0.9, 0.5, 0.0], (1, 3)),
        ([0.5, None, 0.7, float("nan") and None], (2, 0)),
        ([0.5, 0.5, 0.5], None),
        ([0.5, None, None], None),
        ([None, None], None),
        ([0.5, 0.58], None),
        ([0.9, 0.9, 0.1], (0, 2)),
    ],
)
def test_best_and_worst_are_paired_and_ties_are_not(rewards: list[float | None], pair: tuple[int, int] | None) -> None:
    assert _pair(rewards, 0.1) == pair


def test_loss_is_ln_2_at_the_start_and_a_manual_dpo_loss_later(tiny: str, folder: Path) -> None:
    trainer = trainer_of(folder, tiny, run={"max_steps": 2, "learning_rate": 0.05})
    seen: list[Any] = []
    original = trainer._loss

    def spy(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        loss = original(model, inputs)
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        width = inputs["completion_ids"].size(1)
        sums = []
        with torch.no_grad():
            for reference in (False, True):
                with trainer.model.disable_adapter() if reference else torch.no_grad():
                    logits = trainer.model(input_ids=ids, attention_mask=attention).logits[:, :-1]
                logprobs = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0][:, -width:]
                sums.append((logprobs * inputs["completion_mask"] * inputs["tool_mask"]).sum(1))
        scores = (sums[0] - sums[1]).view(-1, 2)
        kept = inputs["weight"].bool()
        expected = -F.logsigmoid(0.1 * (scores[:, 0] - scores[:, 1]))[kept].mean()
        seen.append((loss.item(), expected.item()))
        return loss

    trainer._loss = spy  # type: ignore[method-assign]
    run(trainer)
    assert seen[0][0] == pytest.approx(math.log(2), abs=1e-5)
    assert abs(seen[1][0] - math.log(2)) > 1e-3
    assert [loss for loss, _ in seen] == pytest.approx([expected for _, expected in seen], abs=1e-5)


def test_accumulation_gives_the_same_gradient_whatever_ties_fall_where(
    tiny: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """trl's own online DPO gave gradients of 1, 2 and 4 times the size here. One group of four is a tie."""
    choices = ["?", "B", "C", "D"]
    scripted(
        monkeypatch,
        lambda prompt, seed: "P" if "It is" in prompt else choices[seed % 4],
    )
    environment = toy.environment(max_turns=1, component=Graded())
    found = []
    for steps in (1, 2, 4):
        trainer = trainer_of(
            folder / str(steps),
            tiny,
            rollout=rollout(window_turns=0),
            run={"environment": environment, "batch_size": 16, "per_device_batch_size": 16 // steps, "tasks": toy.tasks(4)},
        )
        recorded = gradients(trainer)
        run(trainer)
        found.append(recorded[0])
        (line,) = logged(folder / str(steps))
        assert 0 < line["pairs/count"] < 4
    assert found[0].abs().sum() > 0
    assert torch.allclose(found[0], found[1], atol=1e-6) and torch.allclose(found[0], found[2], atol=1e-6)


class Graded(toy.ReplyBytes):
    """Gives every reply another reward, but all replies to the letter B the same."""

    async def score(self, conversation: Any, task: Any) -> float:
        if task.reference == "B":
            return 0.5
        return await super().score(conversation, task) + len(conversation[-1].content) + ord(conversation[-1].content[0]) / 100


def test_a_step_of_ties_moves_nothing(tiny: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, lambda prompt, seed: "Z")
    trainer = trainer_of(folder, tiny, run={"environment": toy.environment(), "weight_decay": 0.5})
    before = weights(trainer)
    run(trainer)
    assert torch.equal(weights(trainer), before)
    (line,) = logged(folder)
    assert (line["pairs/count"], line["rollout/skipped_steps"]) == (0, 1)


def test_replies_without_an_mr_are_in_no_pair(tiny: str, folder: Path) -> None:
    environment = toy.environment(component=toy.SaidLetter(fail_on=toy.LETTERS))
    run(trainer_of(folder, tiny, run={"environment": environment}))
    (line,) = logged(folder)
    assert (line["pairs/count"], line["rollout/dropped"], line["rollout/episodes"]) == (0, 8, 8)


def test_evaluation_works(tiny: str, folder: Path) -> None:
    out = train_online_dpo(
        toy.environment(component=toy.ReplyBytes()),
        toy.tasks(4),
        tiny,
        folder,
        settings=OnlineDPOSettings(rollout=rollout(), group_size=2, eval_steps=1),
        lora=online_run(folder, tiny).lora,
        optimization=optimization(batch_size=4, per_device_batch_size=4),
        eval_tasks=toy.tasks(3),
        seed=1,
    )
    assert (out / "adapter_config.json").is_file() and not (out / "ref").exists()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    first, last = [line for line in lines if "eval_loss" in line]
    assert first["eval_loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert 0 <= last["eval_dpo/accuracy"] <= 1 and last["eval_pairs/count"] > 0


def test_the_reference_is_the_adapter_that_training_starts_from(tiny: str, folder: Path) -> None:
    first = trainer_of(folder / "first", tiny, run={"learning_rate": 0.1})
    run(first)
    first.model.save_pretrained(folder / "adapter")
    chained = trainer_of(folder / "second", tiny, run={"adapter": str(folder / "adapter")})
    run(chained)
    (line,) = logged(folder / "second")
    assert line["loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert "ref" in chained.model.peft_config
