"""The multilinear extension: the expected value of F when item i is in S with probability psi_i, independently.

    value(psi) = sum over S of F(S) prod_{i in S} psi_i prod_{i not in S} (1 - psi_i)

Its partial derivative is the expected marginal gain of the item, its mixed second derivative the expected second
difference. The estimators differ in how they take these expectations; see the README of this room.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Self, final

import torch
from torch import Tensor

from setgrad._autograd import has_tangent, is_tracked
from setgrad.errors import OptionError, ShapeError
from setgrad.functions._protocol import BoundSetFunction, SetFunction, as_set_function, real
from setgrad.functions.noise import FreshNoise, FrozenNoise, NoiseSource
from setgrad.sets import Sets, segment_sum, unpad

# 2^20 subsets of one set are still enumerated; beyond that memory is gone before patience.
_EXACT_LIMIT = 20
_EXACT_STEP = 2**14


class ExtensionEstimator(abc.ABC):
    """A way to compute the multilinear extension and its derivatives with respect to psi `(total,)`.

    `smooth` says whether results can be differentiated with respect to psi. Where they cannot, asking for it raises:
    a graph that was cut would give a wrong gradient without a word.
    """

    smooth: bool

    def frozen(self) -> ExtensionEstimator:
        """The same with one draw for all calls."""
        return self

    def part(self, items: Sets) -> ExtensionEstimator | None:
        """The same for some of the sets, whose items are given by their flat numbers; None if it cannot be had."""
        return None

    def prepare(self, bound: BoundSetFunction) -> BoundSetFunction:
        """The same function with what many calls at different psi share computed once."""
        return bound

    def tangent(self, bound: BoundSetFunction, psi: Tensor) -> Callable[[Tensor], Tensor]:
        """A function of psi that agrees with `gradient` at this psi: in value and all first derivatives.

        For those who need many products with the derivative by psi, which may be much cheaper.
        """
        return lambda p: self.gradient(bound, p)

    @abc.abstractmethod
    def value(self, bound: BoundSetFunction, psi: Tensor) -> Tensor:
        """Value for each set, `(b,)`."""

    @abc.abstractmethod
    def gradient(self, bound: BoundSetFunction, psi: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Derivative with respect to psi, `(total,)`, or `(len(coordinates),)` for those items alone."""

    @abc.abstractmethod
    def hessian_vector(self, bound: BoundSetFunction, psi: Tensor, vector: Tensor) -> Tensor:
        """Second derivative times a vector `(total,)`; the sets do not interact."""


@dataclass(frozen=True)
class Sampled(ExtensionEstimator, abc.ABC):
    """One that draws `samples` subsets of each set, or what stands for them, from a noise."""

    samples: int
    noise: NoiseSource = field(default_factory=FreshNoise)

    def __post_init__(self) -> None:
        check_samples(self.samples)

    def frozen(self) -> Self:
        """One draw of random numbers; what is made of them still follows psi."""
        return replace(self, noise=FrozenNoise(self.noise))

    def part(self, items: Sets) -> Self | None:
        """With the numbers of these items."""
        noise = self.noise.part(items)
        return None if noise is None else replace(self, noise=noise)


