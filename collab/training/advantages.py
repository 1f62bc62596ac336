"""Advantages from rewards and values, token by token: what PPO learns from.

All tensors are (B, T) over completion tokens; `mask` is 1 on the policy's tokens. Tokens of the user are skipped, not discounted:
the value that a policy token looks ahead to is that of the *next policy token*, across the user turn between them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Reduce = Callable[[torch.Tensor], torch.Tensor]
"""Sums a tensor over all ranks, on every rank."""


def generalized_advantages(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, gae_lambda: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return advantages and returns by GAE (Schulman et al. 2016, 1506.02438, equation 16), 0 where the mask is 0.

    delta_t = r_t + gamma V_t+1 - V_t and A_t = delta_t + gamma lambda A_t+1, where t+1 is the next policy token; after the last
    one both V and A are 0. Returns are A + V, the critic's targets.
    """
    advantages = torch.zeros_like(values)
    following = torch.zeros_like(values[:, 0])
    next_value = torch.zeros_like(values[:, 0])
    for t in range(values.size(1) - 1, -1, -1):
        written = mask[:, t].bool()
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        here = delta + gamma * gae_lambda * following
        advantages[:, t] = torch.where(written, here, advantages[:, t])
        following = torch.where(written, here, following)
        next_value = torch.where(written, values[:, t], next_value)
    return advantages, (advantages + values) * mask


def whitened(advantages: torch.Tensor, mask: torch.Tensor, reduce: Reduce) -> torch.Tensor:
    """Return advantages with mean 0 and variance 1 over the policy tokens of all ranks, exactly, 0 elsewhere."""
    mean, variance, count = _moments(advantages, mask, reduce)
    if count < 2:
        return advantages * mask
    result: torch.Tensor = (advantages - mean) * torch.rsqrt(variance + 1e-8) * mask
    return result


def explained_variance(returns: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, reduce: Reduce) -> float | None:
    """Return 1 - Var(returns - values) / Var(returns) over the masked tokens of all ranks; None for constant returns."""
    _, total, count = _moments(returns, mask, reduce)
    _, left, _ = _moments(returns - values, mask, reduce)
    if count < 2 or total <= 1e-12:
        return None
    return float(1 - left / total)


def _moments(values: torch.Tensor, mask: torch.Tensor, reduce: Reduce) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return mean, variance (over n) and number of the masked values of all ranks; two passes, for exactness."""
    kept = mask.to(torch.float64)
    exact = values.to(torch.float64)
    count = reduce(kept.sum())
    mean = reduce((exact * kept).sum()) / count.clamp(min=1)
    variance = reduce(((exact - mean) ** 2 * kept).sum()) / count.clamp(min=1)
    return mean.to(values.dtype), variance.to(values.dtype), int(count.item())
