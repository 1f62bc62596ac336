"""GAE across user turns, exact whitening, explained variance."""

import pytest
import torch

from collab.training.advantages import explained_variance, generalized_advantages, whitened


def alone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def naive(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """GAE as a sum of discounted deltas, over a sequence without gaps."""
    following = [*values[1:], 0.0]
    deltas = [r + gamma * after - v for r, v, after in zip(rewards, values, following, strict=True)]
    return [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))]


def test_gae_skips_the_users_tokens() -> None:
    """The policy's tokens get what they would get if the user's were not there at all."""
    torch.manual_seed(0)
    mask = torch.tensor([[1, 1, 0, 0, 0, 1, 1, 1, 0], [1, 0, 1, 1, 0, 0, 1, 0, 0]])
    rewards, values = torch.randn(2, 9) * mask, torch.randn(2, 9)
    advantages, returns = generalized_advantages(rewards, values * mask, mask, 0.9, 0.8)
    for row in range(2):
        own = mask[row].bool()
        expected = torch.tensor(naive(rewards[row][own].tolist(), values[row][own].tolist(), 0.9, 0.8))
        assert torch.allclose(advantages[row][own], expected, atol=1e-6)
        assert torch.allclose(returns[row][own], expected + values[row][own], atol=1e-6)
        assert not advantages[row][~own].any() and not returns[row][~own].any()


def test_values_at_the_users_tokens_do_not_matter() -> None:
    mask = torch.tensor([[1, 0, 0, 1]])
    rewards = torch.tensor([[0.0, 0.0, 0.0, 1.0]])
    quiet = torch.tensor([[0.5, 0.0, 0.0, 0.25]])
    loud = torch.tensor([[0.5, 9.0, -9.0, 0.25]])
    first, _ = generalized_advantages(rewards, quiet, mask, 1.0, 0.95)
    second, _ = generalized_advantages(rewards, loud, mask, 1.0, 0.95)
    assert torch.equal(first, second)
    assert first[0, 0] == pytest.approx(0.25 - 0.5 + 0.95 * 0.75)


def test_with_lambda_1_and_no_values_advantages_are_returns() -> None:
    mask = torch.tensor([[1, 0, 1]])
    advantages, returns = generalized_advantages(torch.tensor([[0.5, 0.0, 2.0]]), torch.zeros(1, 3), mask, 1.0, 1.0)
    assert advantages.tolist() == returns.tolist() == [[2.5, 0.0, 2.0]]


def test_whitening_is_over_masked_tokens_only() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    result = whitened(torch.tensor([[1.0, 2.0, 50.0], [6.0, -50.0, 0.0]]), mask, alone)
    kept = result[mask.bool()]
    assert kept.mean().item() == pytest.approx(0, abs=1e-6) and kept.std(unbiased=False).item() == pytest.approx(1, abs=1e-4)
    assert not result[~mask.bool()].any()


def test_whitening_of_two_ranks_is_that_of_their_union() -> None:
    torch.manual_seed(1)
    values, mask = torch.randn(4, 6) * 3 + 2, (torch.rand(4, 6) > 0.4).long()
    together = whitened(values, mask, alone)
    halves = [(values[:2], mask[:2]), (values[2:], mask[2:])]

    def summed(rank: int) -> list[torch.Tensor]:
        """What each of whitening's sums is over both ranks, in the order they are asked for."""
        count = mask.sum().double()
        mean = (values.double() * mask).sum() / count
        return [count, mean * count, ((values.double() - mean) ** 2 * mask).sum()]

    for rank, (own, own_mask) in enumerate(halves):
        sums = iter(summed(rank))
        assert torch.allclose(whitened(own, own_mask, lambda _, sums=sums: next(sums)), together[2 * rank : 2 * rank + 2])


@pytest.mark.parametrize(("error", "expected"), [(0.0, 1.0), (1.0, 0.0)])
def test_explained_variance(error: float, expected: float) -> None:
    returns = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    values = returns * (1 - error) + 0.7  # a constant offset explains nothing and hides nothing
    assert explained_variance(returns, values, torch.ones(1, 4), alone) == pytest.approx(expected, abs=1e-6)


def test_explained_variance_of_constant_returns_is_not_a_number_but_none() -> None:
    assert explained_variance(torch.ones(1, 4), torch.rand(1, 4), torch.ones(1, 4), alone) is None
    assert explained_variance(torch.rand(1, 4), torch.rand(1, 4), torch.zeros(1, 4), alone) is None
