"""Batched decoding with a Transformers model: every row with its own sampling settings, seed, stop strings and length.

`model.generate` pads a batch until its longest row is done and takes one set of sampling settings. Here equal prompts are
prefilled once and fork from the same cache, finished rows leave the batch at once, and each row draws from its own generator,
so a row's sample does not depend on its neighbours (up to the rounding of batched kernels).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from simulators.chat_models.protocol import FinishReason, SamplingSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_REDRAWS = 12
"""How often a row draws again after a token outside its top-k or top-p cut, before the vocabulary is sorted after all."""


@dataclass(slots=True)
class Row:
    """One sample to draw: `prompt_ids` with the forced `prefix_ids` after them, and how to go on.

    After decoding, `token_ids` holds the prefix and the sampled ids (with the stop token, where one was sampled) and `logprobs`
    one number each, at the row's temperature and before its cuts; 0.0 for the prefix.
    """

    prompt_ids: list[int]
    sampling: SamplingSettings
    seed: int
    prefix_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason = "length"
    _uniform: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._uniform = random.Random(self.seed)
        self.token_ids = list(self.prefix_ids)
        self.logprobs = [0.0] * len(self.prefix_ids)

    @property
    def sampled(self) -> int:
        return len(self.token_ids) - len(self.prefix_ids)


@torch.inference_mode()
def decode(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[Row], eos_ids: frozenset[int]) -> None:
    """Fill in `token_ids`, `logprobs`, `text` and `finish_reason` of every row.

    The model must be decoder-only and hold its cache in a `DynamicCache`; it is used as it stands (put it in eval mode first).
    """
    inputs, fork_of_row = _unique_prompts(rows)
    device = model.device
    longest = max(map(len, inputs))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in inputs], device=device)
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in inputs], device=device)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    output = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1)
    cache_name = "cache" if "cache" in output else "past_key_values"  # renamed in the course of Transformers 5
    cache, logits = output[cache_name], output.logits[:, -1]
    forks = torch.tensor(fork_of_row, device=device)
    if fork_of_row != list(range(len(inputs))):
        cache.batch_select_indices(forks)
    logits, mask, position = logits[forks], mask[forks], positions[forks, -1:]
    active = list(rows)
    while True:
        chosen, logprobs = _sample(logits, active)
        if any(map(math.isnan, logprobs)):
            raise FloatingPointError("the model's logits are not numbers; its weights are damaged")
        finished = [
            _take(row, token, logprob, tokenizer, eos_ids) for row, token, logprob in zip(active, chosen, logprobs, strict=True)
        ]
        if all(finished):
            return
        tokens = torch.tensor(chosen, device=device)[:, None]
        if any(finished):
            going = torch.tensor([index for index, done in enumerate(finished) if not done], device=device)
            cache.batch_select_indices(going)
            tokens, mask, position = tokens[going], mask[going], position[going]
            active = [row for row, done in zip(active, finished, strict=True) if not done]
        mask = torch.cat([mask, mask.new_ones(len(active), 1)], dim=1)
        position = position + 1
        output = model(input_ids=tokens, attention_mask=mask, position_ids=position, use_cache=True, **{cache_name: cache})
        logits = output.logits[:, -1]


def _unique_prompts(rows: list[Row]) -> tuple[list[list[int]], list[int]]:
    """Return the distinct token sequences to prefill, and for each row which of them it goes on from."""
    index_of: dict[tuple[int, ...], int] = {}
    fork_of_row = [index_of.setdefault((*row.prompt_ids, *row.prefix_ids), len(index_of)) for row in rows]
    return [list(prompt) for prompt in index_of], fork_of_row


def _take(row: Row, token: int, logprob: float, tokenizer: Any, eos_ids: frozenset[int]) -> bool:
    """Append one sampled token to a row; return True when the row is finished, with its text set."""
    row.token_ids.append(token)
    row.logprobs.append(logprob)
    if token in eos_ids:
        row.finish_reason = "stop"
        row.text = tokenizer.decode(row.token_ids[:-1], skip_special_tokens=True)
        return True
    if row.sampling.stop:
        text = tokenizer.decode(row.token_ids, skip_special_tokens=True)
        prefix = len(tokenizer.decode(row.prefix_ids, skip_special_tokens=True)) if row.prefix_ids else 0
        found = [(at, stop) for stop in row.sampling.stop if (at := text.find(stop, prefix)) >= 0]
        if found:
            at, stop = min(found)
            row.finish_reason, row.text = "stop", text[: at + len(stop) if row.sampling.include_stop else at]
            return True
    if row.sampled >= row.sampling.max_tokens:
        row.text = tokenizer.decode(row.token_ids, skip_special_tokens=True)
        return True
    return False


def _sample(logits: torch.Tensor, rows: list[Row]) -> tuple[list[int], list[float]]:
    """Draw one token per row from (B, V) logits; return token ids and their log-probabilities (natural log).

    Each row draws by inverse CDF with its own uniform numbers. Top-k and top-p cuts are made by rejection: a drawn token lies
    inside the cut exactly if few enough tokens, of little enough mass together, are likelier. That needs no sorting of the
    vocabulary, which would cost a fifth of a decoding step.
    """
    temperatures = torch.tensor([row.sampling.temperature or 1.0 for row in rows], device=logits.device)
    probabilities = (logits.float() / temperatures[:, None]).softmax(-1)
    tokens = probabilities.argmax(-1)
    pending = [index for index, row in enumerate(rows) if row.sampling.temperature > 0]
    cumulative = probabilities.cumsum(-1) if pending else probabilities
    for _ in range(_REDRAWS):
        if not pending:
            break
        at = torch.tensor(pending, device=logits.device)
        draws = torch.tensor([rows[index]._uniform.random() for index in pending], device=logits.device)
        each = slice(None) if len(pending) == len(rows) else at
        drawn = torch.searchsorted(cumulative[each], draws[:, None] * cumulative[each, -1:], right=True)[:, 0]
        tokens[at] = drawn.clamp(max=logits.shape[-1] - 1)
        pending = _outside_cut(probabilities, tokens, rows, pending)
    for index in pending:
        tokens[index] = _sample_sorted(probabilities[index], rows[index])
    logprobs = probabilities.gather(1, tokens[:, None])[:, 0].clamp(min=1e-45).log()
    return tokens.tolist(), logprobs.tolist()


def _outside_cut(probabilities: torch.Tensor, tokens: torch.Tensor, rows: list[Row], drawn: list[int]) -> list[int]:
    """Return those of the rows in `drawn` whose token lies outside the row's top-k or top-p cut."""
    cut = [index for index in drawn if rows[index].sampling.top_p < 1 or rows[index].sampling.top_k]
    if not cut:
        return []
    among = probabilities if len(cut) == len(rows) else probabilities[torch.tensor(cut, device=probabilities.device)]
    likelier = among > among.gather(1, tokens[cut][:, None])
    mass = (among * likelier).sum(-1).tolist()
    count = likelier.sum(-1).tolist()
    return [
        index
        for place, index in enumerate(cut)
        if mass[place] >= _nucleus(among[place], rows[index].sampling) or 0 < rows[index].sampling.top_k <= count[place]
    ]


def _nucleus(probabilities: torch.Tensor, sampling: SamplingSettings) -> float:
    """Return the mass that a top-p cut keeps: top-p of what a top-k cut has left, as Transformers and vLLM have it."""
    if not sampling.top_k or sampling.top_p == 1:
        return sampling.top_p
    return sampling.top_p * float(probabilities.topk(min(sampling.top_k, len(probabilities))).values.sum())


def _sample_sorted(probabilities: torch.Tensor, row: Row) -> int:
    """Draw from (V,) probabilities with the tokens in order: for cuts so narrow that rejection would go on for long."""
    ordered, order = probabilities.sort(descending=True, stable=True)
    cumulative = ordered.cumsum(-1)
    kept = min(len(ordered), row.sampling.top_k or len(ordered))
    if row.sampling.top_p < 1:  # the smallest set that reaches top_p, at least one token
        kept = min(kept, int((cumulative < _nucleus(probabilities, row.sampling)).sum()) + 1)
    draw = row._uniform.random() * float(cumulative[kept - 1])
    place = min(int(torch.searchsorted(cumulative[:kept], draw, right=True)), kept - 1)
    return int(order[place])
