"""Exact gradients by listing all points, fixed noise, and a check of means."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.noise import Noise
from setgrad.discrete.solvers.top_k import TopK

Loss = Callable[[Tensor], Tensor]


def draws(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def per_copy(layer: Callable[[Tensor], Tensor], theta: Tensor, copies: int = 4000) -> tuple[Tensor, Tensor]:
    """Return values and gradients of a loss (copies,) for copies of one theta."""
    leaf = theta.expand(copies, *theta.shape).clone().requires_grad_()
    values = layer(leaf)
    return values.detach(), torch.autograd.grad(values.sum(), leaf)[0]


def product(theta: Tensor, z: Tensor) -> float:
    return float((theta * z).sum())


@final
@dataclass(frozen=True)
class Fixed(Noise):
    """Noise with fixed values: (S, *batch, *instance)."""

    values: Tensor

    def draw(self, empty: Tensor, generator: torch.Generator | None) -> Tensor:
        assert empty.shape == self.values.shape
        return self.values.to(empty.dtype)


@final
@dataclass(frozen=True, eq=False)
class Points(CombinatorialSolver):
    """The best of listed points, (p, n). On a tie the point number `favourite` wins, else the first."""

    points: Tensor
    favourite: int = 0

    def solve(self, theta: Tensor) -> Tensor:
        values = theta @ self.points.to(theta).T
        best = values.argmax(-1)
        best = torch.where(values[..., self.favourite] == values.amax(-1), self.favourite, best)
        return self.points.to(theta)[best]


@final
@dataclass(frozen=True, eq=False)
class Matrix(CombinatorialSolver):
    """The k best entries of a matrix."""

    dims = 2
    k: int

    def solve(self, theta: Tensor) -> Tensor:
        return TopK(self.k).solve(theta.flatten(-2)).reshape(theta.shape)


def subsets(n: int, k: int) -> Tensor:
    """All z of n entries with k ones."""
    rows = [[float(i in chosen) for i in range(n)] for chosen in itertools.combinations(range(n), k)]
    return torch.tensor(rows, dtype=torch.float64)


def exact_gradient(theta: Tensor, points: Tensor, loss: Loss) -> Tensor:
    """Gradient of the mean loss for p(z) proportional to exp(<theta, z>), for theta (*batch, n)."""
    theta = theta.detach().requires_grad_()
    chances = (theta @ points.T).softmax(-1)
    mean = (chances * loss(points)).sum()
    return torch.autograd.grad(mean, theta)[0]


def plackett_luce(theta: Tensor, k: int) -> Tensor:
    """Mean of the k largest of theta + Gumbel noise, for theta (n,), by listing the orders of the first k."""
    weights = theta.exp()
    total = torch.zeros_like(theta)
    for order in itertools.permutations(range(len(theta)), k):
        chance = torch.ones((), dtype=theta.dtype)
        left = weights.sum()
        for i in order:
            chance = chance * weights[i] / left
            left = left - weights[i]
        total = total + chance * torch.zeros_like(theta).scatter(0, torch.tensor(order), 1.0)
    return total


def assert_unbiased(layer: Callable[[Tensor], Tensor], theta: Tensor, truth: Callable[[Tensor], Tensor]) -> None:
    """Mean value and mean gradient over many copies are those of the exact function."""
    values, grads = per_copy(layer, theta)
    leaf = theta.clone().requires_grad_()
    exact = truth(leaf)
    assert_mean(values, exact.detach())
    assert_mean(grads, torch.autograd.grad(exact, leaf)[0])


def assert_mean(values: Tensor, truth: Tensor, *, errors: float = 4.0) -> None:
    """The mean over the first axis is within a few standard errors of the exact value, in each entry."""
    spread = values.std(0) / len(values) ** 0.5
    off = (values.mean(0) - truth).abs()
    assert (off <= errors * spread + 1e-12).all(), f"off by {(off / (spread + 1e-300)).max():.1f} standard errors"
    # With a standard error as large as the exact value, anything would pass.
    assert spread.max() < 0.2 * truth.abs().max()
