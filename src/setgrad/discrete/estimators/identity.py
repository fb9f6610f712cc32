"""The solver as the identity of the backward pass, behind a projection."""

from __future__ import annotations

from functools import partial
from typing import final

import torch
from torch import Tensor

from setgrad.discrete._estimator import Choice, SolverEstimator, may_fail, orient, where_finite, wide
from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.margins import Margin
from setgrad.discrete.noise import Noise
from setgrad.discrete.projections import Projection, resolve_projection


@final
class Identity(SolverEstimator):
    """Pass the gradient as it comes (its negative, for a solver that minimises). It costs no call of the solver.

    The way forward is: noise, projection, margin, solver. The way back goes through the Jacobian of the projection.
    "Backpropagation through combinatorial algorithms: identity with projection works" (Sahoo et al., 2023).

    Args:
        solver: The map from theta to z.
        projection: "mean", "norm", "std" or a `Projection`. It must suit the solver: see each of them.
        margin: `NoiseMargin` or `InformedMargin`; used in training only.
        noise: Makes the layer a sampler, with an axis of samples in front.
        samples: How many draws of the noise.
        generator: Source of chance.

    Example:
        >>> from setgrad.discrete import TopK
        >>> theta = torch.tensor([1.0, 3.0, 2.0], requires_grad=True)
        >>> z = Identity(TopK(2), projection="mean")(theta)
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
        self.projection = resolve_projection(projection)
        self.margin = margin

    def forward(
        self, theta: Tensor, *, target: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Choose. An informed margin needs the right answers: `target`, of the shape of theta."""
        clean = orient(wide(theta), self.solver)
        seen = self.perturb(clean, generator)
        if self.projection is not None:
            projection = partial(self.projection, dims=self.solver.dims)
            seen = where_finite(projection, seen, self.solver.dims) if may_fail(self.solver) else projection(seen)
        if self.margin is not None and self.training:
            seen = self.margin(seen, target=target, generator=generator or self.generator)
        return self.choose(seen, clean).to(theta.dtype)

    def pull(self, choice: Choice, grad: Tensor) -> Tensor:
        """Nothing to do."""
        return grad
