"""All estimators, with the properties that the tests check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from setgrad.discrete._estimator import GradientEstimator
from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.estimators import (
    AIMLE,
    IMLE,
    LPGD,
    SIMPLE,
    Blackbox,
    Envelope,
    GumbelSoftmax,
    Identity,
    Perturbed,
    PublishedRule,
    ReferenceCodeRule,
    ReinMax,
    RelaxedSpanningTree,
    RelaxedTopK,
    SoftSub,
    StraightThrough,
)
from setgrad.discrete.noise import Antithetic, Gumbel, Normal, SumOfGamma, Tempered
from setgrad.discrete.projections import StdProjection
from setgrad.discrete.solvers.top_k import ArgMax, TopK

N = 6


@dataclass(frozen=True, eq=False)
class Case:
    """An estimator of k of N items."""

    name: str
    # Takes `samples` and `generator` if `sampled`, and a solver if `solves`.
    make: Callable[..., GradientEstimator]
    k: int = 2
    sampled: bool = True
    # Whether the output has an axis of samples.
    axis: bool = True
    solves: bool = True
    # Calls of the solver in the backward pass.
    backward_calls: int = 0
    hard: bool = True
    # The largest entry that z may have.
    largest: float = 1.0
    # Whether a second derivative raises.
    first_order: bool = True
    # The minimum of the mean cosine with the exact gradient of a categorical problem; see test_gradient_direction.
    cosine: float | None = None

    def __str__(self) -> str:
        return self.name

    def build(
        self, *, samples: int = 3, seed: int = 0, solver: CombinatorialSolver | None = None, k: int | None = None
    ) -> GradientEstimator:
        options: dict[str, Any] = {}
        k = self.k if k is None else k
        if self.sampled:
            options = {"samples": samples, "generator": torch.Generator().manual_seed(seed)}
        if self.solves:
            return self.make(solver or (ArgMax() if k == 1 else TopK(k)), **options)
        return self.make(k, **options) if self.k > 1 else self.make(**options)


def soft(theta: Tensor) -> Tensor:
    return theta.softmax(-1)


# The number of the edge between two nodes of 4, in the upper half; the first three edges are a tree.
EDGES = torch.tensor([[0, 0, 1, 2], [0, 0, 3, 4], [0, 0, 0, 5], [0, 0, 0, 0]])


class TreesOfFour(GradientEstimator):
    """The trees of 4 nodes as a choice of 3 of N = 6 edges."""

    def __init__(self, k: int, **options: Any) -> None:
        super().__init__()
        self.layer = RelaxedSpanningTree(**options)

    def forward(self, theta: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        if torch.is_tensor(theta):
            theta = torch.where(theta.new_ones(4, 4).bool().triu(1), theta[..., EDGES.to(theta.device)], 0)
        rows, columns = torch.triu_indices(4, 4, 1)
        return self.layer(theta, generator=generator)[..., rows, columns]


def plain(make: Callable[..., GradientEstimator], **options: Any) -> Callable[..., GradientEstimator]:
    return lambda *args, **more: make(*args, **options, **more)


CASES = [
    Case("Identity", plain(Identity), sampled=False, axis=False),
    Case("Identity-std", plain(Identity, projection=StdProjection()), sampled=False, axis=False),
    Case("Identity-sampled", plain(Identity, projection=StdProjection(), noise=Gumbel()), cosine=0.6),
    Case("Blackbox", plain(Blackbox, lam=5.0), sampled=False, axis=False, backward_calls=1),
    Case("IMLE", plain(IMLE, noise=Gumbel()), backward_calls=1, cosine=0.6),
    Case("IMLE-central", plain(IMLE, noise=Gumbel(), central=True), backward_calls=1, cosine=0.65),
    Case("IMLE-relative", plain(IMLE, noise=Gumbel(), lam=0.3, relative=True), backward_calls=1, cosine=0.75),
    Case("IMLE-gamma", plain(IMLE, noise=SumOfGamma(2), lam=3.0), backward_calls=1),
    Case("AIMLE", plain(AIMLE, noise=Gumbel(), alpha=0.3), backward_calls=1, cosine=0.75),
    Case("AIMLE-forward", plain(AIMLE, noise=Gumbel(), alpha=0.3, central=False), backward_calls=1, cosine=0.75),
    Case("AIMLE-paper", plain(AIMLE, noise=Gumbel(), mode=PublishedRule(), alpha=0.3), backward_calls=1, cosine=0.75),
    Case(
        "AIMLE-reference",
        plain(AIMLE, noise=Gumbel(), mode=ReferenceCodeRule(), alpha=0.3),
        backward_calls=1,
        cosine=0.75,
    ),
    Case("LPGD", plain(LPGD, tau=1.0, noise=Gumbel()), backward_calls=1, cosine=0.6),
    Case(
        "LPGD-average",
        plain(LPGD, tau=1.0, rho=5.0, side=Envelope.AVERAGE, noise=Gumbel()),
        backward_calls=1,
        cosine=0.6,
    ),
    Case("LPGD-relaxed", plain(LPGD, tau=1.0, rho=0.5, relaxation=lambda x: x.clamp(0, 1), noise=Gumbel())),
    Case("StraightThrough", plain(StraightThrough, noise=Gumbel()), cosine=0.3),
    Case("StraightThrough-soft", plain(StraightThrough, noise=Gumbel(), soft=soft), cosine=0.85),
    Case("Perturbed", plain(Perturbed, noise=Gumbel()), axis=False, hard=False, cosine=0.7),
    Case("Perturbed-plain", plain(Perturbed, noise=Tempered(Normal(), 2.0), reduce=False), axis=False, hard=False),
    Case("Perturbed-antithetic", plain(Perturbed, noise=Antithetic(Gumbel())), axis=False, hard=False),
    Case("GumbelSoftmax", plain(GumbelSoftmax), k=1, solves=False, hard=False, first_order=False, cosine=0.85),
    Case("GumbelSoftmax-hard", plain(GumbelSoftmax, hard=True), k=1, solves=False, cosine=0.85),
    Case("ReinMax", plain(ReinMax), k=1, solves=False, cosine=0.95),
    Case("SoftSub", plain(SoftSub), solves=False, hard=False, largest=2.0, first_order=False, cosine=0.85),
    Case("SoftSub-hard", plain(SoftSub, hard=True), solves=False, cosine=0.85),
    Case("RelaxedTopK", plain(RelaxedTopK), sampled=False, axis=False, solves=False, hard=False, first_order=False),
    Case("RelaxedTopK-hard", plain(RelaxedTopK, noise=Gumbel(), hard=True), solves=False, cosine=0.8),
    Case("SIMPLE", plain(SIMPLE), solves=False, cosine=0.9),
    Case("RelaxedSpanningTree", plain(TreesOfFour), k=3, solves=False, hard=False, first_order=False),
    Case("RelaxedSpanningTree-hard", plain(TreesOfFour, hard=True), k=3, solves=False),
]
SAMPLED = [case for case in CASES if case.sampled]
SOLVING = [case for case in CASES if case.solves]
# These call autograd in their forward pass.
MARGINALS = {"SIMPLE", "RelaxedSpanningTree", "RelaxedSpanningTree-hard"}
# With these rules the instances of a batch share one step.
COUPLED = {"AIMLE-paper", "AIMLE-reference"}
