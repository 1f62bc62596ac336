"""A running batch on a Transformers model: every row with its own sampling settings, seed, stop strings and length.

`model.generate` pads a batch until its longest row is done and takes one set of sampling settings. Here equal prompts are
prefilled once and fork from the same cache, finished rows leave the batch at once, new rows join it between two steps, and each
row draws from its own generator, so a row's sample does not depend on its neighbours (up to the rounding of batched kernels).
"""

from __future__ import annotations

import math
import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import DynamicLayer

from simulators.chat_models.dispatcher import OutOfMemory, Row
from simulators.chat_models.protocol import FinishReason, SamplingSettings
from simulators.chat_models.token_sampler import SampledReply
from simulators.errors import ChatModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_REDRAWS = 12
"""How often a row draws again after a token outside its top-k or top-p cut, before the vocabulary is sorted after all."""


@dataclass(slots=True, eq=False)
class Draw:
    """A row that is being decoded: what has been sampled, and the log-probs at the row's temperature and before its cuts."""

    row: Row
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    uniform: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.uniform = random.Random(self.row.seed)

    @property
    def sampling(self) -> SamplingSettings:
        return self.row.request.sampling

    @property
    def length(self) -> int:
        """All tokens of the row, the one included that the model has not read yet."""
        return len(self.row.request.prompt_ids) + len(self.row.request.prefix_ids) + len(self.token_ids)


@dataclass(slots=True)
class Batch:
    """Rows that are decoded together. The cache holds all their tokens but the last, padded on the left to `width`."""

    draws: list[Draw]
    cache: Any
    cache_name: str
    width: int

    @property
    def joins(self) -> bool:
        """True where the cache is plain keys and values; those of sliding windows and linear attention cannot be shifted."""
        layers = getattr(self.cache, "layers", ())
        return bool(layers) and all(type(layer) is DynamicLayer and layer.is_initialized for layer in layers)

    def keep(self, going: Sequence[int], device: torch.device) -> None:
        """Go on with some of the rows, without the padding that none of them needs."""
        self.draws = [self.draws[index] for index in going]
        places = torch.tensor(going, device=device)
        if not self.joins:
            self.cache.batch_select_indices(places)
            return
        excess = self.width - max(draw.length for draw in self.draws) + 1
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys[places, :, excess:], layer.values[places, :, excess:]
        self.width -= excess

    def join(self, other: Batch) -> None:
        """Take the rows of another batch in."""
        self.draws += other.draws
        self.width = max(self.width, other.width)
        for layer, others in zip(self.cache.layers, other.cache.layers, strict=True):
            layer.keys = _stacked(layer.keys, others.keys, self.width)
            layer.values = _stacked(layer.values, others.values, self.width)


def _stacked(first: torch.Tensor, second: torch.Tensor, width: int) -> torch.Tensor:
    """Put (B, H, T, D) keys or values on top of others, with zeros on the left up to `width` tokens."""
    whole = first.new_zeros(len(first) + len(second), first.shape[1], width, first.shape[3])
    whole[: len(first), :, width - first.shape[2] :] = first
    whole[len(first) :, :, width - second.shape[2] :] = second
    return whole


