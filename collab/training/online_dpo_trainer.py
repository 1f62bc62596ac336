"""The trainer behind `train_online_dpo`; apart from it because it imports TRL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from collab.training.conversation_trainer import Batch, ConversationSource, ConversationTrainer
from collab.training.credit import outcome_advantages
from collab.training.episode import Episode

_TIE = 1e-9
"""MR gaps up to this are ties, whatever `min_gap` says."""

_PER_ROW = (
    "prompt_ids",
    "prompt_mask",
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "ref_per_token_logps",
    "sampling_per_token_logps",
)


class PairTrainer(ConversationTrainer):
    """The DPO loss over the best and worst reply of each group.

    A micro-batch holds pairs: tensors of (pairs, 2, tokens), chosen first, and a weight of 0 for groups without a pair. The loss
    is the mean over the pairs of the whole optimizer step, however they fall into micro-batches and ranks.
    """

    _name = "Online DPO over conversations"

    def __init__(self, source: ConversationSource, *, min_gap: float, **common: Any) -> None:
        super().__init__(source, **common)
        self._min_gap = max(min_gap, _TIE)

    def _rows_multiple(self, group_size: int, micro_batches: int) -> int:
        return group_size * micro_batches  # as many groups, hence pairs, for every micro-batch

    def _learn_from(self, batch: Batch, episodes: list[Episode], mode: str) -> Batch:
        values, mine = self._everyones(episodes)
        self._record_groups(values, outcome_advantages(values, "none")[mine], episodes, mode)
        size = self.num_generations if mode == "train" else self.num_generations_eval
        picked = [
            _pair([episode.reward for episode in episodes[at : at + size]], self._min_gap) for at in range(0, len(episodes), size)
        ]
        device = batch["completion_ids"].device
        rows = torch.tensor([[at * size + row for row in pair or (0, 0)] for at, pair in enumerate(picked)], device=device)
        weight = torch.tensor([float(pair is not None) for pair in picked], device=device)
        pairs: Batch = {name: batch[name][rows] for name in _PER_ROW if name in batch}
        pairs["weight"] = weight
        pairs["pairs_in_batch"] = self.accelerator.gather(weight.sum()).sum()
        self._record_pairs(episodes, rows.tolist(), picked, pairs["pairs_in_batch"])
        return pairs

    def _record_pairs(
        self, episodes: Sequence[Episode], rows: list[list[int]], picked: Sequence[Any], total: torch.Tensor
    ) -> None:
        """Log how many pairs there are, their mean MR gap, and how much longer the chosen replies are, in tokens."""
        sums = torch.zeros(2, device=total.device)
        for (chosen, rejected), pair in zip(rows, picked, strict=True):
            if pair is not None:
                best, worst = episodes[chosen], episodes[rejected]
                assert best.reward is not None and worst.reward is not None
                sums += torch.tensor([best.reward - worst.reward, float(len(best.completion_ids) - len(worst.completion_ids))])
        gap, length = self.accelerator.reduce(sums, reduction="sum").tolist()
        self._note("pairs/count", total.item())
        if total:
            self._note("pairs/mr_gap", gap / total.item())
            self._note("pairs/length_gap", length / total.item())

    def _rows_of(self, inputs: Batch) -> Batch:
        flat = {name: inputs[name].flatten(0, 1) for name in _PER_ROW if name in inputs}
        return flat | {"weight": inputs["weight"], "pairs_in_batch": inputs["pairs_in_batch"]}

    def _trained_mask(self, inputs: Batch) -> torch.Tensor:
        mask: torch.Tensor = super()._trained_mask(inputs) * inputs["weight"].repeat_interleave(2)[:, None]
        return mask

    def _loss(self, model: Any, inputs: Batch) -> torch.Tensor:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        width = inputs["completion_ids"].size(1)
        logprobs, _, _ = self._get_per_token_logps_and_entropies(model, ids, attention, width)
        written = inputs["completion_mask"] * inputs["tool_mask"]
        scores = ((logprobs - inputs["ref_per_token_logps"]) * written).sum(1).view(-1, 2)
        margins = self.beta * (scores[:, 0] - scores[:, 1])
        weight = inputs["weight"]
        training = self.model.training
        # The mean over all pairs of the optimizer step: ranks are averaged by DDP, micro-batches are summed by the trainer.
        share = self.current_gradient_accumulation_steps / self.args.steps_per_generation if training else 1.0
        normalizer = inputs["pairs_in_batch"].clamp(min=1.0) / self.accelerator.num_processes * share
        loss: torch.Tensor = -(F.logsigmoid(margins) * weight).sum() / normalizer
        self._record_margins(scores.detach(), margins.detach(), weight)
        return loss

    def _record_margins(self, scores: torch.Tensor, margins: torch.Tensor, weight: torch.Tensor) -> None:
        rewards = self.beta * scores * weight[:, None]
        sums = torch.stack([rewards[:, 0].sum(), rewards[:, 1].sum(), ((margins > 0) * weight).sum(), weight.sum()])
        chosen, rejected, right, count = self.accelerator.reduce(sums, reduction="sum").tolist()
        if count:
            self._note("dpo/chosen_reward", chosen / count)
            self._note("dpo/rejected_reward", rejected / count)
            self._note("dpo/accuracy", right / count)


def _pair(rewards: Sequence[float | None], min_gap: float) -> tuple[int, int] | None:
    """Return the places of the best and the worst reply of a group, None where there are no two with a gap above `min_gap`."""
    scored = [(reward, index) for index, reward in enumerate(rewards) if reward is not None]
    if len(scored) < 2:
        return None
    best = max(scored, key=lambda pair: (pair[0], -pair[1]))
    worst = min(scored)
    return (best[1], worst[1]) if best[0] - worst[0] > min_gap else None
