"""Does plain mean-field iteration converge here? What paper 000 demands, what can be proven, and what is measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.errors import OptionError, ShapeError, unknown_name
from setgrad.functions import BoundSetFunction, ExtensionEstimator, ItemNoise, SetFunction, as_set_function
from setgrad.implicit import contraction_estimate
from setgrad.inference.implicit import ImplicitMeanField
from setgrad.inference.mean_field import Equation, solve_bound
from setgrad.inference.scales import SCALES, Scale
from setgrad.sets import Sets, segment_max, unpad

# Beyond this size not all subsets are looked at, but so many random ones.
_EXACT_LIMIT = 20
_SAMPLES = 1024
# Subsets valued at once.
_STEP = 2**12
_SHOWN = 10


@final
@dataclass(frozen=True, eq=False)
class Contraction:
    """How the map psi -> sigmoid(g(psi)) behaves, one number for each set.

    Attributes:
        sizes: Number of items |V|.
        largest: Largest |F| over the subsets, which is the largest value of |multilinear extension| too: it is linear
            in each psi_i, so a corner is its extreme. Where `exact` is false, the largest among random subsets, and the
            truth is at least that. Times the scale's factor if there is one; NaN for a scale that depends on the
            gradient, which is then the gradient of no function.
        exact: Whether all subsets were looked at.
        proven: A factor by which every step brings any two points nearer, if below 1: sqrt(n (n - 1)) times half the
            range of F. Second differences of F are at most twice its range, those of an item with itself 0, the slope
            of the sigmoid at most 1/4. Sharper than the n times `largest` of the paper. NaN where `largest` is not
            exact.
        factor: Modulus of the largest eigenvalue of the map's Jacobian at psi: the factor of the last steps of plain
            iteration near a solution. At 1 or above it moves away; `ImplicitMeanField()` solves all the same.
        settled: Whether psi solves the equation, to a change of 1e-3; elsewhere `factor` says nothing about a solution.
    """

    sizes: Tensor
    largest: Tensor
    exact: Tensor
    proven: Tensor
    factor: Tensor
    settled: Tensor

    @property
    def assumption(self) -> Tensor:
        """Where assumption 4.1 of paper 000 is known to hold: sup |F| < 1 / |V|. Sufficient, far from necessary."""
        return self.exact & (self.largest * self.sizes < 1)

    def steps(self, tolerance: float) -> Tensor:
        """Steps of plain iteration to this distance in l2 from anywhere, by appendix H with the measured `factor`.

        The appendix has the factor of the worst point; the measured one is that of psi, so this is an estimate.
        Infinite where the factor is not below 1.
        """
        sizes, factors = self.sizes.tolist(), self.factor.tolist()
        found = [
            iterations_needed(q, tolerance, math.sqrt(n)) if q < 1 else math.inf
            for n, q in zip(sizes, factors, strict=True)
        ]
        return torch.tensor(found, dtype=self.factor.dtype, device=self.factor.device)

    def __str__(self) -> str:
        count = len(self.sizes)
        close, known = int((self.factor < 1).sum()), int(self.assumption.sum())
        lines = [
            f"plain iteration converges near psi for {close} of {count} sets; assumption 4.1 is known to hold for "
            f"{known}, a contraction is proven for {int((self.proven < 1).sum())}",
            f"{'set':>6} {'|V|':>6} {'sup |F|':>10} {'1/|V|':>8} {'proven':>8} {'factor':>8} {'steps to 1e-4':>14}",
        ]
        columns = (self.sizes, self.largest, self.exact, self.proven, self.factor, self.settled, self.steps(1e-4))
        for i, row in enumerate(zip(*(c[:_SHOWN].tolist() for c in columns), strict=True)):
            n, largest, exact, proven, factor, settled, steps = row
            sup, note = f"{'' if exact else '>='}{largest:.3g}", "" if settled else "  (psi is no solution)"
            allowed = 1 / n if n else math.inf
            lines.append(f"{i:>6} {n:>6} {sup:>10} {allowed:>8.3g} {proven:>8.3g} {factor:>8.3g} {steps:>14g}{note}")
        return "\n".join(lines if count <= _SHOWN else [*lines, f"... and {count - _SHOWN} more"])


def contraction(
    function: SetFunction | BoundSetFunction | Callable[[Tensor, Tensor], Tensor],
    sets: Sets,
    *,
    estimator: ExtensionEstimator,
    scale: Scale | str | None = None,
    psi: Tensor | None = None,
) -> Contraction:
    """Measure, for each set, whether plain mean-field iteration converges.

    Args:
        function: F, bound to the sets or not.
        sets: The sets.
        estimator: A smooth one: `Exact()`, `Gaussian(m)`, `Pathwise(m)`, `SecondDifference(m)`.
        scale: As in `mean_field`.
        psi: Probabilities `(total,)` at which to measure; None to solve the equation first.

    Example:
        >>> import setgrad as sg
        >>> F = sg.functions.FromCallable(lambda items, masks: 0.05 * masks.float().sum(1) ** 2)
        >>> found = contraction(F, sg.Sets.from_list([[[0.0], [1.0]]]), estimator=sg.functions.Exact())
        >>> bool(found.assumption), round(float(found.largest), 3), round(float(found.factor), 3)
        (True, 0.2, 0.025)
    """
    bound = function if isinstance(function, BoundSetFunction) else as_set_function(function).bind(sets)
    layout = sets.layout
    if not bound.sets.layout.same_as(layout):
        raise ShapeError("the function is bound to sets of other sizes; bind it to these sets")
    if not estimator.smooth:
        raise OptionError(
            "the contraction is measured by a derivative with respect to psi, and that of Bernoulli samples is 0: use "
            "Gaussian(m), Pathwise(m), SecondDifference(m) or Exact()"
        )
    if isinstance(scale, str):
        if scale not in SCALES:
            raise unknown_name("scale", scale, SCALES)
        scale = SCALES[scale]
    frozen = estimator.frozen()
    with torch.no_grad():
        if psi is None:
            psi = solve_bound(bound, frozen, ImplicitMeanField(on_failure="mask"), scale, 0.5, None).value
        equation = Equation(bound, frozen, scale)
        step = equation.step(psi)
        settled = segment_max((step - psi).abs(), sets, empty=0.0) < 1e-3
        low, high, exact = _extremes(bound)
    sizes = layout.lengths
    unit = _multiplier(scale, sets, low)
    return Contraction(
        sizes,
        torch.maximum(low.abs(), high.abs()) * unit,
        exact,
        torch.where(exact, (sizes * (sizes - 1)).to(low.dtype).sqrt() * (high - low) / 2 * unit, torch.nan),
        _factor(equation, psi),
        settled,
    )


def iterations_needed(contraction: float, tolerance: float, first: float) -> int:
    """Steps after which plain iteration is within `tolerance` of the solution, if every step contracts (appendix H).

    That is the least K with q^K first / (1 - q) <= tolerance. The paper prints it as a bound from above on K; it is one
    from below.

    Args:
        contraction: Factor q by which a step brings two points nearer to each other, below 1.
        tolerance: Largest distance to the solution that will do.
        first: Distance between the start and the first iterate; where that is not known, sqrt(|V|), the largest
            distance of two vectors of probabilities.

    Example:
        >>> iterations_needed(0.5, 1e-3, 1.0)
        11
    """
    if not 0 <= contraction < 1:
        raise OptionError(
            f"a contraction has a factor between 0 and 1, not {contraction}; without one there is no bound"
        )
    if not tolerance > 0 or not first >= 0:
        raise OptionError(f"tolerance must be positive and first not negative, not {tolerance} and {first}")
    goal = tolerance * (1 - contraction)
    if first <= goal:
        return 0
    return 1 if contraction == 0 else math.ceil(math.log(goal / first) / math.log(contraction))


def _extremes(bound: BoundSetFunction) -> tuple[Tensor, Tensor, Tensor]:
    """Smallest and largest F of each set, and whether all subsets were looked at."""
    layout = bound.sets.layout
    small = layout.lengths <= _EXACT_LIMIT
    inside = small[layout.ids]
    sizes = layout.host_lengths[layout.host_lengths <= _EXACT_LIMIT]
    places = torch.where(inside, layout.positions, 0)
    rows = torch.arange(2 ** int(sizes.max(initial=0)), device=layout.device)[:, None]
    masks = (((part >> places) & 1 == 1) & inside for part in rows.split(_STEP))
    found = [_ends(bound.value(part)) for part in masks]
    if len(sizes) != len(layout):
        # Of every size from nothing to everything; the numbers follow from the items, not from the batch.
        share = torch.linspace(0, 1, _SAMPLES, device=layout.device)[:, None]
        found.append(_ends(bound.value((ItemNoise(bound.sets).uniform(layout, _SAMPLES) < share) & ~inside)))
    low, high = (torch.stack(ends) for ends in zip(*found, strict=True))
    return low.amin(0), high.amax(0), small


def _ends(values: Tensor) -> tuple[Tensor, Tensor]:
    return values.amin(0), values.amax(0)


def _multiplier(scale: Scale | None, sets: Sets, like: Tensor) -> Tensor:
    """What a scale multiplies F by, for each set."""
    if scale is None:
        return torch.ones_like(like)
    if not scale.linear:
        return torch.full_like(like, torch.nan)
    ones = torch.ones(sets.layout.total, dtype=like.dtype, device=like.device)
    return segment_max(scale(ones, sets.layout), sets, empty=1.0)


def _factor(equation: Equation, psi: Tensor) -> Tensor:
    sets = equation.bound.sets.with_values(psi.detach())
    if not sets.layout.total:
        return psi.new_zeros(len(sets))
    # Fixed tensors: the map is differentiated with respect to psi alone.
    bound = equation.bound.with_tensors([t.detach() for t in equation.bound.tensors()])
    fixed = Equation(bound, equation.estimator, equation.scale)
    if fixed.scale is not None and fixed.scale.joint:
        return contraction_estimate(lambda p: fixed.step(p[0])[None], sets.values[None]).expand(len(sets))
    return contraction_estimate(lambda p: sets.with_values(fixed.step(unpad(p, sets))).padded()[0], sets.padded()[0])
