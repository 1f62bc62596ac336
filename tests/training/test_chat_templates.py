"""Every family's training template: the text of its own template, golden masks, stop tokens, prefixes, exact tokens."""

from datetime import datetime
from typing import Any

import pytest

from collab.training.chat_templates import (
    check_training_template,
    keeps_prefixes,
    sampling_chat_template,
    training_chat_template,
)
from collab.training.turn_tokens import TurnTokens
from simulators.conversation import Message
from simulators.errors import ConfigurationError
from tests.training.tiny_models import CHATML, FAMILIES, tiny_tokenizer

CONVERSATION = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "Why\nso?"},
    {"role": "assistant", "content": "As it is: {so}."},
]

GOLDEN = {
    "smollm2": (
        "<|im_start|>system\nBe of help.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[Yes?<|im_end|>]\n"
        "<|im_start|>user\nWhy\nso?<|im_end|>\n<|im_start|>assistant\n[As it is: {so}.<|im_end|>]\n"
    ),
    "qwen3": (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n[Yes?<|im_end|>]\n"
        "<|im_start|>user\nWhy\nso?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n[As it is: {so}.<|im_end|>]\n"
    ),
    "llama3": (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday: TODAY\n\n<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n[Yes?<|eot_id|>]"
        "<|start_header_id|>user<|end_header_id|>\n\nWhy\nso?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n[As it is: {so}.<|eot_id|>]"
    ),
    "gemma3": (
        "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n[Yes?<end_of_turn>]\n"
        "<start_of_turn>user\nWhy\nso?<end_of_turn>\n<start_of_turn>model\n[As it is: {so}.<end_of_turn>]\n"
    ),
}
GOLDEN["qwen2.5"] = GOLDEN["smollm2"]
"""The rendering of CONVERSATION, with what is trained in brackets."""

families = pytest.mark.parametrize("family", FAMILIES)


def marked(tokenizer: Any, template: str) -> str:
    """Render CONVERSATION with brackets around what the template marks."""
    encoded = tokenizer.apply_chat_template(
        CONVERSATION, chat_template=template, return_dict=True, return_assistant_tokens_mask=True
    )
    text, inside = "", 0
    for token, mask in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True):
        text += {(0, 1): "[", (1, 0): "]"}.get((inside, mask), "") + tokenizer.decode([token])
        inside = mask
    return text + "]" * inside


@families
def test_trained_tokens_are_the_assistants_with_their_stop_token(family: str) -> None:
    tokenizer = tiny_tokenizer(family)
    golden = GOLDEN[family].replace("TODAY", datetime.now().strftime("%d %b %Y"))
    assert marked(tokenizer, training_chat_template(tokenizer)) == golden


@families
def test_training_template_keeps_prefixes_and_takes_a_system_message(family: str) -> None:
    tokenizer = tiny_tokenizer(family)
    template = training_chat_template(tokenizer)
    assert keeps_prefixes(tokenizer, template)
    system = [{"role": "system", "content": "Be short."}, *CONVERSATION[:2]]
    rendered = tokenizer.apply_chat_template(system, chat_template=template, tokenize=False)
    assert rendered == tokenizer.apply_chat_template(system, tokenize=False, enable_thinking=False)
    assert "Be short." in rendered


@families
def test_a_conversation_grows_by_the_tokens_that_the_whole_of_it_has(family: str) -> None:
    """Token round-trip: prompt + sampled reply + what comes between + sampled reply = the tokens of the whole conversation."""
    tokenizer = tiny_tokenizer(family)
    tokens = TurnTokens.of(tokenizer, None)
    messages = tuple(Message(**message) for message in [*CONVERSATION, {"role": "user", "content": "Go on."}])
    grown = tokens.prompt_ids(messages[:1])
    for reply, user in ((messages[1], messages[2]), (messages[3], messages[4])):
        sampled = [*tokens.encode(reply.content), tokens.stop_id]
        assert tokens.text(sampled) == reply.content
        grown += sampled + tokens.between_replies(sampled, (user,))
    assert grown == tokens.prompt_ids(messages)


