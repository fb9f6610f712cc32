"""A loss for solvers where the right solutions are known."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from setgrad.discrete._estimator import (
    SolverLayer,
    apply_where_finite,
    as_maximisation,
    at_least_float32,
    replace_gradient,
)
from setgrad.discrete._solver import CombinatorialSolver, expand_flags
from setgrad.discrete.noise import Noise
from setgrad.discrete.solvers._parameters import check_floats
from setgrad.errors import ShapeError


@final
class FenchelYoung(SolverLayer):
    """The perturbed Fenchel-Young loss: mean of `max <theta + noise, z>`, minus `<theta, target>`.

    It is convex in theta. Its gradient, the mean of the perturbed solutions minus the target, is unbiased. Its minimum
    is not 0 but minus the entropy that the noise gives to the target. Berthet et al., 2020, arXiv:2002.08676.
    A loss costs one call of the solver, in the forward pass.

    Args:
        solver: The map from theta to z.
        noise: Any noise; None for the loss of the structured perceptron.
        samples: The number of draws of the noise.
        generator: Source of random numbers.

    Examples:
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
        super().__init__(solver, noise=noise, samples=samples, generator=generator)

    def forward(self, theta: Tensor, target: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the loss of each instance in float32 or float64; 0 for instances without an answer ("mask").

        Raises:
            ShapeError: If theta is not a float tensor, or the target has another shape.
        """
        check_floats(theta, "estimators take", "theta")
        if target.shape != theta.shape:
            raise ShapeError(f"theta has shape {tuple(theta.shape)} and the target {tuple(target.shape)}")
        dims = self.solver.dims
        # For autograd the loss is linear in theta, so its second derivative would be 0, which is wrong: make it raise.
        clean = as_maximisation(at_least_float32(replace_gradient(theta.detach(), theta)), self.solver)
        perturbed = self.perturb(clean, generator)
        perturbed = perturbed if self.noise is not None else perturbed[None]
        result = self.solver.maximise(perturbed.detach())
        gaps = apply_where_finite(lambda values: values * result.value, perturbed, dims) - clean * target
        known = expand_flags(result.has_answer.all(0), clean)
        return torch.where(known, gaps, 0).flatten(gaps.ndim - dims).sum(-1).mean(0)
