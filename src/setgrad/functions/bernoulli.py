"""The multilinear extension by random subsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad._autograd import has_tangent, is_tracked
from setgrad.errors import OptionError
from setgrad.functions._estimator import SampledEstimator, mean_gains, second_differences
from setgrad.functions._set_function import BoundSetFunction, to_real


@final
@dataclass(frozen=True)
class Bernoulli(SampledEstimator):
    """Average over random subsets that all items of a set share: unbiased.

    The gain of an item does not depend on whether the item itself was drawn, so one draw serves all items. The draw
    cuts the graph to psi: all methods raise an OptionError if psi is differentiated. Use `Gaussian` or `Exact` for
    that.

    Args:
        samples: Number of random subsets of each set.
        noise: Source of the random numbers; `FreshNoise()` by default.
    """

    smooth = False

    def value(self, bound: BoundSetFunction, psi: Tensor) -> Tensor:
        """Return the mean value over the samples, `(b,)`."""
        return to_real(bound.value(self._draw(bound, psi))).mean(0)

    def gradient(self, bound: BoundSetFunction, psi: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Return the mean gain over the samples, `(total,)`, or its entries `coordinates`."""
        return mean_gains(bound, self._draw(bound, psi), self.noise, coordinates)

    def hessian_vector(self, bound: BoundSetFunction, psi: Tensor, vector: Tensor) -> Tensor:
        """Return mean second differences times a vector: unbiased, at the cost of two gradients per item of a set."""
        return self.noise.symmetrise(second_differences(bound, self._draw(bound, psi), vector))

    def _draw(self, bound: BoundSetFunction, psi: Tensor) -> Tensor:
        if (is_tracked(psi) and torch.is_grad_enabled()) or has_tangent(psi):
            raise OptionError(
                "Bernoulli samples cannot be differentiated with respect to psi; "
                "detach psi for a one-step gradient, or use Gaussian(m), Pathwise(m) or Exact()"
            )
        return self.noise.uniform(bound.sets.layout, self.samples) < psi
