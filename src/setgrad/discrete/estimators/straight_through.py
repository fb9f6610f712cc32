"""Hard choices with the gradient of soft ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from setgrad.discrete._estimator import (
    GradientEstimator,
    Noisy,
    check_solver,
    orient,
    replace,
    spread,
    usable,
    where_finite,
)
from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.noise import Noise
from setgrad.errors import ShapeError


@final
class StraightThrough(Noisy, GradientEstimator):
    """Solve forwards; backwards, differentiate a soft function in place of the solver.

    Without a soft function the gradient passes as it comes: the straight-through estimator of the papers, which is
    `Identity` without a projection. The way back does not call the solver.

    Args:
        solver: The map from theta to z.
        soft: A differentiable map that resembles the solver, such as torch.sigmoid for a threshold. It takes theta
            with noise, turned so that larger is better.
        noise: Makes the layer a sampler, with an axis of samples in front.
        samples: How many draws of the noise.
        generator: Source of chance.

    Example:
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
        super().__init__(noise=noise, samples=samples, generator=generator)
        self.solver = check_solver(solver)
        self.soft = soft

    def forward(self, theta: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Choose."""
        seen = self.perturb(orient(theta, self.solver), generator)
        solved = self.solver.maximise(seen.detach())
        soft = seen if self.soft is None else where_finite(self.soft, seen, self.solver.dims)
        if soft.shape != solved.value.shape:
            raise ShapeError(
                f"the soft function made shape {tuple(soft.shape)} of theta, and the solver "
                f"{tuple(solved.value.shape)}; both must be the same"
            )
        return replace(solved.value, torch.where(spread(usable(solved), soft), soft, 0)).to(theta.dtype)
