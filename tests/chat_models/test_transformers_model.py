"""Loading a model into this process: names, digests, adapters, and what cannot be loaded."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from simulators.chat_models.transformers_model import TransformersChatModel, load_tokenizer, weights_digest
from simulators.errors import ConfigurationError
from tests.chat_models.requests import CONVERSATIONS, asked, one
from tests.training.tiny_models import save_tiny_model, tiny_model, tiny_tokenizer


async def test_a_completion_says_which_weights_wrote_it(model: TransformersChatModel) -> None:
    assert (model.name, model.weights_version) == ("tiny", "0")
    model.weights_version = "step 7"
    completion = await one(model, asked())
    assert (completion.model, completion.weights_version) == ("tiny", "step 7")
    assert completion.latency_s > 0


def test_tokens_are_counted_without_special_ones(model: TransformersChatModel) -> None:
    assert model.count_tokens("héllo") == 6
    assert model.count_tokens("") == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(save_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="module")
def adapter(folder: Path) -> Path:
    """A LoRA adapter with weights that make a difference."""
    from peft import LoraConfig, get_peft_model

    lora = get_peft_model(tiny_model(tiny_tokenizer()), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_alpha=64))
    for name, parameter in lora.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    lora.save_pretrained(folder.parent / "adapter")
    return folder.parent / "adapter"


async def test_a_folder_is_loaded_with_and_without_an_adapter(folder: Path, adapter: Path, model: TransformersChatModel) -> None:
    loaded = TransformersChatModel.from_pretrained(str(folder), dtype="float32")
    adapted = TransformersChatModel.from_pretrained(str(folder), str(adapter), dtype="float32")
    request = asked(CONVERSATIONS[1])
    assert (await one(loaded, request)).text == (await one(model, request)).text != (await one(adapted, request)).text
    assert loaded.name == adapted.name == str(folder)
    assert loaded.weights_version == weights_digest(str(folder))
    assert adapted.weights_version == f"{weights_digest(str(folder))}+{weights_digest(str(adapter))}"
    assert not loaded.model.training
    for each in (loaded, adapted):
        await each.aclose()


def test_the_digest_follows_the_weights_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    digest = weights_digest(str(folder))
    shutil.copytree(folder, tmp_path / "copy")
    assert weights_digest(str(tmp_path / "copy")) == digest
    (tmp_path / "copy" / "notes.txt").write_text("mine")
    assert weights_digest(str(tmp_path / "copy")) == digest
    retrained = tmp_path / "retrained"
    save_tiny_model(retrained, seed=1)
    assert (retrained / "model.safetensors").stat().st_size == (folder / "model.safetensors").stat().st_size
    assert weights_digest(str(retrained)) != digest
    other_shape = (tmp_path / "copy" / "config.json").read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05')
    (tmp_path / "copy" / "config.json").write_text(other_shape)
    assert weights_digest(str(tmp_path / "copy")) != digest
    assert weights_digest("acme/model") == "hub"


def changed(folder: Path, target: Path, change: Callable[[Path], Any]) -> str:
    shutil.copytree(folder, target)
    change(target)
    return str(target)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda path: [file.unlink() for file in path.glob("tokenizer*")],
            "has no tokenizer; save the tokenizer beside the weights",
        ),
        (lambda path: (path / "tokenizer.json").write_text("{}"), "cannot load a tokenizer from"),
        (lambda path: (path / "model.safetensors").unlink(), "cannot load a causal language model from"),
        (lambda path: (path / "model.safetensors").write_bytes(b"x"), "cannot load a causal language model from"),
        (lambda path: (path / "chat_template.jinja").unlink(), "has no chat template; use a chat model or add one to its folder"),
        (shutil.rmtree, "does not exist; give a folder, a Hub id, or `embedded`"),
    ],
)
def test_what_cannot_be_loaded_is_one_sentence(folder: Path, tmp_path: Path, change: Callable[[Path], Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        TransformersChatModel.from_pretrained(changed(folder, tmp_path / "model", change))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("named", [{"adapter": "./nowhere"}, {"dtype": "float17"}, {"max_batch_size": 0}])
def test_what_cannot_be_asked_of_a_model_is_refused(folder: Path, named: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        TransformersChatModel.from_pretrained(str(folder), **named)


def test_an_adapter_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    wider = tiny_model(tiny_tokenizer(), hidden=64)
    get_peft_model(wider, LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(tmp_path / "wider")
    with pytest.raises(ConfigurationError, match=r"cannot load a LoRA adapter from .*size mismatch"):
        TransformersChatModel.from_pretrained(str(folder), str(tmp_path / "wider"))


async def test_a_template_that_fails_names_the_roles(weights: Any) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    model = TransformersChatModel(weights, tokenizer, name="tiny")
    with pytest.raises(ConfigurationError) as caught:
        await model.complete(asked(CONVERSATIONS[2]))
    await model.aclose()
    assert str(caught.value) == "the chat template of tiny fails on a conversation with roles system, user: roles must alternate"


def test_a_tokenizer_pads_on_the_left(folder: Path) -> None:
    assert load_tokenizer(str(folder)).padding_side == "left"
