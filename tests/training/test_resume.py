"""Every online method goes on from a checkpoint exactly as if it had not stopped, and a killed rollout loses no conversation."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from collab.environments.domain import Environment
from collab.rewards.component import ScoringError
from collab.training import grpo, online_dpo, ppo
from collab.training.online_settings import CriticSettings, GRPOSettings, OnlineDPOSettings, PPOSettings
from collab.training.settings import latest_checkpoint
from tests.training import toy
from tests.training.runs import logged, online_run, rollout, weights

METHODS: dict[str, tuple[Any, Any]] = {
    "grpo": (grpo, lambda: GRPOSettings(rollout=rollout(), group_size=2, variant="grpo")),
    "grpo, two updates a rollout": (
        grpo,
        lambda: GRPOSettings(rollout=rollout(), group_size=2, variant="grpo", updates_per_rollout=2, iterations=2),
    ),
    "grpo, mr_branch": (grpo, lambda: GRPOSettings(rollout=rollout(), group_size=2, variant="grpo", credit="mr_branch")),
    "online_dpo": (online_dpo, lambda: OnlineDPOSettings(rollout=rollout(), group_size=2)),
    "ppo": (ppo, lambda: PPOSettings(rollout=rollout(), critic=CriticSettings(rank=4, learning_rate=1e-2))),
}


class StopAt(TrainerCallback):
    """Ends training after a step, as somebody's Ctrl-C would."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step >= self._step


def trained(
    name: str, folder: Path, model: str, steps: int, environment: Environment | None = None, resume: bool = False
) -> tuple[torch.Tensor, list[dict[str, Any]]]:
    """Train to a step, from the newest checkpoint where asked, and return the weights and what was logged."""
    module, settings = METHODS[name]
    run = online_run(
        folder,
        model,
        environment,
        tasks=toy.tasks(4),
        method=name,
        batch_size=4,
        per_device_batch_size=4,
        max_steps=6,
        save_steps=3,
        lr_scheduler="linear",
    )
    trainer = module.build_trainer(run, settings())
    trainer.add_callback(StopAt(steps))
    try:
        trainer.train(resume_from_checkpoint=latest_checkpoint(folder / "checkpoints") if resume else None)
    finally:
        trainer.close()
    found = weights(trainer)
    if name == "ppo":
        critic = trainer.fitting.critic.trainable().values()
        found = torch.cat([found, *(weight.detach().flatten() for weight in critic)])
    return found, logged(folder)


@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_is_the_uninterrupted_one(name: str, tiny: str, folder: Path) -> None:
    """Three steps, a stop in the second epoch (and, with two updates a rollout, in the middle of one), three more."""
    whole, lines = trained(name, folder / "whole", tiny, 6)
    trained(name, folder / "parts", tiny, 3)
    assert latest_checkpoint(folder / "parts" / "checkpoints")
    resumed, resumed_lines = trained(name, folder / "parts", tiny, 6, resume=True)
    assert [line["loss"] for line in resumed_lines] == [line["loss"] for line in lines]
    assert [line.get("reward") for line in resumed_lines] == [line.get("reward") for line in lines]
    assert torch.equal(resumed, whole)


class Killed(BaseException):
    """Stands for the signal that ends a process."""


class Counting(toy.ReplyBytes):
    """Counts whole conversations, and kills the run at one of them."""

    def __init__(self, kill_at: int | None = None) -> None:
        super().__init__()
        self.count = 0
        self.kill_at = kill_at

    async def score(self, conversation: Any, task: Any) -> float:
        self.count += 1
        if self.count == self.kill_at:
            raise Killed
        return await super().score(conversation, task)


def test_a_rollout_that_was_killed_loses_no_finished_conversation(tiny: str, folder: Path) -> None:
    whole, lines = trained("grpo", folder / "whole", tiny, 6, toy.environment(component=Counting()))
    killing = Counting(kill_at=4 * 4 + 3)  # in the fifth rollout, one step after the checkpoint
    with pytest.raises(Killed):
        trained("grpo", folder / "parts", tiny, 6, toy.environment(component=killing))
    counting = Counting()
    resumed, resumed_lines = trained("grpo", folder / "parts", tiny, 6, toy.environment(component=counting), resume=True)
    # rollout 4 lies in the journal as a whole, rollout 5 in part: what is left are its last ones and the sixth
    fourth, fifth, sixth = (line["rollout/reused"] for line in resumed_lines[-3:])
    assert fourth == 4 and fifth in (2, 3) and sixth == 0
    assert counting.count == (4 - fifth) + 4
    assert [line["loss"] for line in resumed_lines] == [line["loss"] for line in lines]
    assert torch.equal(resumed, whole)


