"""A loss for solvers where the right answers are known."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from setgrad.discrete._estimator import (
    Noisy,
    check_solver,
    orient,
    replace,
    spread,
    usable,
    where_finite,
    wide,
)
from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.noise import Noise
from setgrad.discrete.solvers._parameters import check_floats
from setgrad.errors import ShapeError


@final
class FenchelYoung(Noisy):
    """How much the best perturbed point beats the right one: mean of max <theta + noise, z>, minus <theta, target>.

    It is convex in theta, and its gradient is the mean of the perturbed solutions minus the target, without bias
    ("Learning with differentiable perturbed optimizers", Berthet et al., 2020). Its least value is not 0 but minus the
    entropy that the noise gives to the target. Each loss costs one call of the solver, in the forward pass.

    Args:
        solver: The map from theta to z.
        noise: Any noise; None for the loss of the structured perceptron.
        samples: How many draws of the noise.
        generator: Source of chance.

    Example:
        >>> from setgrad.discrete import Gumbel, TopK
        >>> theta = torch.zeros(3, 5, requires_grad=True)
        >>> loss = FenchelYoung(TopK(2), noise=Gumbel(), samples=10, generator=torch.Generator().manual_seed(0))
        >>> loss(theta, torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0]).expand(3, 5)).mean().backward()
        >>> bool((theta.grad[:, :2] < 0).all())
        True
    """

    def __init__(
        self,
        solver: CombinatorialSolver,
        *,
        noise: Noise | None,
        samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(noise=noise, samples=samples, generator=generator)
        self.solver = check_solver(solver)

    def forward(self, theta: Tensor, target: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The loss of each instance, in single precision at least; 0 for those without an answer ("mask")."""
        check_floats(theta, "estimators take", "theta")
        if target.shape != theta.shape:
            raise ShapeError(f"theta has shape {tuple(theta.shape)} and the target {tuple(target.shape)}")
        dims = self.solver.dims
        # What autograd sees is linear in theta, so that its second derivative would be 0, which is wrong.
        clean = orient(wide(replace(theta.detach(), theta)), self.solver)
        seen = self.perturb(clean, generator)
        seen = seen if self.noise is not None else seen[None]
        solved = self.solver.maximise(seen.detach())
        known = usable(solved)
        gaps = where_finite(lambda values: values * solved.value, seen, dims) - clean * target
        each = torch.where(spread(known.all(0), clean), gaps, 0).flatten(gaps.ndim - dims)
        return each.sum(-1).mean(0)
