"""Chat templates fit for training: the same text as the model's own template, with the assistant's tokens marked.

A template that trains well has three properties, and all are checked on the tokenizer at hand before a run starts:
1. it renders exactly what the model's own template renders, so training and sampling see the same prompts;
2. it is prefix-preserving: a conversation's rendering starts with the rendering of its beginning, so a turn's tokens do not
   change when the conversation goes on;
3. `{% generation %}` markers enclose every assistant message *and its stop token*, so the model learns to stop.

TRL ships marked templates for many families; ChatML templates (SmolLM2 and its kin), which it does not know, are built here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulators.errors import ConfigurationError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PROBES: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "One?"}],
    [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "Two."}],
    [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Two."},
        {"role": "user", "content": "Three,\nfour?"},
        {"role": "assistant", "content": "Five: {six} <seven>."},
    ],
    [
        {"role": "system", "content": "Zero."},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Two."},
    ],
)


def training_chat_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a template with the three properties for this tokenizer.

    Raises:
        ConfigurationError: when none is known, or the one that is known fails a check; it says which.
    """
    from trl.chat_template_utils import get_training_chat_template, has_generation_markers

    name = tokenizer.name_or_path or type(tokenizer).__name__
    own = tokenizer.chat_template
    if not isinstance(own, str):
        raise ConfigurationError(f"the tokenizer of {name} has no single chat template; set tokenizer.chat_template")
    if has_generation_markers(own):
        template = own
    elif "<|im_start|>" in own and (chatml := _chatml_template(tokenizer)) is not None:
        template = chatml
    else:
        try:
            template = get_training_chat_template(tokenizer) or own
        except ValueError:
            raise ConfigurationError(
                f"no training chat template is known for {name}; set tokenizer.chat_template to one with "
                "{% generation %} markers around each assistant message and its stop token"
            ) from None
    check_training_template(tokenizer, template)
    return template


def check_training_template(tokenizer: PreTrainedTokenizerBase, template: str) -> None:
    """Check the three properties of the module's docstring.

    Raises:
        ConfigurationError: naming the property that does not hold.
    """
    name = tokenizer.name_or_path or type(tokenizer).__name__
    for messages in _PROBES:
        if messages[0]["role"] == "system" and not _takes_system(tokenizer):
            continue
        asked = messages[-1]["role"] == "user"
        if _render(tokenizer, messages, None, asked) != _render(tokenizer, messages, template, asked):
            raise ConfigurationError(f"the training chat template for {name} renders other text than the model's own template")
        _check_marks(tokenizer, template, messages, name)
    turns = _PROBES[2]
    for end in (1, 3):
        if not _render(tokenizer, turns[: end + 1], template, False).startswith(_render(tokenizer, turns[:end], template, True)):
            raise ConfigurationError(f"the chat template of {name} is not prefix-preserving: earlier turns change as it goes on")


def _check_marks(tokenizer: Any, template: str, messages: list[dict[str, str]], name: str) -> None:
    """Check that the marked tokens are the assistant's texts, each with its stop token, and nothing else."""
    encoded = tokenizer.apply_chat_template(
        messages, chat_template=template, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    marked = [token for token, mask in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True) if mask]
    text = tokenizer.decode(marked, skip_special_tokens=True)
    expected = [message["content"] for message in messages if message["role"] == "assistant"]
    if "".join(text.split()) != "".join("".join(expected).split()):
        raise ConfigurationError(f"the training chat template for {name} marks {text!r} where the assistant said {expected!r}")
    special = set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())
    if expected and sum(token in special for token in marked) < len(expected):
        raise ConfigurationError(
            f"the training chat template for {name} leaves the stop token unmarked: it would never be trained"
        )


def _chatml_template(tokenizer: Any) -> str | None:
    """Build a marked ChatML template with the model's own default system block; None where the model's format differs."""
    bare = _render(tokenizer, _PROBES[0], None, False)
    default_system, separator, rest = bare.partition("<|im_start|>user\n")
    if not separator or rest not in ("One?<|im_end|>\n", "One?<|im_end|>"):
        return None
    newline = "\\n" if rest.endswith("\n") else ""
    literal = default_system.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return (
        "{%- for message in messages -%}"
        f"{{%- if loop.first and message['role'] != 'system' -%}}{{{{- '{literal}' -}}}}{{%- endif -%}}"
        "{{- '<|im_start|>' + message['role'] + '\\n' -}}"
        "{%- if message['role'] == 'assistant' -%}"
        "{%- generation -%}{{- message['content'] + '<|im_end|>' -}}{%- endgeneration -%}"
        "{%- else -%}{{- message['content'] + '<|im_end|>' -}}{%- endif -%}"
        f"{{{{- '{newline}' -}}}}"
        "{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
    )


def _render(tokenizer: Any, messages: list[dict[str, str]], template: str | None, add_generation_prompt: bool) -> str:
    return str(
        tokenizer.apply_chat_template(
            messages, chat_template=template, tokenize=False, add_generation_prompt=add_generation_prompt
        )
    )


def _takes_system(tokenizer: Any) -> bool:
    """Some families (Gemma) refuse or fold a system message; a template is only held to what its model takes."""
    try:
        return "Zero." in _render(tokenizer, _PROBES[3], None, False)
    except Exception:  # templates raise whatever they like
        return False
