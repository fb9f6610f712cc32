"""Implicit maximum likelihood: perturb and solve, then step along the gradient and solve again."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from setgrad.discrete._estimator import ForwardPass, SolverEstimator
from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.estimators._difference import (
    check_step,
    difference_quotient,
    relative_step,
    solution_difference,
)
from setgrad.discrete.noise import Noise


@final
class IMLE(SolverEstimator):
    """Samples z = solver(theta + noise); the gradient is a difference of solutions under the same noise.

    Niepert et al., 2021, arXiv:2106.01798. The backward pass calls the solver once, also for central differences. The
    gradient has the factor 1/lam, and `lam` means the same for every number of samples.

    Args:
        solver: The map from theta to z.
        noise: Gumbel for a categorical choice, `SumOfGamma(k)` for k of n.
        samples: The number of draws.
        lam: The step size: small steps give sparse gradients, large ones biased gradients. Its unit is theta per
            gradient, so a loss averaged over a batch of B needs a lam B times as large as its sum. See `AIMLE`.
        central: Step to both sides instead of one. It solves twice as many instances, in the same call.
        relative: Take lam as a fraction of the length of theta, for each instance alone, instead of theta per gradient.
        generator: Source of random numbers.

    Raises:
        OptionError: If lam is not a finite number above 0.

    Examples:
        >>> from setgrad.discrete import Gumbel, TopK
        >>> theta = torch.zeros(4, 10, requires_grad=True)
        >>> layer = IMLE(TopK(3), noise=Gumbel(), samples=5, generator=torch.Generator().manual_seed(0))
        >>> layer(theta).shape
        torch.Size([5, 4, 10])
    """

    def __init__(
        self,
        solver: CombinatorialSolver,
        *,
        noise: Noise | None,
        samples: int = 1,
        lam: float = 1.0,
        central: bool = False,
        relative: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(solver, noise=noise, samples=samples, generator=generator)
        self.lam = check_step(lam)
        self.central = central
        self.relative = relative

    def pullback(self, saved: ForwardPass, grad: Tensor) -> Tensor:
        """Return the difference quotient along the gradient of one sample's loss, S times the incoming gradient."""
        grad_of_sample = saved.samples * grad
        inverse: Tensor | float
        if self.relative:
            step, inverse = relative_step(saved, grad_of_sample, self.lam, self.solver.dims)
        else:
            step, inverse = self.lam * grad_of_sample, 1 / self.lam
        change = solution_difference(self, saved, step, central=self.central)
        return difference_quotient(change, inverse, samples=saved.samples, central=self.central)