@families
def test_a_reply_that_was_cut_is_closed_by_a_stop_token_that_is_not_its_own(family: str) -> None:
    tokens = TurnTokens.of(tiny_tokenizer(family), None)
    cut = tokens.encode("As it")
    closed = [*cut, tokens.stop_id]
    assert tokens.between_replies(cut, (Message("user", "Go on."),)) == [
        tokens.stop_id,
        *tokens.between_replies(closed, (Message("user", "Go on."),)),
    ]


def test_a_reply_that_ends_in_another_end_token_is_closed_too() -> None:
    tokens = TurnTokens.of(tiny_tokenizer("gemma3"), None)
    end_of_text = tokens.tokenizer.eos_token_id
    assert end_of_text in tokens.eos_ids and end_of_text != tokens.stop_id
    assert tokens.between_replies([*tokens.encode("No"), end_of_text], (Message("user", "Why?"),))[0] == tokens.stop_id
    assert tokens.text([*tokens.encode("No"), end_of_text]) == "No"


def test_only_a_template_that_rewrites_turns_is_replaced_for_sampling() -> None:
    for family, (own, *_) in FAMILIES.items():
        tokenizer = tiny_tokenizer(family)
        template = sampling_chat_template(tokenizer)
        assert (template == own) == (family != "qwen3")
        assert "generation" not in template.replace("add_generation_prompt", "")
    tokenizer = tiny_tokenizer("qwen3")
    assert not keeps_prefixes(tokenizer, None)
    assert keeps_prefixes(tokenizer, sampling_chat_template(tokenizer))


def test_todays_date_is_rendered_anew_each_day() -> None:
    template = training_chat_template(tiny_tokenizer("llama3"))
    assert "strftime_now('%d %b %Y')" in template and datetime.now().strftime("%d %b %Y") not in template


MARKED = CHATML.replace(
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}",
    "{{- '<|im_start|>' + message['role'] + '\\n' -}}"
    "{%- if message['role'] == 'assistant' -%}{%- generation -%}{{- message['content'] + '<|im_end|>' -}}{%- endgeneration -%}"
    "{%- else -%}{{- message['content'] + '<|im_end|>' -}}{%- endif -%}{{- '\\n' -}}",
)


def test_a_template_that_is_marked_already_is_taken_as_it_is() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = MARKED
    assert training_chat_template(tokenizer) == MARKED


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("'<|im_end|>' -}}{%- endgeneration -%}", "'' -}}{%- endgeneration -%}{{- '<|im_end|>' -}}"), "stop token unmarked"),
        (("{%- generation -%}", "{%- generation -%}{{- 'Sure! ' -}}"), "renders other text"),
        (("'\\n' -}}{%- if", "'\\n ' -}}{%- if"), "renders other text"),
    ],
)
def test_a_template_that_breaks_a_property_is_refused(change: tuple[str, str], complaint: str) -> None:
    assert change[0] in MARKED
    with pytest.raises(ConfigurationError, match=complaint):
        check_training_template(tiny_tokenizer(), MARKED.replace(*change))


def test_a_template_whose_turns_change_is_refused() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = MARKED.replace(
        "message['content'] + '<|im_end|>' -}}{%- endif",
        "message['content'] + (messages | length | string) + '<|im_end|>' -}}{%- endif",
    )
    with pytest.raises(ConfigurationError, match="not prefix-preserving"):
        training_chat_template(tokenizer)


def test_a_tokenizer_without_a_template_is_refused() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ConfigurationError, match="has no single chat template"):
        training_chat_template(tokenizer)


def test_an_unknown_format_is_refused_with_what_to_do() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{%- for message in messages -%}{{- message['content'] -}}{%- endfor -%}"
    with pytest.raises(ConfigurationError, match=r"set tokenizer\.chat_template to one with"):
        training_chat_template(tokenizer)
