"""What online training takes for granted of TRL, as behaviour: run against every supported version before the pin is widened."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import shuffle_sequence_dict, split_tensor_dict

from collab.training.trl_hooks import HOOKS, check_trl
from simulators.errors import ConfigurationError
from tests.training.tiny_models import tiny_model, tiny_tokenizer

ROWS = 4


class Plain(GRPOTrainer):
    """TRL's trainer with a rollout of fixed tokens; records what passes through the hooks."""

    def __init__(self, folder: Path, **options: Any) -> None:
        tokenizer = tiny_tokenizer()
        self.calls: list[str] = []
        self.rewards_seen: list[Any] = []
        self.batches: list[dict[str, Any]] = []
        self.losses: list[dict[str, Any]] = []
        super().__init__(
            model=tiny_model(tokenizer),
            reward_funcs=[self.reward],
            args=GRPOConfig(
                str(folder),
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                report_to="none",
                save_strategy="no",
                per_device_train_batch_size=ROWS,
                num_generations=2,
                max_steps=1,
                logging_steps=1,
                disable_tqdm=True,
                max_completion_length=7,
                **options,
            ),
            train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "x"}], "start": at} for at in range(4)]),
            processing_class=tokenizer,
            rollout_func=self.roll,
        )

    @staticmethod
    def roll(prompts: list[Any], trainer: "Plain") -> dict[str, Any]:
        trainer.calls.append("rollout_func")
        assert len(prompts) == ROWS and prompts[0] == [{"role": "user", "content": "x"}]
        return {
            "prompt_ids": [[10, 11]] * ROWS,
            "completion_ids": [[20, 21, 22, 23 + at] for at in range(ROWS)],
            "logprobs": [[-1.0, -2.0, -3.0, -4.0]] * ROWS,
            "env_mask": [[1, 0, 0, 1]] * ROWS,
        }

    def reward(self, prompts: Any, completions: Any, completion_ids: Any, mark: Any, **columns: Any) -> list[float | None]:
        self.rewards_seen += mark
        return [None, 1.0, 2.0, 3.0]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        assert [sorted(row) for row in inputs] == [["prompt", "start"]] * ROWS
        batch = super()._generate_and_score_completions([{"prompt": row["prompt"], "mark": at} for at, row in enumerate(inputs)])
        self.batches.append(dict(batch))
        batch["advantages"] = torch.arange(1.0, ROWS + 1)[:, None].expand(-1, 4) * torch.tensor([1.0, 9.0, 9.0, 2.0])
        return batch

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self.logprobs = result[0]
        return result

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        loss = super()._compute_loss(model, inputs)
        self.losses.append({"inputs": inputs, "loss": loss.detach(), "training": self.model.training})
        return loss


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    trainer = Plain(tmp_path_factory.mktemp("plain"), loss_type="grpo")
    trainer.train()
    return trainer


def test_the_installed_version_is_supported() -> None:
    check_trl()


@pytest.mark.parametrize("version", ["1.15.3", "1.17.0", "2.0.0"])
def test_another_version_is_refused_in_one_sentence(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trl, "__version__", version)
    with pytest.raises(ConfigurationError, match=rf"trl {version} is installed.*install 'trl>=1.16,<1.17'$"):
        check_trl()


def test_a_changed_hook_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GRPOTrainer, "_generate", lambda self, inputs: None)
    with pytest.raises(ConfigurationError, match=r"GRPOTrainer\._generate of trl"):
        check_trl()
    monkeypatch.delattr(GRPOTrainer, "_generate")
    with pytest.raises(ConfigurationError, match=r"GRPOTrainer\._generate of trl"):
        check_trl()


def test_every_hook_that_the_trainers_override_is_checked() -> None:
    from collab.training.grpo_trainer import GroupTrainer
    from collab.training.online_dpo_trainer import PairTrainer
    from collab.training.ppo_trainer import CriticTrainer

    for kind in (GroupTrainer, PairTrainer, CriticTrainer):
        own = {name for base in kind.__mro__ if base.__module__.startswith("collab.") for name in vars(base)}
        overridden = {name for name in own if name.startswith("_") and not name.startswith("__") and hasattr(GRPOTrainer, name)}
        assert overridden - {"_name"} <= set(HOOKS)


def test_rows_reach_the_hook_and_rewards_get_our_columns(trained: Plain) -> None:
    assert trained.calls == ["rollout_func"]
    assert trained.rewards_seen == [0, 1, 2, 3]