@final
@dataclass(frozen=True)
class Exact(ExtensionEstimator):
    """Enumerate all subsets: no error, for sets of up to 20 items. Smooth at every order."""

    smooth = True

    def value(self, bound: BoundSetFunction, psi: Tensor) -> Tensor:
        """Contract the table of all values with the probabilities, one item at a time."""
        return self._extension(bound)(psi)

    def gradient(self, bound: BoundSetFunction, psi: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Differentiate the contraction."""
        extension = self._extension(bound)
        gradient = torch.func.grad(lambda p: extension(p).sum())(psi)
        return gradient if coordinates is None else gradient[coordinates]

    def hessian_vector(self, bound: BoundSetFunction, psi: Tensor, vector: Tensor) -> Tensor:
        """Differentiate the contraction twice."""
        extension = self._extension(bound)
        gradient = torch.func.grad(lambda p: extension(p).sum())
        # The Hessian is symmetric, so a reverse pass will do; forward mode in torch 2.13 warns of its own parts.
        return torch.func.grad(lambda p: gradient(p) @ vector)(psi)

    def prepare(self, bound: BoundSetFunction) -> BoundSetFunction:
        """Value all subsets; derivatives then go through the table."""
        return _Tabulated(bound.sets, self._table(bound))

    def _table(self, bound: BoundSetFunction) -> Tensor:
        """Values of all subsets of each set, `(2^longest, b)`, by the bits of the row's number."""
        if isinstance(bound, _Tabulated):
            return bound.table
        layout = bound.sets.layout
        longest = layout.longest
        if longest > _EXACT_LIMIT:
            raise OptionError(
                f"Exact() enumerates all subsets and stops at {_EXACT_LIMIT} items; the largest set has {longest}. "
                "Use Bernoulli(m) or Gaussian(m)"
            )
        subsets = torch.arange(2**longest, device=layout.device)[:, None]
        # In pieces: some functions need a whole matrix for each subset to value it.
        pieces = subsets.split(_EXACT_STEP)
        return real(torch.cat([bound.value((piece >> layout.positions) & 1 == 1) for piece in pieces]))

    def _extension(self, bound: BoundSetFunction) -> Callable[[Tensor], Tensor]:
        layout = bound.sets.layout
        longest = layout.longest
        table = self._table(bound)

        def extension(psi: Tensor) -> Tensor:
            # Places beyond the end of a set have probability 0: the rows that use them repeat other rows.
            padded, _ = Sets(psi, layout).padded()
            rest = table.T
            for place in range(longest):
                rest = rest.reshape(len(layout), -1, 2)
                p = padded[:, place, None].to(table.dtype)
                rest = rest[..., 0] * (1 - p) + rest[..., 1] * p
            return rest.reshape(len(layout))

        return extension


@final
class _Tabulated(BoundSetFunction):
    """F as the table of its values, a row for each subset and a column for each set."""

    def __init__(self, sets: Sets, table: Tensor) -> None:
        self.sets, self.table = sets, table

    def value(self, masks: Tensor) -> Tensor:
        powers = torch.zeros_like(masks, dtype=torch.long) + (1 << self.sets.layout.positions)
        rows = segment_sum((masks.bool() * powers).T, self.sets).T
        return self.table.gather(0, rows)


@final
@dataclass(frozen=True)
class Bernoulli(Sampled):
    """Average over `samples` random subsets, shared by all items of a set: unbiased.

    The gain of an item never looks at the item's own bit, so one draw serves every item. The draw cuts the graph to
    psi; use `Gaussian` or `Exact` to differentiate with respect to psi.
    """

    smooth = False

    def value(self, bound: BoundSetFunction, psi: Tensor) -> Tensor:
        """Mean value of the samples."""
        return real(bound.value(self._draw(bound, psi))).mean(0)

    def gradient(self, bound: BoundSetFunction, psi: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Mean gain over the samples."""
        return mean_gains(bound, self._draw(bound, psi), self.noise, coordinates)

    def hessian_vector(self, bound: BoundSetFunction, psi: Tensor, vector: Tensor) -> Tensor:
        """Mean second differences: unbiased, and as many times dearer than the gradient as a set has items."""
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
class Gaussian(Sampled):
    """Replace the random subset by a Gaussian mask with the same mean and variance: smooth in psi, slightly biased.

    Needs a function that takes relaxed masks. The Hessian-vector product is the exact derivative of the estimated
    gradient.
    """

    smooth = True

    def value(self, bound: BoundSetFunction, psi: Tensor) -> Tensor:
        """Mean value of the relaxed masks."""
        return bound.value(self._masks(psi, self._draw(bound))).mean(0)

    def gradient(self, bound: BoundSetFunction, psi: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Mean gain, the item fully in minus fully out."""
        return mean_gains(bound, self._masks(psi, self._draw(bound)), self.noise, coordinates)

    def hessian_vector(self, bound: BoundSetFunction, psi: Tensor, vector: Tensor) -> Tensor:
        """Derivative of the estimated gradient along the vector."""
        eps = self._draw(bound)
        return along(lambda p: mean_gains(bound, self._masks(p, eps), self.noise, None), psi, vector)

    def prepare(self, bound: BoundSetFunction) -> BoundSetFunction:
        """As the function says."""
        return bound.prepared()

    def tangent(self, bound: BoundSetFunction, psi: Tensor) -> Callable[[Tensor], Tensor]:
        """By the Jacobian of each set, where the function has it."""
        eps = self._draw(bound)
        straight = relaxed_tangent(bound, psi, self.samples, lambda p: self._masks(p, eps), self.noise)
        return straight or super().tangent(bound, psi)

    def _draw(self, bound: BoundSetFunction) -> Tensor:
        check_relaxed(bound, "Gaussian masks are fractional")
        return self.noise.normal(bound.sets.layout, self.samples)

    @staticmethod
    def _masks(psi: Tensor, eps: Tensor) -> Tensor:
        variance = psi * (1 - psi)
        # The root has no derivative at 0: items that are surely in or out get a mask without noise.
        inside = variance > 0
        deviation = torch.where(inside, torch.where(inside, variance, 1.0).sqrt(), 0.0)
        return psi + deviation * eps.to(psi.dtype)


def multilinear_value(function: SetFunction, sets: Sets, psi: Tensor, *, estimator: ExtensionEstimator) -> Tensor:
    """Value of the multilinear extension for each set, `(b,)`, at probabilities `(total,)`."""
    return estimator.value(as_set_function(function).bind(sets), check_psi(psi, sets))


def multilinear_gradient(
    function: SetFunction, sets: Sets, psi: Tensor, *, estimator: ExtensionEstimator, coordinates: Tensor | None = None
) -> Tensor:
    """Gradient of the multilinear extension, `(total,)`, or only its entries `coordinates`.

    Example:
        >>> import setgrad as sg
        >>> F = sg.functions.Modular()
        >>> sets = sg.Sets.from_list([[[1.0], [2.0]], [[3.0]]])
        >>> multilinear_gradient(F, sets, torch.full((3,), 0.5), estimator=Exact()).tolist()
        [1.0, 2.0, 3.0]
    """
    return estimator.gradient(as_set_function(function).bind(sets), check_psi(psi, sets), coordinates)


def multilinear_hessian_vector(
    function: SetFunction, sets: Sets, psi: Tensor, vector: Tensor, *, estimator: ExtensionEstimator
) -> Tensor:
    """Second derivative of the multilinear extension times a vector, `(total,)`."""
    if vector.shape != psi.shape:
        raise ShapeError(f"the vector has shape {tuple(vector.shape)}, psi has {tuple(psi.shape)}")
    psi = check_psi(psi, sets)
    return estimator.hessian_vector(as_set_function(function).bind(sets), psi, vector.to(psi.dtype))


def check_psi(psi: Tensor, sets: Sets) -> Tensor:
    """Probabilities in the type of the items; an error if they are not aligned with them or not between 0 and 1."""
    if psi.shape != (sets.layout.total,):
        raise ShapeError(
            f"psi must have shape ({sets.layout.total},), one number for each item, not {tuple(psi.shape)}"
        )
    if not bool(((psi >= 0) & (psi <= 1)).all()):
        raise OptionError("psi must lie between 0 and 1 everywhere, without NaN")
    return psi.to(sets.dtype) if sets.dtype.is_floating_point else psi


def mean_gains(bound: BoundSetFunction, masks: Tensor, noise: NoiseSource, coordinates: Tensor | None) -> Tensor:
    """Gains averaged over the masks, equal for items that the noise cannot tell apart."""
    if noise.symmetric:
        # Identical items share one result, so those that were not asked for count too.
        gains = noise.symmetrise(real(bound.gains(masks)).mean(0))
        return gains if coordinates is None else gains[coordinates]
    return real(bound.gains(masks, coordinates)).mean(0)


def along(gradient: Callable[[Tensor], Tensor], psi: Tensor, vector: Tensor) -> Tensor:
    """Derivative of a function of psi along a vector, by two reverse passes: one alone would transpose."""
    pull = torch.func.vjp(gradient, psi)[1]
    product: Tensor = torch.func.vjp(lambda w: pull(w)[0], torch.zeros_like(psi))[1](vector)[0]
    return product


def second_differences(bound: BoundSetFunction, masks: Tensor, vector: Tensor) -> Tensor:
    """Mean second differences of F at subsets, times a vector `(total,)`, one item of every set at a time."""
    layout = bound.sets.layout
    product = torch.zeros_like(vector)
    for place in range(layout.longest):
        here = layout.positions == place
        change = real(bound.gains(masks | here) - bound.gains(masks & ~here))
        weight = torch.zeros(len(layout), dtype=vector.dtype, device=vector.device)
        weight = weight.index_add(0, layout.ids, torch.where(here, vector, torch.zeros_like(vector)))
        # The extension is linear in each psi_i, so the diagonal is 0.
        product = product + torch.where(here, torch.zeros_like(vector), change.mean(0) * weight[layout.ids])
    return product


def relaxed_tangent(
    bound: BoundSetFunction, psi: Tensor, samples: int, masks: Callable[[Tensor], Tensor], noise: NoiseSource
) -> Callable[[Tensor], Tensor] | None:
    """The mean gains as a straight function of psi, for masks `(m, total)` made of psi entry by entry.

    None where the function has no quick Jacobian.
    """
    psi = psi.detach()
    with torch.enable_grad():
        # A copy of psi for each sample, so that one reverse pass tells the samples apart.
        apart = psi.new_zeros(samples, *psi.shape).requires_grad_()
        drawn = masks(psi + apart)
        (moves,) = torch.autograd.grad(drawn.sum(), apart)
    found = bound.linearised(drawn.detach(), moves)
    if found is None:
        return None
    gains, matrix = found
    sets = bound.sets

    def straight(p: Tensor) -> Tensor:
        change = sets.with_values(p - psi).padded()[0]
        return noise.symmetrise(gains + unpad((matrix @ change[..., None])[..., 0], sets))

    return straight


def check_relaxed(bound: BoundSetFunction, reason: str) -> None:
    """Refuse a function of whole subsets where fractions of items are needed."""
    if not bound.relaxed:
        raise OptionError(
            f"{type(bound).__name__} takes whole subsets only, and {reason}; use Bernoulli(m), SecondDifference(m) or "
            "Exact()"
        )


def check_samples(samples: int) -> None:
    """Refuse a number of samples that is none."""
    if not isinstance(samples, Integral) or samples < 1:
        raise OptionError(f"an estimator needs a whole number of samples, at least 1, not {samples!r}")