def test_the_journal_is_not_asked_by_a_run_with_other_settings(tiny: str, folder: Path) -> None:
    run = online_run(folder, tiny, tasks=toy.tasks(2), batch_size=4, per_device_batch_size=4, max_steps=2)
    settings = GRPOSettings(rollout=rollout(), group_size=2, variant="grpo")

    def reused(run: Any) -> float:
        trainer = grpo.build_trainer(run, settings)
        trainer.add_callback(StopAt(1))  # before the checkpoint that ends a run
        try:
            trainer.train()
        finally:
            trainer.close()
        return logged(folder)[-1]["rollout/reused"]

    assert reused(run) == 0
    assert reused(run) == 4
    run.optimization.learning_rate = 1e-3
    assert reused(run) == 0, "with another learning rate the second rollout would be of other weights"


def test_a_checkpoint_empties_the_journal(tiny: str, folder: Path) -> None:
    trained("grpo", folder, tiny, 3)
    lines = (folder / "rollouts" / "episodes-0.jsonl").read_text().splitlines()
    assert [json.loads(line).get("format") for line in lines] == ["collab-episodes"]


def rewarded(sample: int, reward: float | None) -> Any:
    from tests.training.test_rollout_trees import episode

    return episode("a", sample, reward)


def recalled(journal: Any, name: str, sample: int) -> list[tuple[float | None, list[int]]] | None:
    found = journal.recall(name, "a", sample)
    return None if found is None else [(row.reward, row.completion_ids) for row in found]


def test_failed_conversations_are_tried_again(tiny: str, folder: Path) -> None:
    from collab.training.rollout_journal import RolloutJournal

    journal = RolloutJournal(folder, 0, "run")
    journal.record("train0", "a", 0, [rewarded(0, 1.0)])
    journal.record("train0", "a", 1, [rewarded(1, None)])
    journal.close()
    again = RolloutJournal(folder, 1, "run")  # another rank reads what the first left behind
    assert recalled(again, "train0", 0) == [(1.0, rewarded(0, 1.0).completion_ids)]
    assert recalled(again, "train0", 1) is None and recalled(again, "train1", 0) is None
    assert again.reused == 1
    again.close()


def test_what_failed_in_a_rollout_that_training_went_on_from_stays_failed(folder: Path) -> None:
    """Tried again it might succeed, and the rollouts after it would be recalled although other weights had sampled them."""
    from collab.training.rollout_journal import RolloutJournal

    journal = RolloutJournal(folder, 0, "run")
    journal.record("train0", "a", 1, [rewarded(1, None)])
    journal.move_on()  # the next rollout begins
    journal.record("train1", "a", 1, [rewarded(1, None)])
    journal.close()
    again = RolloutJournal(folder, 0, "run")
    assert recalled(again, "train0", 1) == [(None, rewarded(1, None).completion_ids)]
    assert recalled(again, "train1", 1) is None
    again.close()


def test_a_resumed_run_does_not_take_episodes_of_other_weights(tiny: str, folder: Path) -> None:
    """One conversation of the first step fails; by the time of the resume its user is well again."""
    from collab.training import grpo
    from collab.training.online_settings import GRPOSettings

    settings = GRPOSettings(rollout=rollout(), group_size=4, variant="dapo", trl={"mask_truncated_completions": False})

    def sampler_kl(environment: Any) -> list[float]:
        run = online_run(folder, tiny, environment=environment, max_steps=9)
        trainer = grpo.build_trainer(run, settings)
        trainer.add_callback(StopAt(3))
        try:
            trainer.train()
        finally:
            trainer.close()
        return [line["sampler/kl"] for line in logged(folder)[-3:]]

    class Choosy(toy.ReplyBytes):
        broken, failing = True, ""

        async def score(self, conversation: Any, task: Any) -> float:
            self.failing = self.failing or task.reference  # the first task that is scored at all
            if self.broken and task.reference == self.failing:
                raise ScoringError("no judge today")
            return await super().score(conversation, task)

    component = Choosy()
    first = sampler_kl(toy.environment(component=component))

    component.broken = False
    again = sampler_kl(toy.environment(component=component))
    assert max(first) < 1e-5 and max(again) < 1e-5


def test_a_file_that_another_rank_is_only_just_opening_is_passed_over(folder: Path) -> None:
    from collab.training.rollout_journal import RolloutJournal

    (folder / "episodes-1.jsonl").parent.mkdir(parents=True, exist_ok=True)
    (folder / "episodes-1.jsonl").touch()
    RolloutJournal(folder, 0, "run").close()
