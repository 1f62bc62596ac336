"""The hardware configurations are ones that Accelerate reads, and the trainers refuse what does not go together."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from collab.training.conversation_trainer import ConversationTrainer
from collab.training.online_settings import PPOSettings
from collab.training.ppo_trainer import CriticTrainer
from simulators.errors import ConfigurationError
from tests.training.runs import rollout

HARDWARE = Path(__file__).resolve().parents[2] / "conf" / "hardware"

EXPECTED = {
    "one_gpu": ("NO", 1),
    "ddp": ("MULTI_GPU", 8),
    "fsdp2": ("FSDP", 8),
    "zero2": ("DEEPSPEED", 8),
    "zero3": ("DEEPSPEED", 8),
    "vllm_aside": ("MULTI_GPU", 6),
    "several_nodes": ("FSDP", 16),
}


def test_every_configuration_is_one_that_is_expected() -> None:
    assert {path.stem for path in HARDWARE.glob("*.yaml")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_accelerate_reads_it(name: str) -> None:
    """Unknown keys are an error of `load_config_from_file`."""
    config = load_config_from_file(str(HARDWARE / f"{name}.yaml"))
    kind, processes = EXPECTED[name]
    assert (config.distributed_type.value, config.num_processes, config.mixed_precision) == (kind, processes, "bf16")
    assert (config.num_processes > 8) == (config.num_machines > 1)
    if kind == "FSDP":
        assert config.fsdp_config["fsdp_version"] == 2
    if kind == "DEEPSPEED":
        assert config.deepspeed_config["zero_stage"] == int(name[-1])


def trainer(fsdp: bool = False, zero_stage: int | None = None, **settings: Any) -> Any:
    plugin = SimpleNamespace(zero_stage=zero_stage) if zero_stage else None
    return SimpleNamespace(
        is_fsdp_enabled=fsdp,
        is_deepspeed_enabled=zero_stage is not None,
        accelerator=SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=plugin), autocast=None),
        model=SimpleNamespace(config=SimpleNamespace()),
        _source=SimpleNamespace(rollout=rollout()),
        _settings=PPOSettings(**settings),
    )


@pytest.mark.parametrize(("fsdp", "zero_stage"), [(True, None), (False, 3)])
def test_sharded_weights_need_vllm(fsdp: bool, zero_stage: int | None) -> None:
    with pytest.raises(ConfigurationError, match=r"set rollout.engine to vllm_server or vllm_in_process, or use DDP or ZeRO-2"):
        ConversationTrainer._make_sampler(trainer(fsdp, zero_stage), None, None)  # type: ignore[arg-type]


def test_zero_2_does_not() -> None:
    tokens = SimpleNamespace(tokenizer=None, eos_ids=frozenset())
    sampler, _ = ConversationTrainer._make_sampler(trainer(zero_stage=2), tokens, None)  # type: ignore[arg-type]
    assert sampler.counts.tokens == 0


@pytest.mark.parametrize(("fsdp", "zero_stage"), [(True, None), (False, 2)])
def test_an_adapter_critic_needs_a_model_that_is_whole(fsdp: bool, zero_stage: int | None) -> None:
    with pytest.raises(ConfigurationError, match=r"set critic\.kind to model"):
        CriticTrainer._make_critic(trainer(fsdp, zero_stage), "base")  # type: ignore[arg-type]