class TransformersEngine:
    """See the module. The model is used as it stands: put it in eval mode first.

    It must be decoder-only. `eos_ids` end a reply; `precision` makes the context that forward passes run in, a trainer's autocast
    for one.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        eos_ids: frozenset[int],
        precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._precision = precision
        self._batch: Batch | None = None
        self._finished: list[Row] = []

    @property
    def joins(self) -> bool:
        return self._batch is None or self._batch.joins

    @contextmanager
    def working(self) -> Iterator[None]:
        """Without gradients, in the given precision; what an out-of-memory error leaves behind is freed."""
        with torch.inference_mode(), self._precision():
            try:
                yield
            except torch.OutOfMemoryError as error:
                traceback.clear_frames(error.__traceback__)  # they hold on to tensors
                self.close()
                torch.cuda.empty_cache()
                raise OutOfMemory(str(error)) from None

    def admit(self, rows: Sequence[Row]) -> None:
        """Read the prompts of new rows, equal ones once, and draw the first token of each."""
        if not rows:
            return
        forks: dict[tuple[int, ...], int] = {}
        fork_of_row = [forks.setdefault(tuple(row.prompt), len(forks)) for row in rows]
        longest = max(map(len, forks))
        device = self._model.device
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in forks], device=device)
        mask = _mask([len(prompt) for prompt in forks], longest, device)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        output = self._model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1)
        name = "cache" if "cache" in output else "past_key_values"  # renamed in the course of Transformers 5
        logits, places = output.logits[:, -1], torch.tensor(fork_of_row, device=device)
        if len(forks) < len(rows):
            output[name].batch_select_indices(places)
            logits = logits[places]
        batch = self._advanced(Batch([Draw(row) for row in rows], output[name], name, longest), logits)
        if batch is not None and self._batch is not None:
            self._batch.join(batch)
        else:
            self._batch = self._batch or batch

    def step(self) -> list[Row]:
        """Draw a token for every row; return those that are finished."""
        if not self._finished and (batch := self._batch) is not None:
            batch.width += 1
            lengths = [draw.length for draw in batch.draws]
            device = self._model.device
            output = self._model(
                input_ids=torch.tensor([[draw.token_ids[-1]] for draw in batch.draws], device=device),
                attention_mask=_mask(lengths, batch.width, device),
                position_ids=torch.tensor(lengths, device=device)[:, None] - 1,
                use_cache=True,
                **{batch.cache_name: batch.cache},
            )
            self._batch = self._advanced(batch, output.logits[:, -1])
        finished, self._finished = self._finished, []
        return finished

    def abort(self, rows: Sequence[Row]) -> None:
        """Let go of rows."""
        self._finished = [row for row in self._finished if row not in rows]
        if rows and self._batch is not None:
            self._batch = self._kept(self._batch, [row not in rows for row in (draw.row for draw in self._batch.draws)])

    def close(self) -> None:
        """Let go of everything."""
        self._batch, self._finished = None, []

    def _advanced(self, batch: Batch, logits: torch.Tensor) -> Batch | None:
        """Draw a token for every row of a batch; return the batch without the rows that are finished by it."""
        drawn = zip(batch.draws, *_sample(logits, batch.draws), strict=True)
        return self._kept(batch, [not self._take(*each) for each in drawn])

    def _kept(self, batch: Batch, going: list[bool]) -> Batch | None:
        if not all(going) and any(going):
            batch.keep([index for index, goes_on in enumerate(going) if goes_on], self._model.device)
        return batch if any(going) else None

    def _take(self, draw: Draw, token: int, logprob: float) -> bool:
        """Append a token to a row; return True when the row is finished."""
        draw.token_ids.append(token)
        draw.logprobs.append(logprob)
        prefix, settings = draw.row.request.prefix_ids, draw.sampling
        if math.isnan(logprob):
            draw.row.error = ChatModelError("the model's logits are not numbers; its weights are damaged")
            self._finished.append(draw.row)
            return True
        if token in self._eos_ids:
            return self._finish(draw, "stop", self._text(prefix + draw.token_ids[:-1]))
        if settings.stop:
            text = self._text(prefix + draw.token_ids)
            given = len(self._text(prefix)) if prefix else 0
            if found := [(at, stop) for stop in settings.stop if (at := text.find(stop, given)) >= 0]:
                at, stop = min(found)
                return self._finish(draw, "stop", text[: at + len(stop) if settings.include_stop else at])
        if len(draw.token_ids) >= settings.max_tokens:
            return self._finish(draw, "length", self._text(prefix + draw.token_ids))
        return False

    def _finish(self, draw: Draw, reason: FinishReason, text: str) -> bool:
        prefix = draw.row.request.prefix_ids
        draw.row.reply = SampledReply((*prefix, *draw.token_ids), (*(0.0 for _ in prefix), *draw.logprobs), text, reason)
        self._finished.append(draw.row)
        return True

    def _text(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))


def _mask(lengths: Sequence[int], width: int, device: torch.device) -> torch.Tensor:
    """Return the (B, width) mask of rows of these lengths that are padded on the left."""
    padding = width - torch.tensor(lengths, device=device)
    return (torch.arange(width, device=device) >= padding[:, None]).long()


def _sample(logits: torch.Tensor, rows: Sequence[Draw]) -> tuple[list[int], list[float]]:
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
        draws = torch.tensor([rows[index].uniform.random() for index in pending], device=logits.device)
        each = slice(None) if len(pending) == len(rows) else at
        drawn = torch.searchsorted(cumulative[each], draws[:, None] * cumulative[each, -1:], right=True)[:, 0]
        tokens[at] = drawn.clamp(max=logits.shape[-1] - 1)
        pending = _outside_cut(probabilities, tokens, rows, pending)
    for index in pending:
        tokens[index] = _sample_sorted(probabilities[index], rows[index])
    logprobs = probabilities.gather(1, tokens[:, None])[:, 0].clamp(min=1e-45).log()
    return tokens.tolist(), logprobs.tolist()


def _outside_cut(probabilities: torch.Tensor, tokens: torch.Tensor, rows: Sequence[Draw], drawn: list[int]) -> list[int]:
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


def _sample_sorted(probabilities: torch.Tensor, row: Draw) -> int:
    """Draw from (V,) probabilities with the tokens in order: for cuts so narrow that rejection would go on for long."""
    ordered, order = probabilities.sort(descending=True, stable=True)
    cumulative = ordered.cumsum(-1)
    kept = min(len(ordered), row.sampling.top_k or len(ordered))
    if row.sampling.top_p < 1:  # the smallest set that reaches top_p, at least one token
        kept = min(kept, int((cumulative < _nucleus(probabilities, row.sampling)).sum()) + 1)
    draw = row.uniform.random() * float(cumulative[kept - 1])
    place = min(int(torch.searchsorted(cumulative[:kept], draw, right=True)), kept - 1)
    return int(order[place])
