"""The multilinear extension by random subsets, with an unbiased derivative by psi."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from setgrad._autograd import first_order_only, has_tangent, is_tracked
from setgrad.errors import OptionError
from setgrad.functions._estimator import (
    SampledEstimator,
    linear_gains,
    mean_gains,
    second_difference_matrix,
    second_differences,
)
from setgrad.functions._set_function import BoundSetFunction, to_real

# With more entries in the matrices of all sets than this, each product computes its second differences again.
_MAX_ENTRIES = 2**26
_FIRST_ORDER = (
    "SecondDifference has first derivatives with respect to psi only, and a second one was requested; use Gaussian(m) "
    "or Exact()"
)


@final
@dataclass(frozen=True)
class SecondDifference(SampledEstimator):
    """Random subsets as in `Bernoulli`, with the unbiased derivative by psi of Özcan et al. (2024), Corollary E.1.

    The derivative is the mean of second differences (arXiv:2412.11239). It costs two gradients per item of the largest
    set, once in a backward pass of `ImplicitMeanField`, else for each product with it. So this estimator is for checks,
    for small sets and for functions of whole subsets. It has first derivatives in reverse mode: a second one raises a
    DerivativeError, forward mode an OptionError.

    Args:
        samples: Number of random subsets of each set.
        noise: Source of the random numbers; `FreshNoise()` by default.
    """

    smooth = True

    def value(self, bound: BoundSetFunction, psi: Tensor) -> Tensor:
        """Return the mean value over the samples, `(b,)`, with their mean gains as derivative."""
        masks = self._draw(bound, psi)
        move = _zero_with_derivative(psi)
        total = torch.zeros(len(bound.sets), dtype=psi.dtype, device=psi.device)
        slope = total.index_add(0, bound.sets.layout.ids, to_real(bound.gains(masks)).mean(0) * move)
        return to_real(bound.value(masks)).mean(0) + slope

    def gradient(self, bound: BoundSetFunction, psi: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Return the mean gain over the samples, `(total,)`, or its entries `coordinates`."""
        masks = self._draw(bound, psi)
        gains = mean_gains(bound, masks, self.noise, coordinates)
        if not is_tracked(psi):
            return gains
        slope = self.noise.symmetrise(second_differences(bound, masks, _zero_with_derivative(psi)))
        return gains + (slope if coordinates is None else slope[coordinates])

    def hessian_vector(self, bound: BoundSetFunction, psi: Tensor, vector: Tensor) -> Tensor:
        """Return mean second differences times a vector, `(total,)`."""
        return self.noise.symmetrise(second_differences(bound, self._draw(bound, psi), vector))

    def linearisation(self, bound: BoundSetFunction, psi: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a linear function, by the matrix of second differences of each set."""
        layout, psi = bound.sets.layout, psi.detach()
        if not layout.total or len(layout) * layout.longest**2 > _MAX_ENTRIES:
            return super().linearisation(bound, psi)
        masks = self._draw(bound, psi)
        gains, matrix = mean_gains(bound, masks, self.noise, None), second_difference_matrix(bound, masks)
        return linear_gains(gains, matrix, psi, bound.sets, self.noise)

    def _draw(self, bound: BoundSetFunction, psi: Tensor) -> Tensor:
        if has_tangent(psi):
            raise OptionError(
                "SecondDifference has no forward mode; use reverse mode (backward, torch.func.grad, jacrev), or "
                "Gaussian(m), Pathwise(m) or Exact()"
            )
        return self.noise.uniform(bound.sets.layout, self.samples) < psi.detach()


def _zero_with_derivative(psi: Tensor) -> Tensor:
    """Return 0 with the identity as first derivative by psi; a second derivative raises."""
    return _Identity.apply(psi) - psi.detach()


@final
class _Identity(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        return first_order_only(cotangents[0], message=_FIRST_ORDER)
