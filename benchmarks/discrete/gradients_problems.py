"""Small problems with a known gradient: the mean of |z - b|^2 over an exponential family of k of n items."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import final

import torch
from torch import Tensor

from setgrad.errors import unknown_name

TARGETS = ("normal", "absolute")


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """Runs of one problem, each with its own theta and b: both (runs, n)."""

    theta: Tensor
    b: Tensor
    k: int

    @property
    def n(self) -> int:
        """The number of items."""
        return self.theta.shape[-1]

    def loss(self, z: Tensor) -> Tensor:
        """Return the squared distance of points (..., runs, n) from b."""
        return (z - self.b).square().sum(-1)

    def part(self, first: int, count: int) -> Problem:
        """Return a part of the runs."""
        return Problem(self.theta[first : first + count], self.b[first : first + count], self.k)

    def gradient(self) -> Tensor:
        """Return the exact gradient of the mean loss, as a sum over all points, in float64."""
        points = all_points(self.n, self.k).to(self.theta.device)
        theta = self.theta.double().requires_grad_()
        losses = Problem(theta, self.b.double()[:, None], self.k).loss(points)
        mean = ((theta @ points.mT).softmax(-1) * losses).sum()
        return torch.autograd.grad(mean, theta)[0]


def make_problem(
    n: int, k: int, target: str, runs: int, *, seed: int = 0, device: str | torch.device = "cpu"
) -> Problem:
    """Return a problem: theta is normal; b is normal, as published, or its absolute value, as in the published code."""
    if target not in TARGETS:
        raise unknown_name("target", target, TARGETS)
    # On the CPU, so that all devices get the same problem.
    generator = torch.Generator().manual_seed(seed)
    theta, b = (torch.randn(runs, n, generator=generator) for _ in range(2))
    return Problem(theta.to(device), (b.abs() if target == "absolute" else b).to(device), k)


def all_points(n: int, k: int) -> Tensor:
    """Return all ways to choose k of n, (ways, n), in float64."""
    chosen = torch.tensor(list(combinations(range(n), k)))
    return torch.zeros(len(chosen), n, dtype=torch.float64).scatter_(1, chosen, 1)


@final
@dataclass(frozen=True)
class Quality:
    """How close estimates are to the exact gradient, over runs.

    Attributes:
        cosine: Mean cosine; an estimate that is 0 counts as 0.
        spread: Its standard deviation.
        zeros: Percentage of entries of the estimates that are 0.
        dead: Percentage of estimates that are 0 altogether.
    """

    cosine: float
    spread: float
    zeros: float
    dead: float


def judge(estimates: Tensor, exact: Tensor) -> Quality:
    """Compare estimates (runs, n) with the exact gradients."""
    estimates = estimates.double()
    lengths = torch.linalg.vector_norm(estimates, dim=-1) * torch.linalg.vector_norm(exact, dim=-1)
    cosines = (estimates * exact).sum(-1) / torch.where(lengths > 0, lengths, 1)
    empty = estimates == 0
    return Quality(
        cosine=round(float(cosines.mean()), 4),
        spread=round(float(cosines.std()), 4) if len(cosines) > 1 else 0.0,
        zeros=round(100 * float(empty.double().mean()), 2),
        dead=round(100 * float(empty.all(-1).double().mean()), 2),
    )