def test_tokens_pass_unchanged_and_the_environment_mask_becomes_the_tool_mask(trained: Plain) -> None:
    (batch,) = trained.batches
    assert batch["completion_ids"].tolist() == [[20, 21, 22, 23 + at] for at in range(ROWS)]
    assert batch["prompt_ids"].tolist() == [[10, 11]] * ROWS
    assert batch["tool_mask"].tolist() == [[1, 0, 0, 1]] * ROWS
    assert batch["sampling_per_token_logps"].tolist() == [[-1.0, -2.0, -3.0, -4.0]] * ROWS
    assert batch["num_items_in_batch"] == 2 * ROWS and batch["num_items_in_batch"].ndim == 0
    assert "old_per_token_logps" not in batch, "steps are aligned: the policy that samples is the one that is trained"


def test_a_missing_reward_is_not_a_number_to_trl(trained: Plain) -> None:
    (batch,) = trained.batches
    assert batch["advantages"][0] == 0 and batch["advantages"][1] == 0  # None is left out, its partner is alone
    assert batch["advantages"][2] < 0 < batch["advantages"][3]


def test_per_token_advantages_enter_the_loss(trained: Plain) -> None:
    ((seen),) = trained.losses
    inputs = seen["inputs"]
    mask = inputs["completion_mask"] * inputs["tool_mask"]
    expected = (-inputs["advantages"] * mask).sum(1) / mask.sum(1)
    assert seen["training"] and seen["loss"].item() == pytest.approx(expected.mean().item(), abs=1e-6)
    assert inputs["advantages"].shape == (ROWS, 4)


def test_logprobs_are_of_the_completion_at_the_temperature(tmp_path: Path) -> None:
    trainer = Plain(tmp_path, temperature=0.7)
    ids = torch.tensor([[10, 11, 20, 21, 22]])
    logprobs, entropies, _ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, torch.ones_like(ids), 3)
    logits = trainer.model(input_ids=ids).logits[0, 1:-1] / 0.7
    expected = logits.log_softmax(-1)[torch.arange(3), ids[0, 2:]]
    assert torch.allclose(logprobs[0], expected, atol=1e-4) and entropies is None


def test_metrics_are_lists_by_mode(trained: Plain) -> None:
    assert set(trained._metrics) == {"train", "eval"}
    trained._metrics["train"]["ours"].append(2.0)
    trained._metrics["train"]["ours"].append(4.0)
    logs: dict[str, float] = {}
    trained.log(logs)
    assert logs["ours"] == 3.0


def test_the_step_counter_and_the_buffer_that_a_resume_restores(trained: Plain) -> None:
    assert trained._step == 1
    assert isinstance(trained._buffered_inputs, list) and len(trained._buffered_inputs) == trained.args.steps_per_generation


def test_batches_are_shuffled_and_split_by_rows_whatever_their_tensors_are() -> None:
    batch = {"pairs": torch.arange(12).view(3, 2, 2), "weight": torch.arange(3.0), "count": torch.tensor(5.0)}
    shuffled = shuffle_sequence_dict(batch)
    parts = split_tensor_dict(shuffled, 3)
    assert len(parts) == 3
    for part in parts:
        assert part["pairs"].shape == (1, 2, 2) and part["count"] == 5.0
        assert part["pairs"][0, 0, 0] == 4 * part["weight"][0]


def test_the_row_order_can_be_reseeded(trained: Plain) -> None:
    sampler = trained._get_train_sampler()
    sampler.generator.manual_seed(7)
    first = list(sampler)
    sampler.generator.manual_seed(7)
    assert list(sampler) == first and sampler.shuffle


def test_a_group_of_one_is_possible_once_the_configuration_is_made(tmp_path: Path) -> None:
    """PPO has a critic for a baseline. TRL refuses 1 in the configuration, not in the trainer."""
    with pytest.raises(ValueError, match="at least 2"):
        GRPOConfig(str(tmp_path), num_generations=1, use_cpu=True, bf16=False)


def test_vllm_generation_has_what_the_weight_sync_uses() -> None:
    from trl.generation.vllm_generation import VLLMGeneration

    parameters = set(inspect.signature(VLLMGeneration.__init__).parameters)
    assert {
        "model",
        "accelerator",
        "processing_class",
        "mode",
        "server_base_url",
        "server_timeout",
        "group_port",
        "gpu_memory_utilization",
        "max_model_length",
        "max_num_seqs",
        "temperature",
        "top_p",
        "max_completion_length",
    } <= parameters
    for name in ("_init_vllm", "_iter_named_params", "sync_weights"):
        assert callable(getattr(VLLMGeneration, name))
