"""Tokenizers and models made offline in a moment: every family's chat format on a byte-level vocabulary, and a tiny Llama."""

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHATML = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)

CHATML_WITH_DEFAULT_SYSTEM = (
    "{%- if messages[0]['role'] != 'system' -%}{{- '<|im_start|>system\\nBe of help.<|im_end|>\\n' -}}{%- endif -%}" + CHATML
)
"""SmolLM2 and Qwen 2.5: a system block of the model's own where the conversation brings none."""

QWEN3 = (
    "{%- set ns = namespace(last=-1) -%}"
    "{%- for message in messages -%}{%- if message.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}"
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' -}}"
    "{%- if message.role == 'assistant' and loop.index0 > ns.last -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}"
    "{{- message.content + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "{{- '<|im_start|>assistant\\n' -}}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}"
    "{%- endif -%}"
)
"""Qwen 3: the thinking block stands in the last reply only, so earlier turns change as the conversation goes on."""

LLAMA3 = (
    "{{- bos_token -}}"
    "{%- if messages[0]['role'] == 'system' -%}"
    "{%- set system = messages[0]['content'] | trim -%}{%- set messages = messages[1:] -%}"
    "{%- else -%}{%- set system = '' -%}{%- endif -%}"
    "{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' + strftime_now('%d %b %Y') -}}"
    "{{- '\\n\\n' + system + '<|eot_id|>' -}}"
    "{%- for message in messages -%}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}"
)
"""Llama 3.1 and 3.2: a system block that is always there and holds the date; contents are trimmed."""

GEMMA3 = (
    "{{- bos_token -}}"
    "{%- if messages[0]['role'] == 'system' -%}"
    "{%- set before = messages[0]['content'] + '\\n\\n' -%}{%- set messages = messages[1:] -%}"
    "{%- else -%}{%- set before = '' -%}{%- endif -%}"
    "{%- for message in messages -%}"
    "{{- '<start_of_turn>' + ('model' if message['role'] == 'assistant' else 'user') + '\\n' -}}"
    "{{- (before if loop.first else '') + message['content'] | trim + '<end_of_turn>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}"
)
"""Gemma 3: the assistant is called model, a system message stands inside the first user turn."""

FAMILIES = {
    "smollm2": (CHATML_WITH_DEFAULT_SYSTEM, ("<|im_start|>", "<|im_end|>"), "<|im_end|>", "<|im_end|>"),
    "qwen2.5": (CHATML_WITH_DEFAULT_SYSTEM, ("<|im_start|>", "<|im_end|>", "<|endoftext|>"), "<|im_end|>", "<|endoftext|>"),
    "qwen3": (QWEN3, ("<|im_start|>", "<|im_end|>", "<|endoftext|>"), "<|im_end|>", "<|endoftext|>"),
    "llama3": (
        LLAMA3,
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|eot_id|>",
        "<|eot_id|>",
    ),
    "gemma3": (GEMMA3, ("<bos>", "<eos>", "<pad>", "<start_of_turn>", "<end_of_turn>"), "<eos>", "<pad>"),
}
"""Template, special tokens, end-of-text token and padding token of each family; SmolLM2 and Llama pad with their stop token."""

BEGINNINGS = {"llama3": "<|begin_of_text|>", "gemma3": "<bos>"}


def tiny_tokenizer(family: str = "chatml", texts: Sequence[str] = (), merges: int = 0) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer (no token is ever unknown) with a family's special tokens and chat format.

    The most frequent pairs of `texts` become `merges` longer tokens.
    """
    template, special, end, padding = FAMILIES.get(
        family, (CHATML, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), "<|im_end|>", "<|endoftext|>")
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + len(special) + merges,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(special),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts or ["x"], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=end,
        pad_token=padding,
        bos_token=BEGINNINGS.get(family),
        padding_side="left",
    )
    fast.chat_template = template
    return fast


def tiny_model(
    tokenizer: PreTrainedTokenizerFast, seed: int = 0, hidden: int = 32, layers: int = 2, spread: float = 0.2
) -> LlamaForCausalLM:
    """A Llama of some 50,000 random weights; untied and wide enough (`spread`) that a few steps change what it says."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        initializer_range=spread,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def save_tiny_model(folder: Path, family: str = "chatml", seed: int = 0) -> str:
    """Write a tiny model with its tokenizer and return the folder's name."""
    tokenizer = tiny_tokenizer(family)
    tiny_model(tokenizer, seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
