"""Lagrangian proximal gradients, which generalise Blackbox and Identity."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from setgrad._deprecation import deprecated_string
from setgrad.discrete._estimator import ForwardPass, SolverEstimator
from setgrad.discrete._solver import CombinatorialSolver, expand_flags
from setgrad.discrete.estimators._difference import solve_in_backward
from setgrad.discrete.noise import Noise
from setgrad.errors import OptionError


@final
class Envelope(enum.Enum):
    """A Moreau envelope of the loss, as the signs of the steps along the gradient that it needs.

    Examples:
        >>> Envelope.AVERAGE
        Envelope.AVERAGE
    """

    LOWER = (-1.0,)
    UPPER = (1.0,)
    AVERAGE = (1.0, -1.0)

    def __repr__(self) -> str:
        return str(self)


@final
class LPGD(SolverEstimator):
    """The gradient of a Moreau envelope of the loss, with the solver's objective as a measure of distance.

    With g the incoming gradient and z the solution, the lower envelope needs the proximal point

        x = argmax <theta, x> - tau * (<g, x> + |x - z|^2 / (2 rho))

    and has the gradient (z - x) / tau. The upper envelope steps along +g and has the gradient (x - z) / tau. The
    average is the mean of both. With a relaxation, the x of g = 0 replaces z in these differences.
    Paulus et al., 2024, arXiv:2407.05920.

    - rho infinite: the same as `Blackbox(lam=tau)`; the average is the central difference.
    - tau infinite: theta has no influence, and the factor is 1/rho instead of 1/tau. With the whole space as relaxation
      it is `Identity`, with the plane of all x of the same sum `Identity(projection=MeanProjection())`.

    Args:
        solver: The map from theta to z. Without a relaxation its points must be of zeros and ones, or all of the same
            norm and sum (rankings): then the square is linear, and one call of the solver finds x.
        tau: The step size; it may be math.inf if rho is finite.
        rho: How far x may move away from z.
        side: The envelope to differentiate.
        relaxation: The Euclidean projection onto a convex set that contains all points of the solver. Then x comes from
            this set, in closed form, and the backward pass does not call the solver. It needs a finite rho.
        noise: Turns the layer into a sampler, with an axis of samples in front.
        samples: The number of draws of the noise.
        generator: Source of random numbers.

    Raises:
        OptionError: If tau or rho is not above 0, both are infinite, or rho is infinite with a relaxation.

    Examples:
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
        side: Envelope | str = Envelope.LOWER,
        relaxation: Callable[[Tensor], Tensor] | None = None,
        noise: Noise | None = None,
        samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(solver, noise=noise, samples=samples, generator=generator)
        envelopes = {envelope.name.lower(): envelope for envelope in Envelope}
        self.side = deprecated_string("side", side, envelopes, removed_in="0.3.0")
        if not tau > 0 or not rho > 0 or (tau == rho == math.inf):
            raise OptionError(f"tau and rho must be above 0, and one of them finite, got {tau} and {rho}")
        if relaxation is not None and rho == math.inf:
            raise OptionError("a relaxation needs a finite rho: without it x is not bounded")
        self.tau = tau
        self.rho = rho
        self.relaxation = relaxation

    def pullback(self, saved: ForwardPass, grad: Tensor) -> Tensor:
        """Return the difference between proximal points, or between the solution and a proximal point."""
        grad_of_sample = saved.samples * grad
        signs = self.side.value
        points, known = self._proximal_points(saved, torch.stack([sign * grad_of_sample for sign in signs]))
        change = (points[0] - points[1]) / 2 if len(signs) == 2 else (self._start(saved) - points[0]) * -signs[0]
        scale = 1 / (self.tau if self.tau < math.inf else self.rho)
        return torch.where(expand_flags(known & saved.has_answer, change), change, 0) * (scale / saved.samples)

    def _start(self, saved: ForwardPass) -> Tensor:
        """Return the proximal point of slope 0: z, unless the best point of the relaxation is another one."""
        if self.relaxation is None or self.tau == math.inf:
            return saved.z
        return self.relaxation(saved.z + self.rho / self.tau * saved.theta)

    def _proximal_points(self, saved: ForwardPass, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the point x for each slope on the first axis, and a mask of the instances that have them."""
        if self.relaxation is not None:
            free = saved.z + self.rho * (saved.theta / self.tau + slopes)
            return self.relaxation(free), torch.ones_like(saved.has_answer)
        if self.tau < math.inf:
            theta = saved.theta + self.tau * slopes
            weight = self.tau / self.rho
        else:
            theta, weight = slopes, 1 / self.rho
        if weight:
            # |x - z|^2 = const - 2 <x, z - 1/2> for zeros and ones; where sums are fixed the 1/2 has no effect.
            theta = theta + weight * (saved.z - 0.5)
        result = solve_in_backward(self, theta)
        return result.value, result.has_answer.all(0)
