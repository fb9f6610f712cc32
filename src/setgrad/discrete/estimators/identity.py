"""The identity as the backward pass of a solver, after a projection."""

from __future__ import annotations

from functools import partial
from typing import final

import torch
from torch import Tensor

from setgrad._deprecation import deprecated_string
from setgrad.discrete._estimator import (
    ForwardPass,
    SolverEstimator,
    apply_where_finite,
    as_maximisation,
    at_least_float32,
    can_fail,
)
from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.margins import Margin
from setgrad.discrete.noise import Noise
from setgrad.discrete.projections import MeanProjection, NormProjection, Projection, StdProjection

_PROJECTIONS: dict[str, Projection] = {"mean": MeanProjection(), "norm": NormProjection(), "std": StdProjection()}


@final
class Identity(SolverEstimator):
    """Pass the gradient unchanged (negated, for a solver that minimises). The backward pass does not call the solver.

    The forward pass applies noise, projection, margin and solver, in this order. The backward pass goes through the
    Jacobian of the projection. Sahoo et al., 2023, arXiv:2205.15213.

    Args:
        solver: The map from theta to z.
        projection: Such as `StdProjection()`; None for no projection. It must suit the solver: see each of them.
        margin: `NoiseMargin` or `InformedMargin`; used in training only.
        noise: Turns the layer into a sampler, with an axis of samples in front.
        samples: The number of draws of the noise.
        generator: Source of random numbers.

    Examples:
        >>> from setgrad.discrete import MeanProjection, TopK
        >>> theta = torch.tensor([1.0, 3.0, 2.0], requires_grad=True)
        >>> z = Identity(TopK(2), projection=MeanProjection())(theta)
        >>> z[0].backward()
        >>> z.detach(), theta.grad
        (tensor([0., 1., 1.]), tensor([ 0.6667, -0.3333, -0.3333]))
    """

    def __init__(
        self,
        solver: CombinatorialSolver,
        *,
        projection: Projection | str | None = None,
        margin: Margin | None = None,
        noise: Noise | None = None,
        samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(solver, noise=noise, samples=samples, generator=generator)
        self.projection = deprecated_string("projection", projection, _PROJECTIONS, removed_in="0.3.0")
        self.margin = margin

    def forward(
        self, theta: Tensor, *, target: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return z for theta.

        Args:
            theta: The input of the solver.
            target: The right solution, in the shape of theta; needed by `InformedMargin`.
            generator: Used instead of the estimator's own generator.

        Returns:
            z in the shape of theta, with an axis of samples in front if there is noise.
        """
        clean = as_maximisation(at_least_float32(theta), self.solver)
        inputs = self.perturb(clean, generator)
        if self.projection is not None:
            projection, dims = partial(self.projection, dims=self.solver.dims), self.solver.dims
            inputs = apply_where_finite(projection, inputs, dims) if can_fail(self.solver) else projection(inputs)
        if self.margin is not None and self.training:
            inputs = self.margin(inputs, target=target, generator=generator or self.generator)
        return self.solve_with_gradient(inputs, clean).to(theta.dtype)

    def pullback(self, saved: ForwardPass, grad: Tensor) -> Tensor:
        """Return the gradient unchanged."""
        return grad
