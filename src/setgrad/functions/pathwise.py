"""Random subsets in value, with a derivative with respect to psi all the same.

The draw of a subset has no derivative. `Pathwise` puts psi in its place, `SecondDifference` the expectation of second
differences of F, which is the derivative of the expected gain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from setgrad._autograd import first_order_only, has_tangent, is_tracked
from setgrad.errors import OptionError
from setgrad.functions._protocol import BoundSetFunction, real
from setgrad.functions.estimators import (
    Sampled,
    along,
    check_relaxed,
    mean_gains,
    relaxed_tangent,
    second_differences,
)

_FIRST_ORDER = (
    "SecondDifference gives first derivatives with respect to psi, and a second one was asked for; use Gaussian(m) or "
    "Exact()"
)


@final
@dataclass(frozen=True)
class Pathwise(Sampled):
    """Random subsets whose bits move with psi: the value of `Bernoulli(m)`, a derivative by the slopes of relaxed F.

    Cheap, and biased as far as F bends between the corners. Needs a function that takes relaxed masks.
    """

    smooth = True

    def value(self, bound: BoundSetFunction, psi: Tensor) -> Tensor:
        """Mean value of the samples."""
        return bound.value(self._masks(bound, psi)).mean(0)

    def gradient(self, bound: BoundSetFunction, psi: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Mean gain over the samples."""
        return mean_gains(bound, self._masks(bound, psi), self.noise, coordinates)

    def hessian_vector(self, bound: BoundSetFunction, psi: Tensor, vector: Tensor) -> Tensor:
        """Derivative of the gradient along the vector."""
        frozen = self.frozen()
        # The derivative of a gain by its own item is 0, the rest is nearly symmetric, and not to be transposed.
        return along(lambda p: frozen.gradient(bound, p), psi, vector)

    def prepare(self, bound: BoundSetFunction) -> BoundSetFunction:
        """As the function says."""
        return bound.prepared()

    def tangent(self, bound: BoundSetFunction, psi: Tensor) -> Callable[[Tensor], Tensor]:
        """By the Jacobian of each set, where the function has it."""
        straight = relaxed_tangent(bound, psi, self.samples, lambda p: self._masks(bound, p), self.noise)
        return straight or super().tangent(bound, psi)

    def _masks(self, bound: BoundSetFunction, psi: Tensor) -> Tensor:
        check_relaxed(bound, "a path-wise derivative needs fractional masks")
        kept = psi.detach()
        bits = (self.noise.uniform(bound.sets.layout, self.samples) < kept).to(psi.dtype)
        return bits + (psi - kept)


@final
@dataclass(frozen=True)
class SecondDifference(Sampled):
    """Random subsets with the unbiased derivative of Corollary E.1 of paper 000: mean second differences.

    Every product with it costs as many gradients as the largest set has items, twice: for checks, and for functions of
    whole subsets. First derivatives only, in reverse mode: asking for another one raises.
    """

    smooth = True

    def value(self, bound: BoundSetFunction, psi: Tensor) -> Tensor:
        """Mean value of the samples, with their mean gains as derivative."""
        masks = self._draw(bound, psi)
        move = _once(psi)
        total = torch.zeros(len(bound.sets), dtype=psi.dtype, device=psi.device)
        slope = total.index_add(0, bound.sets.layout.ids, real(bound.gains(masks)).mean(0) * move)
        return real(bound.value(masks)).mean(0) + slope

    def gradient(self, bound: BoundSetFunction, psi: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Mean gain over the samples."""
        masks = self._draw(bound, psi)
        gains = mean_gains(bound, masks, self.noise, coordinates)
        if not is_tracked(psi):
            return gains
        bend = self.noise.symmetrise(second_differences(bound, masks, _once(psi)))
        return gains + (bend if coordinates is None else bend[coordinates])

    def hessian_vector(self, bound: BoundSetFunction, psi: Tensor, vector: Tensor) -> Tensor:
        """Mean second differences times the vector."""
        return self.noise.symmetrise(second_differences(bound, self._draw(bound, psi), vector))

    def _draw(self, bound: BoundSetFunction, psi: Tensor) -> Tensor:
        if has_tangent(psi):
            raise OptionError(
                "SecondDifference has no forward mode; use reverse mode (backward, torch.func.grad, jacrev), or "
                "Gaussian(m), Pathwise(m) or Exact()"
            )
        return self.noise.uniform(bound.sets.layout, self.samples) < psi.detach()


def _once(psi: Tensor) -> Tensor:
    """0 in value and the identity in derivative, once."""
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
