"""LoRA as in Table 6, 4-bit bases, stacked adapters, merging and export; SFT and DPO on the tiny model."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from collab.training.adapters import export_merged, merge_adapters
from collab.training.dpo import train_dpo
from collab.training.lora import LoraSettings, load_for_training
from collab.training.sft import train_sft
from simulators.errors import ConfigurationError
from tests.training.runs import optimization
from tests.training.tiny_models import save_tiny_model

ROWS = [
    {
        "messages": [
            {"role": "user", "content": "Pick."},
            {"role": "assistant", "content": "Which?"},
            {"role": "user", "content": f"It is {letter}."},
            {"role": "assistant", "content": letter},
        ]
    }
    for letter in "ABCD"
]
PAIRS = [
    {
        "prompt": row["messages"][:1],
        "chosen": [{"role": "assistant", "content": "Which?"}],
        "rejected": [{"role": "assistant", "content": "Hm."}],
    }
    for row in ROWS
]
SMALL = LoraSettings(rank=4, alpha=8)


def logits(model: object) -> torch.Tensor:
    ids = torch.arange(10, 30)[None]
    with torch.no_grad():
        return model(input_ids=ids).logits  # type: ignore[operator]


@pytest.fixture(scope="module")
def sft(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sft")
    return train_sft(ROWS, tiny, folder, settings=optimization(batch_size=4, per_device_batch_size=2, max_steps=2), lora=SMALL)


def test_the_defaults_are_those_of_table_6() -> None:
    config = LoraSettings().peft_config()
    assert config is not None
    assert (config.r, config.lora_alpha, config.lora_dropout, config.bias) == (32, 16, 0.1, "none")
    assert LoraSettings(enabled=False).peft_config() is None


def test_an_adapter_is_saved_with_the_tokenizer_that_samples_from_it(sft: Path, tiny: str) -> None:
    assert sft.name == "adapter" and json.loads((sft / "adapter_config.json").read_text())["r"] == 4
    saved = AutoTokenizer.from_pretrained(sft)
    assert saved.chat_template == AutoTokenizer.from_pretrained(tiny).chat_template


def test_qwen3_is_served_with_the_turns_it_was_trained_on(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "qwen3", "qwen3")
    settings = optimization(batch_size=4, per_device_batch_size=4)
    folder = train_sft(ROWS, model, tmp_path / "sft", settings=settings, lora=SMALL)
    saved = AutoTokenizer.from_pretrained(folder)
    text = saved.apply_chat_template(ROWS[0]["messages"], tokenize=False)
    assert text.count("<think>\n\n</think>\n\n") == 2
    assert AutoTokenizer.from_pretrained(model).apply_chat_template(ROWS[0]["messages"], tokenize=False).count("<think>") == 1


def test_dpo_goes_on_from_an_adapter_and_leaves_its_reference_out(sft: Path, tiny: str, tmp_path: Path) -> None:
    settings = optimization(batch_size=4, per_device_batch_size=4, max_steps=1)
    out = train_dpo(PAIRS, tiny, tmp_path, settings=settings, lora=SMALL, adapter=str(sft))
    assert not (out / "ref").exists()
    moved = load_for_training(tiny, str(out)).state_dict()
    before = load_for_training(tiny, str(sft)).state_dict()
    assert any(not torch.equal(moved[name], before[name]) for name in before)
    assert all(torch.equal(moved[name], before[name]) for name in before if "lora" not in name)


def test_full_fine_tuning_saves_a_model(tiny: str, tmp_path: Path) -> None:
    out = train_sft(
        ROWS, tiny, tmp_path, settings=optimization(batch_size=4, per_device_batch_size=4), lora=LoraSettings(enabled=False)
    )
    assert out.name == "model" and (out / "model.safetensors").is_file()


def test_an_exported_model_is_the_adapted_one_without_peft(sft: Path, tiny: str, tmp_path: Path) -> None:
    out = export_merged(tiny, [str(sft)], tmp_path / "merged", dtype="float32")
    exported = AutoModelForCausalLM.from_pretrained(out)
    adapted = load_for_training(tiny, str(sft)).eval()
    assert torch.allclose(logits(exported), logits(adapted), atol=1e-4)
    assert not torch.allclose(logits(exported), logits(AutoModelForCausalLM.from_pretrained(tiny)), atol=1e-4)
    assert AutoTokenizer.from_pretrained(out).chat_template


def test_adapters_are_stacked_in_order(sft: Path, tiny: str, tmp_path: Path) -> None:
    """An adapter trained on a base with another merged first is exported on top of it."""
    stacked = LoraSettings(rank=2, merge_first=(str(sft),))
    settings = optimization(batch_size=4, per_device_batch_size=4, max_steps=2, learning_rate=0.05)
    second = train_sft(ROWS, tiny, tmp_path / "second", settings=settings, lora=stacked)
    out = export_merged(tiny, [str(sft), str(second)], tmp_path / "both", dtype="float32")
    expected = load_for_training(tiny, str(second), stacked).eval()
    assert torch.allclose(logits(AutoModelForCausalLM.from_pretrained(out)), logits(expected), atol=1e-4)
    alone = merge_adapters(AutoModelForCausalLM.from_pretrained(tiny), [str(second)])
    assert not torch.allclose(logits(alone), logits(expected), atol=1e-3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing on a machine without a GPU")
def test_4_bits_without_a_gpu_are_refused(tiny: str) -> None:
    with pytest.raises(ConfigurationError, match="needs a GPU and bitsandbytes"):
        load_for_training(tiny, lora=LoraSettings(quantize=True))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"quantize": True, "enabled": False}, "trains an adapter"),
        ({"quantize": True, "merge_first": ("x",)}, "cannot merge into 4-bit"),
        ({"enabled": False, "merge_first": ("x",)}, "export the merged model"),
        ({"rank": 0}, "must be at least 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        LoraSettings(**settings)  # type: ignore[arg-type]


def test_missing_adapters_and_models_are_one_sentence(tiny: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot merge the LoRA adapter"):
        export_merged(tiny, [str(tmp_path / "none")], tmp_path / "out")
    with pytest.raises(ConfigurationError, match="at least one adapter"):
        export_merged(tiny, [], tmp_path / "out")
    with pytest.raises(ConfigurationError, match="cannot load a causal language model"):
        export_merged(str(tmp_path / "none"), ["x"], tmp_path / "out")
    with pytest.raises(ConfigurationError, match="cannot load a LoRA adapter"):
        load_for_training(tiny, str(tmp_path / "none"))
