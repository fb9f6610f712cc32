"""Lagrangian proximal gradients: the common parent of Blackbox and Identity."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from setgrad.discrete._estimator import Choice, SolverEstimator, spread, usable
from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.estimators._difference import solve_again
from setgrad.discrete.noise import Noise
from setgrad.errors import OptionError, unknown_name

_SIDES = ("lower", "upper", "average")


@final
class LPGD(SolverEstimator):
    """Gradients of a Moreau envelope of the loss, in which the solver's own objective measures distance.

    With g the incoming gradient and z the solution, the lower envelope looks for the point

        x = argmax <theta, x> - tau * (<g, x> + |x - z|^2 / (2 rho))

    and returns (z - x) / tau; the upper one steps along +g and returns (x - z) / tau; the average is the mean of both.
    With a relaxation, the x of g = 0 takes the place of z in these differences.
    "LPGD: a general framework for backpropagation through embedded optimization layers" (Paulus et al., 2024).

    - rho infinite: `Blackbox(lam=tau)`, and the average is the central difference.
    - tau infinite: theta plays no part, and the factor is 1/rho instead of 1/tau. With the whole space for a relaxation
      it is `Identity`, with the plane of all x of the same sum `Identity(projection="mean")`.

    Args:
        solver: The map from theta to z. Without a relaxation its points must be of zeros and ones, or all of the same
            norm and sum (rankings): the square is linear there, and one call of the solver finds x.
        tau: How far to step; it may be math.inf if rho is not.
        rho: How far x may go from z.
        side: "lower", "upper" or "average".
        relaxation: The Euclidean projection onto a convex set that holds all points of the solver. Then x comes from
            this set, in closed form, and the way back does not call the solver. It needs a finite rho.
        noise: Makes the layer a sampler, with an axis of samples in front.
        samples: How many draws of the noise.
        generator: Source of chance.

    Example:
        >>> from setgrad.discrete import TopK
        >>> theta = torch.tensor([1.0, 3.0, 2.0], requires_grad=True)
        >>> LPGD(TopK(2), tau=4.0)(theta)[2].backward()
        >>> theta.grad
        tensor([-0.2500,  0.0000,  0.2500])
    """

    def __init__(
        self,
        solver: CombinatorialSolver,
        *,
        tau: float,
        rho: float = math.inf,
        side: str = "lower",
        relaxation: Callable[[Tensor], Tensor] | None = None,
        noise: Noise | None = None,
        samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(solver, noise=noise, samples=samples, generator=generator)
        if side not in _SIDES:
            raise unknown_name("side", side, _SIDES)
        if not tau > 0 or not rho > 0 or (tau == rho == math.inf):
            raise OptionError(f"tau and rho must be above 0, and one of them finite, got {tau} and {rho}")
        if relaxation is not None and rho == math.inf:
            raise OptionError("a relaxation needs a finite rho: without it x may run away")
        self.tau = tau
        self.rho = rho
        self.side = side
        self.relaxation = relaxation

    def pull(self, choice: Choice, grad: Tensor) -> Tensor:
        """Find the proximal points of one or both sides, together, and subtract."""
        each = choice.samples * grad
        signs = {"lower": (-1.0,), "upper": (1.0,), "average": (1.0, -1.0)}[self.side]
        found, known = self._proximal(choice, torch.stack([sign * each for sign in signs]))
        change = (found[0] - found[1]) / 2 if len(signs) == 2 else (self._start(choice) - found[0]) * -signs[0]
        scale = 1 / (self.tau if self.tau < math.inf else self.rho)
        return torch.where(spread(known & choice.usable, change), change, 0) * (scale / choice.samples)

    def _start(self, choice: Choice) -> Tensor:
        """The proximal point of slope 0: z, unless the best point of the relaxation is another."""
        if self.relaxation is None or self.tau == math.inf:
            return choice.z
        return self.relaxation(choice.z + self.rho / self.tau * choice.theta)

    def _proximal(self, choice: Choice, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """The points x for each slope on the first axis, and which instances have them."""
        if self.relaxation is not None:
            free = choice.z + self.rho * (choice.theta / self.tau + slopes)
            return self.relaxation(free), torch.ones_like(choice.usable)
        if self.tau < math.inf:
            seen = choice.theta + self.tau * slopes
            weight = self.tau / self.rho
        else:
            seen, weight = slopes, 1 / self.rho
        if weight:
            # |x - z|^2 = const - 2 <x, z - 1/2> for zeros and ones; where sums are fixed the 1/2 does nothing.
            seen = seen + weight * (choice.z - 0.5)
        solved = solve_again(self, seen)
        return solved.value, usable(solved).all(0)
