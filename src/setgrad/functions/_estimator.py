"""The interface of estimators of the multilinear extension, and estimators that draw samples.

The multilinear extension is the expected value of F if item i is in S with probability psi_i, independently:

    value(psi) = sum over S of F(S) prod_{i in S} psi_i prod_{i not in S} (1 - psi_i)

Its partial derivative is the expected marginal gain of the item, and its mixed second derivative is the expected second
difference. Estimators differ in how they compute these expectations; see the README of this package.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Self, final

import torch
from torch import Tensor

from setgrad._autograd import has_tangent, is_tracked
from setgrad.errors import OptionError
from setgrad.functions._set_function import BoundSetFunction, to_real
from setgrad.functions.noise import FreshNoise, FrozenNoise, NoiseSource
from setgrad.sets import Sets, unpad
from setgrad.sets._sets import pad


class ExtensionEstimator(abc.ABC):
    """A way to compute the multilinear extension and its derivatives by the probabilities psi `(total,)`.

    Attributes:
        smooth: Whether results can be differentiated with respect to psi. If not, an attempt raises an OptionError,
            because a graph that was cut would silently give a wrong gradient.
    """

    smooth: bool

    @abc.abstractmethod
    def value(self, bound: BoundSetFunction, psi: Tensor) -> Tensor:
        """Return the value for each set, `(b,)`."""

    @abc.abstractmethod
    def gradient(self, bound: BoundSetFunction, psi: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Return the derivative by psi, `(total,)`, or its entries `coordinates`."""

    @abc.abstractmethod
    def hessian_vector(self, bound: BoundSetFunction, psi: Tensor, vector: Tensor) -> Tensor:
        """Return the second derivative by psi times a vector, `(total,)`."""

    def linearisation(self, bound: BoundSetFunction, psi: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a function of psi with the value and all first derivatives of `gradient` at this psi.

        Repeated products with the derivative by psi may be much cheaper through it.
        """
        return lambda p: self.gradient(bound, p)

    def frozen(self) -> ExtensionEstimator:
        """Return an estimator that repeats its first draw at every call."""
        return self

    def prepare(self, bound: BoundSetFunction) -> BoundSetFunction:
        """Return the function with the work that calls at many psi share already done."""
        return bound

    def restrict(self, items: Sets) -> ExtensionEstimator | None:
        """Return the estimator for some of the sets, from the flat indices of their items, or None if there is none."""
        return None


@dataclass(frozen=True)
class SampledEstimator(ExtensionEstimator, abc.ABC):
    """An estimator that draws subsets, or relaxed masks, of each set.

    Args:
        samples: Number of draws.
        noise: Source of the random numbers.

    Raises:
        OptionError: If `samples` is not a positive integer.
    """

    samples: int
    noise: NoiseSource = field(default_factory=FreshNoise)

    def __post_init__(self) -> None:
        if not isinstance(self.samples, Integral) or self.samples < 1:
            raise OptionError(f"an estimator needs a whole number of samples, at least 1, not {self.samples!r}")

    def frozen(self) -> Self:
        """Return an estimator with one fixed draw of random numbers; its masks still depend on psi."""
        return replace(self, noise=FrozenNoise(self.noise))

    def restrict(self, items: Sets) -> Self | None:
        """Return the estimator with the random numbers of these items."""
        noise = self.noise.restrict(items)
        return None if noise is None else replace(self, noise=noise)


class RelaxedEstimator(SampledEstimator, abc.ABC):
    """A sampled estimator with fractional masks that are differentiable functions of psi, entry by entry."""

    smooth = True

    @abc.abstractmethod
    def _draw(self, bound: BoundSetFunction) -> Callable[[Tensor], Tensor]:
        """Draw random numbers, and return the map from psi to masks `(m, total)`."""

    def value(self, bound: BoundSetFunction, psi: Tensor) -> Tensor:
        """Return the mean value over the masks, `(b,)`."""
        return bound.value(self._make_masks(bound)(psi)).mean(0)

    def gradient(self, bound: BoundSetFunction, psi: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Return the mean gain over the masks: F with the item fully in minus fully out."""
        return mean_gains(bound, self._make_masks(bound)(psi), self.noise, coordinates)

    def hessian_vector(self, bound: BoundSetFunction, psi: Tensor, vector: Tensor) -> Tensor:
        """Return the derivative of the estimated gradient along the vector."""
        masks = self._make_masks(bound)
        # Two reverse passes, because one gives the transposed product, and the estimated Hessian is not symmetric.
        pull = torch.func.vjp(lambda p: mean_gains(bound, masks(p), self.noise, None), psi)[1]
        product: Tensor = torch.func.vjp(lambda w: pull(w)[0], torch.zeros_like(psi))[1](vector)[0]
        return product

    def prepare(self, bound: BoundSetFunction) -> BoundSetFunction:
        """Return the prepared function."""
        return bound.prepared()

    def linearisation(self, bound: BoundSetFunction, psi: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a linear function, by the Jacobian of each set, if the set function has a fast one."""
        masks, psi, sets = self._make_masks(bound), psi.detach(), bound.sets
        with torch.enable_grad():
            # One shift of psi per sample, so that one reverse pass separates the samples.
            shifts = psi.new_zeros(self.samples, *psi.shape).requires_grad_()
            drawn = masks(psi + shifts)
            (slopes,) = torch.autograd.grad(drawn.sum(), shifts)
        result = bound.linearisation(drawn.detach(), slopes)
        if result is None:
            return super().linearisation(bound, psi)
        gains, jacobian = result
        return linear_gains(gains, jacobian, psi, sets, self.noise)

    def _make_masks(self, bound: BoundSetFunction) -> Callable[[Tensor], Tensor]:
        check_relaxed(bound, f"{type(self).__name__}(m)")
        return self._draw(bound)


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


@final
@dataclass(frozen=True)
class Gaussian(RelaxedEstimator):
    """Replace random subsets by Gaussian masks with the same mean and variance: smooth in psi, slightly biased.

    The Hessian-vector product is the exact derivative of the estimated gradient. All methods raise an OptionError if
    the set function does not take relaxed masks.

    Args:
        samples: Number of masks of each set.
        noise: Source of the random numbers; `FreshNoise()` by default.
    """

    def _draw(self, bound: BoundSetFunction) -> Callable[[Tensor], Tensor]:
        normal = self.noise.normal(bound.sets.layout, self.samples)

        def masks(psi: Tensor) -> Tensor:
            variance = psi * (1 - psi)
            # The root has no derivative at 0, so items that are certainly in or out get a mask without noise.
            uncertain = variance > 0
            deviation = torch.where(uncertain, torch.where(uncertain, variance, 1.0).sqrt(), 0.0)
            return psi + deviation * normal.to(psi.dtype)

        return masks


@final
@dataclass(frozen=True)
class Pathwise(RelaxedEstimator):
    """Random subsets as in `Bernoulli`, differentiated as if each mask moved with psi.

    Values are those of `Bernoulli(m)`, and unbiased. The derivative by psi uses the slopes of the relaxed function. It
    is cheap, and biased to the extent that the function is not linear between subsets. All methods raise an OptionError
    if the set function does not take relaxed masks.

    Args:
        samples: Number of random subsets of each set.
        noise: Source of the random numbers; `FreshNoise()` by default.
    """

    def _draw(self, bound: BoundSetFunction) -> Callable[[Tensor], Tensor]:
        uniform = self.noise.uniform(bound.sets.layout, self.samples)

        def masks(psi: Tensor) -> Tensor:
            detached = psi.detach()
            return (uniform < detached).to(psi.dtype) + (psi - detached)

        return masks


def check_relaxed(bound: BoundSetFunction, estimator: str) -> None:
    """Check that a function takes fractional masks, which this estimator needs.

    Raises:
        OptionError: If it does not.
    """
    if not bound.relaxed:
        raise OptionError(
            f"{type(bound).__name__} takes whole subsets only, and {estimator} needs fractional masks; use "
            "Bernoulli(m), SecondDifference(m) or Exact()"
        )


def mean_gains(bound: BoundSetFunction, masks: Tensor, noise: NoiseSource, coordinates: Tensor | None) -> Tensor:
    """Return the mean gains over the masks, equal for items that the noise cannot distinguish."""
    if noise.symmetric:
        # Identical items share one result, so all of them are needed even if only one is selected.
        gains = noise.symmetrise(to_real(bound.gains(masks)).mean(0))
        return gains if coordinates is None else gains[coordinates]
    return to_real(bound.gains(masks, coordinates)).mean(0)


def linear_gains(
    gains: Tensor, jacobian: Tensor, psi: Tensor, sets: Sets, noise: NoiseSource
) -> Callable[[Tensor], Tensor]:
    """Return the linear function with these gains `(total,)` at psi and this Jacobian `(b, longest, longest)`."""

    def linear(p: Tensor) -> Tensor:
        change = (jacobian @ pad(p - psi, sets)[..., None])[..., 0]
        return noise.symmetrise(gains + unpad(change, sets))

    return linear


def second_differences(bound: BoundSetFunction, masks: Tensor, vector: Tensor) -> Tensor:
    """Return the mean second differences of F at subsets times a vector, `(total,)`."""
    layout = bound.sets.layout
    product = torch.zeros_like(vector)
    for item, change in _changes_of_gains(bound, masks):
        weight = torch.zeros(len(layout), dtype=vector.dtype, device=vector.device)
        weight = weight.index_add(0, layout.ids, torch.where(item, vector, torch.zeros_like(vector)))
        product = product + change * weight[layout.ids]
    return product


def second_difference_matrix(bound: BoundSetFunction, masks: Tensor) -> Tensor:
    """Return the mean second differences of F at subsets for each set, `(b, longest, longest)`, without a graph."""
    with torch.no_grad():
        columns = [pad(change, bound.sets) for _, change in _changes_of_gains(bound, masks)]
    return torch.stack(columns, -1)


def _changes_of_gains(bound: BoundSetFunction, masks: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, for each position in a set, which items are there, and how much they change the mean gain of others."""
    layout = bound.sets.layout
    for position in range(layout.longest):
        item = layout.positions == position
        change = to_real(bound.gains(masks | item) - bound.gains(masks & ~item)).mean(0)
        # The extension is linear in each psi_i, so the diagonal is 0.
        yield item, torch.where(item, torch.zeros_like(change), change)
