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

_NUCLEUS_GUESS = 512
"""How many of the likeliest tokens are looked at first for a top-p cut; a nucleus that is larger falls back on all of them."""


@dataclass(slots=True)
class Row:
    """One sample to draw: `prompt_ids` with the forced `prefix_ids` after them, and how to go on.

    After decoding, `token_ids` holds the prefix and the sampled ids (with the stop token, where one was sampled) and `logprobs`
    one number each, under the distribution that was sampled from; 0.0 for the prefix.
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
        found = [(at, stop) for stop in row.sampling.stop if (at := text.find(stop)) >= 0]
        if found:
            at, stop = min(found)
            row.finish_reason, row.text = "stop", text[: at + len(stop) if row.sampling.include_stop else at]
            return True
    if row.sampled >= row.sampling.max_tokens:
        row.text = tokenizer.decode(row.token_ids, skip_special_tokens=True)
        return True
    return False


def _sample(logits: torch.Tensor, rows: list[Row]) -> tuple[list[int], list[float]]:
    """Draw one token per row from (B, V) logits; return token ids and their log-probabilities (natural log)."""
    logits = logits.float()
    temperatures = torch.tensor([row.sampling.temperature or 1.0 for row in rows], device=logits.device)
    logits = logits / temperatures[:, None]
    greedy = [row.sampling.temperature == 0 for row in rows]
    cut = any((row.sampling.top_p < 1 or row.sampling.top_k) and not flat for row, flat in zip(rows, greedy, strict=True))
    if cut or any(greedy):
        return _sample_sorted(logits, rows, greedy)
    probabilities = logits.softmax(-1)
    cumulative = probabilities.cumsum(-1)
    draws = torch.tensor([row._uniform.random() for row in rows], device=logits.device)[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, draws, right=True).clamp(max=logits.shape[-1] - 1)
    return tokens[:, 0].tolist(), probabilities.gather(1, tokens)[:, 0].clamp(min=1e-45).log().tolist()


def _sample_sorted(logits: torch.Tensor, rows: list[Row], greedy: list[bool]) -> tuple[list[int], list[float]]:
    """Draw with top-k and top-p cuts: tokens in order of probability, cut per row, and one uniform number each."""
    vocabulary = logits.shape[-1]
    log_total = logits.logsumexp(-1, keepdim=True)
    size = min(vocabulary, _NUCLEUS_GUESS)
    while True:
        top, order = logits.topk(size, dim=-1)
        probabilities = (top - log_total).exp()
        cumulative = probabilities.cumsum(-1)
        covered = cumulative[:, -1].tolist()
        if size == vocabulary or all(
            flat or covered[index] >= row.sampling.top_p or 0 < row.sampling.top_k <= size
            for index, (row, flat) in enumerate(zip(rows, greedy, strict=True))
        ):
            break
        size = vocabulary
    tokens, logprobs = [], []
    for index, (row, flat) in enumerate(zip(rows, greedy, strict=True)):
        if flat:
            tokens.append(int(order[index, 0]))
            logprobs.append(math.log(max(float(probabilities[index, 0]), 1e-45)))
            continue
        kept = size
        if row.sampling.top_k:
            kept = min(kept, row.sampling.top_k)
        if row.sampling.top_p < 1:  # the smallest set that reaches top_p, at least one token
            kept = min(kept, int((cumulative[index, :kept] < row.sampling.top_p).sum()) + 1)
        mass = float(cumulative[index, kept - 1])
        draw = row._uniform.random() * mass
        place = min(int(torch.searchsorted(cumulative[index, :kept], draw, right=True)), kept - 1)
        tokens.append(int(order[index, place]))
        logprobs.append(math.log(max(float(probabilities[index, place]), 1e-45) / mass))
    return tokens, logprobs
