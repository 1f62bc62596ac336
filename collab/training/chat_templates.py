"""Chat templates fit for training: the same text as the model's own template, with the assistant's tokens marked.

A template that trains well has three properties, and all are checked on the tokenizer at hand before a run starts:
1. it renders exactly what the model's own template renders, so training and sampling see the same prompts;
2. it is prefix-preserving: a conversation's rendering starts with the rendering of its beginning, so a turn's tokens do not
   change when the conversation goes on;
3. `{% generation %}` markers enclose every assistant message *and its stop token*, so the model learns to stop.

The template is built from what the model's own template *renders* (head, system block, turns, stop token), not from its source,
so one builder serves every family that renders turn by turn: ChatML (SmolLM2, Qwen 2.5 and 3), Llama 3.x, Gemma, Phi and their
kin. Where a family renders otherwise, the template that TRL ships for it is taken.

Some own templates break property 2: Qwen 3 drops the thinking block of earlier replies when a conversation goes on. There the
training template renders every turn as its own template renders the last one (thinking off, as replies in a dialogue are
short), and it takes the place of the own template in sampling too: `sampling_chat_template`.
"""

from __future__ import annotations

import re
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from simulators.errors import ConfigurationError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Messages = list[dict[str, str]]

_PROBES: tuple[Messages, ...] = (
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

THINKING_OFF = {"enable_thinking": False}
"""Given to a model's own template: replies in a dialogue are short. A template without the switch does not look at it."""

_DATE_FORMAT = "%d %b %Y"
"""How Llama 3.2's template writes the date of today, which it puts at the head of every conversation."""


def training_chat_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a template with the three properties for this tokenizer.

    Raises:
        ConfigurationError: when none is known, or the one that is known fails a check; it says which.
    """
    from trl.chat_template_utils import get_training_chat_template, has_generation_markers

    own = _own_template(tokenizer)
    if has_generation_markers(own):
        template = own
    elif (built := _turnwise_template(tokenizer)) is not None:
        template = built
    else:
        try:
            template = get_training_chat_template(tokenizer) or own
        except ValueError:
            raise ConfigurationError(
                f"no training chat template is known for {_name(tokenizer)}; set tokenizer.chat_template to one with "
                "{% generation %} markers around each assistant message and its stop token"
            ) from None
    check_training_template(tokenizer, template)
    return template


def sampling_chat_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the template to sample (and serve) a trained model with: its own, or the unmarked training one where that differs.

    Raises:
        ConfigurationError: as `training_chat_template` does.
    """
    template = training_chat_template(tokenizer)
    if keeps_prefixes(tokenizer, None):
        return _own_template(tokenizer)
    return re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", template)


def check_training_template(tokenizer: PreTrainedTokenizerBase, template: str) -> None:
    """Check the three properties of the module's docstring.

    Raises:
        ConfigurationError: naming the property that does not hold.
    """
    name = _name(tokenizer)
    own_keeps_prefixes = keeps_prefixes(tokenizer, None)
    for messages in _PROBES:
        if messages[0]["role"] == "system" and not _takes_system(tokenizer):
            continue
        asked = messages[-1]["role"] == "user"
        several = sum(message["role"] == "assistant" for message in messages) > 1
        if (own_keeps_prefixes or not several) and (
            _render(tokenizer, messages, None, asked) != _render(tokenizer, messages, template, asked)
        ):
            raise ConfigurationError(f"the training chat template for {name} renders other text than the model's own template")
        _check_marks(tokenizer, template, messages, name)
    if not keeps_prefixes(tokenizer, template):
        raise ConfigurationError(f"the chat template of {name} is not prefix-preserving: earlier turns change as it goes on")


def keeps_prefixes(tokenizer: PreTrainedTokenizerBase, template: str | None) -> bool:
    """True where a conversation's rendering starts with the rendering of its beginning (None: the tokenizer's own template)."""
    turns = _PROBES[2]
    renderings = [_render(tokenizer, turns[:end], template, end % 2 == 1) for end in range(1, len(turns) + 1)]
    return all(longer.startswith(shorter) for shorter, longer in pairwise(renderings))


def _check_marks(tokenizer: Any, template: str, messages: Messages, name: str) -> None:
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


def _turnwise_template(tokenizer: Any) -> str | None:
    """Build a marked template from what the own one renders; None where that is not turn by turn with a stop token.

    In the text of [user, assistant, user] everything but the contents is literal: head, what closes a user turn, what opens and
    closes a reply, and what opens the next user turn. A system message is rendered as text before and after its content, the
    latter up to the first user's content (Gemma puts it inside the first user turn).
    """
    bare = _render(tokenizer, _PROBES[0], None, False)
    answered = _render(tokenizer, _PROBES[1], None, False)
    head, found, user_close = bare.partition("One?")
    if not found or not answered.startswith(bare):
        return None
    reply_open, found, reply_close = answered[len(bare) :].partition("Two.")
    cue = _render(tokenizer, _PROBES[0], None, True)[len(bare) :]
    stops = [token for token in map(str, _special_tokens(tokenizer)) if reply_close.startswith(token)]
    again = _render(tokenizer, [*_PROBES[1], {"role": "user", "content": "Three?"}], None, False)
    between, asked_again, _ = again.rpartition("Two.")[2].partition("Three?")
    if not found or not stops or cue != reply_open or not asked_again or not between.startswith(reply_close):
        return None
    stop = max(stops, key=len)
    trims = " One? " not in _render(tokenizer, [{"role": "user", "content": " One? "}], None, False)
    content = "(message['content'] | trim)" if trims else "message['content']"
    own = _own_template(tokenizer)
    literals = {
        "head": _literal(head, own),
        "user_open": _literal(between[len(reply_close) :], own),
        "user_close": _literal(user_close, own),
        "reply_open": _literal(reply_open, own),
        "stop": _literal(stop, own),
        "after_stop": _literal(reply_close[len(stop) :], own),
        "content": content,
        "system": _system_branch(tokenizer, content, own),
    }
    return _TURNWISE.format_map(literals)


_TURNWISE = (
    "{{%- for message in messages -%}}"
    "{{%- if message['role'] == 'system' -%}}{system}"
    "{{%- elif message['role'] == 'user' -%}}"
    "{{%- if loop.first -%}}{{{{- {head} -}}}}"
    "{{%- elif not (loop.index0 == 1 and messages[0]['role'] == 'system') -%}}{{{{- {user_open} -}}}}{{%- endif -%}}"
    "{{{{- {content} + {user_close} -}}}}"
    "{{%- elif message['role'] == 'assistant' -%}}"
    "{{{{- {reply_open} -}}}}{{%- generation -%}}{{{{- {content} + {stop} -}}}}{{%- endgeneration -%}}{{{{- {after_stop} -}}}}"
    "{{%- else -%}}{{{{- raise_exception('a message is by the system, the user or the assistant') -}}}}{{%- endif -%}}"
    "{{%- endfor -%}}"
    "{{%- if add_generation_prompt -%}}{{{{- {reply_open} -}}}}{{%- endif -%}}"
)


def _system_branch(tokenizer: Any, content: str, own: str) -> str:
    """Return how a system message is rendered, up to the first user's content; an exception where the model takes none."""
    if not _takes_system(tokenizer):
        return "{{- raise_exception('this model takes no system message') -}}"
    before, _, rest = _render(tokenizer, _PROBES[3][:2], None, False).partition("Zero.")
    after, _, _ = rest.partition("One?")
    return f"{{{{- {_literal(before, own)} + {content} + {_literal(after, own)} -}}}}"


def _literal(text: str, own: str) -> str:
    """Return text as a Jinja expression; today's date becomes the call that the own template made to write it."""
    today = datetime.now().strftime(_DATE_FORMAT)
    if "strftime_now" in own and today in text:
        before, _, after = text.partition(today)
        return f"({_quoted(before)} + strftime_now('{_DATE_FORMAT}') + {_quoted(after)})"
    return _quoted(text)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"


def _special_tokens(tokenizer: Any) -> list[str]:
    return [*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()]


def _own_template(tokenizer: Any) -> str:
    own = tokenizer.chat_template
    if not isinstance(own, str):
        raise ConfigurationError(f"the tokenizer of {_name(tokenizer)} has no single chat template; set tokenizer.chat_template")
    return own


def _render(tokenizer: Any, messages: Messages, template: str | None, add_generation_prompt: bool) -> str:
    """Render with thinking switched off where the template can switch it."""
    return str(
        tokenizer.apply_chat_template(
            messages, chat_template=template, tokenize=False, add_generation_prompt=add_generation_prompt, **THINKING_OFF
        )
    )


def _takes_system(tokenizer: Any) -> bool:
    """Some models refuse a system message; a template is only held to what its model takes."""
    try:
        return "Zero." in _render(tokenizer, _PROBES[3], None, False)
    except Exception:  # templates raise whatever they like
        return False


def _name(tokenizer: Any) -> str:
    return str(tokenizer.name_or_path or type(tokenizer).__name__)
