"""Hard choices with the gradient of soft ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from setgrad.discrete._estimator import (
    GradientEstimator,
    SolverLayer,
    apply_where_finite,
    as_maximisation,
    replace_gradient,
)
from setgrad.discrete._solver import CombinatorialSolver, expand_flags
from setgrad.discrete.noise import Noise
from setgrad.errors import ShapeError


@final
class StraightThrough(SolverLayer, GradientEstimator):
    """Call the solver in the forward pass, and differentiate a soft function in the backward pass.

    Without a soft function the gradient passes unchanged: the straight-through estimator (Bengio et al., 2013,
    arXiv:1308.3432), which is `Identity` without a projection. The backward pass does not call the solver.

    Args:
        solver: The map from theta to z.
        soft: A differentiable function that resembles the solver, such as torch.sigmoid for a threshold. It takes theta
            with noise, negated for a solver that minimises, so that larger is better.
        noise: Turns the layer into a sampler, with an axis of samples in front.
        samples: The number of draws of the noise.
        generator: Source of random numbers.

    Examples:
        >>> from setgrad.discrete import ArgMax
        >>> theta = torch.tensor([1.0, 0.0], requires_grad=True)
        >>> z = StraightThrough(ArgMax(), soft=lambda theta: theta.softmax(-1))(theta)
        >>> z[0].backward()
        >>> z.detach(), theta.grad
        (tensor([1., 0.]), tensor([ 0.1966, -0.1966]))
    """

    def __init__(
        self,
        solver: CombinatorialSolver,
        *,
        soft: Callable[[Tensor], Tensor] | None = None,
        noise: Noise | None = None,
        samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(solver, noise=noise, samples=samples, generator=generator)
        self.soft = soft

    def forward(self, theta: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return z for theta, with the gradient of the soft function.

        Raises:
            ShapeError: If the soft function returns another shape than the solver.
        """
        perturbed = self.perturb(as_maximisation(theta, self.solver), generator)
        result = self.solver.maximise(perturbed.detach())
        soft = perturbed if self.soft is None else apply_where_finite(self.soft, perturbed, self.solver.dims)
        if soft.shape != result.value.shape:
            raise ShapeError(
                f"the soft function returned shape {tuple(soft.shape)}, and the solver {tuple(result.value.shape)}; "
                "both must be the same"
            )
        soft = torch.where(expand_flags(result.has_answer, soft), soft, 0)
        return replace_gradient(result.value, soft).to(theta.dtype)
