"""Implicit maximum likelihood: perturb and solve, then step along the gradient and solve again."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from setgrad.discrete._estimator import Choice, SolverEstimator
from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.estimators._difference import difference, relative_move, scaled
from setgrad.discrete.noise import Noise
from setgrad.errors import OptionError


@final
class IMLE(SolverEstimator):
    """Samples z = solver(theta + noise), and differences of solutions under the same noise for a gradient.

    "Implicit MLE: backpropagating through discrete exponential family distributions" (Niepert et al., 2021). The way
    back calls the solver once, for central differences too. The gradient has the factor 1/lam, and `lam` means the
    same for every number of samples.

    Args:
        solver: The map from theta to z.
        noise: Gumbel for a categorical choice, `SumOfGamma(k)` for k of n.
        samples: How many draws.
        lam: How far to step: small steps give sparse gradients, large ones biased gradients. It is measured in theta
            per gradient, so a loss averaged over a batch of B needs a lam B times as large as its sum. See `AIMLE`.
        central: Step to both sides instead of one. It solves twice as many instances, in the same call.
        relative: Take lam as a share of the length of theta, for each instance alone, and not in units of the gradient.
        generator: Source of chance.

    Example:
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
        if not 0 < lam < math.inf:
            raise OptionError(f"lam must be a finite number above 0, got {lam}")
        self.lam = lam
        self.central = central
        self.relative = relative

    def pull(self, choice: Choice, grad: Tensor) -> Tensor:
        """The difference over its step, which the gradient of one sample's loss makes: S times what comes in."""
        each = choice.samples * grad
        inverse: Tensor | float
        if self.relative:
            move, inverse = relative_move(self, choice, each, self.lam)
        else:
            move, inverse = self.lam * each, 1 / self.lam
        change = difference(self, choice, move, central=self.central)
        return scaled(change, inverse / (choice.samples * (2 if self.central else 1)))
