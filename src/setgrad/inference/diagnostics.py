"""Whether plain mean-field iteration converges: the published condition, a proven factor, and a measured one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad._deprecation import deprecated_string
from setgrad.errors import OptionError, ShapeError
from setgrad.functions import BoundSetFunction, ExtensionEstimator, ItemNoise, as_set_function
from setgrad.functions._set_function import AnySetFunction
from setgrad.implicit import contraction_estimate
from setgrad.inference.mean_field import Equation, ImplicitMeanField, solve_bound
from setgrad.inference.scales import SCALES, Scale
from setgrad.sets import Sets, segment_max, unpad

# Sets with more items are evaluated at random subsets instead of all of them.
_EXACT_LIMIT = 20
_RANDOM_SUBSETS = 1024
_SUBSETS_AT_ONCE = 2**12
# Number of sets that `str` lists.
_MAX_LINES = 10


@final
@dataclass(frozen=True, eq=False)
class Contraction:
    """Convergence of the map psi -> sigmoid(g(psi)), one number for each set.

    Attributes:
        sizes: Number of items |V|.
        largest: Largest |F| over all subsets, which is the largest |multilinear extension| too, because the extension
            is linear in each psi_i. If `exact` is false, the largest over random subsets, a lower bound. Multiplied by
            the factor of the scale if there is one; NaN for a scale that depends on the gradient, because the scaled
            gradient is then not the gradient of a function.
        exact: Whether all subsets were evaluated.
        proven: A proven contraction factor, if below 1: sqrt(n (n - 1)) times half the range of F. Second differences
            of F are at most twice its range, those of an item with itself are 0, and the slope of the sigmoid is at
            most 1/4. Sharper than n times `largest`, the factor of Özcan et al. (2024, arXiv:2412.11239). NaN if
            `largest` is not exact.
        factor: Absolute value of the largest eigenvalue of the map's Jacobian at psi, the factor of the last steps of
            plain iteration near a solution. At 1 or above plain iteration moves away; `ImplicitMeanField()` may still
            solve the equation.
        converged: Whether psi solves the equation, up to a change of 1e-3. If not, `factor` says nothing about a
            solution.
    """

    sizes: Tensor
    largest: Tensor
    exact: Tensor
    proven: Tensor
    factor: Tensor
    converged: Tensor

    @property
    def assumption(self) -> Tensor:
        """Whether Assumption 4.1 of Özcan et al. (2024), sup |F| < 1 / |V|, is known to hold for each set.

        It is sufficient for convergence, and far from necessary.
        """
        return self.exact & (self.largest * self.sizes < 1)

    def steps(self, tolerance: float) -> Tensor:
        """Estimate the number of plain steps to this l2 distance from the solution, from any start.

        This is the bound of `iterations_needed` with the measured `factor`. The bound needs the factor of the worst
        point, so the result is an estimate.

        Returns:
            The number of steps for each set; infinite if the factor is not below 1.
        """
        counts = [
            iterations_needed(q, tolerance, math.sqrt(n)) if q < 1 else math.inf
            for n, q in zip(self.sizes.tolist(), self.factor.tolist(), strict=True)
        ]
        return torch.tensor(counts, dtype=self.factor.dtype, device=self.factor.device)

    def __str__(self) -> str:
        count = len(self.sizes)
        convergent, assumed = int((self.factor < 1).sum()), int(self.assumption.sum())
        lines = [
            f"plain iteration converges near psi for {convergent} of {count} sets; assumption 4.1 is known to hold for "
            f"{assumed}, a contraction is proven for {int((self.proven < 1).sum())}",
            f"{'set':>6} {'|V|':>6} {'sup |F|':>10} {'1/|V|':>8} {'proven':>8} {'factor':>8} {'steps to 1e-4':>14}",
        ]
        columns = (self.sizes, self.largest, self.exact, self.proven, self.factor, self.converged, self.steps(1e-4))
        for i, row in enumerate(zip(*(c[:_MAX_LINES].tolist() for c in columns), strict=True)):
            n, largest, exact, proven, factor, converged, steps = row
            sup, note = f"{'' if exact else '>='}{largest:.3g}", "" if converged else "  (psi is not a solution)"
            limit = 1 / n if n else math.inf
            lines.append(f"{i:>6} {n:>6} {sup:>10} {limit:>8.3g} {proven:>8.3g} {factor:>8.3g} {steps:>14g}{note}")
        return "\n".join(lines if count <= _MAX_LINES else [*lines, f"... and {count - _MAX_LINES} more"])


def contraction(
    function: AnySetFunction | BoundSetFunction,
    sets: Sets,
    *,
    estimator: ExtensionEstimator,
    scale: Scale | str | None = None,
    psi: Tensor | None = None,
) -> Contraction:
    """Measure for each set whether plain mean-field iteration converges.

    Args:
        function: F, bound to the sets or not.
        sets: The sets.
        estimator: A smooth one: `Exact()`, `Gaussian(m)`, `Pathwise(m)`, `SecondDifference(m)`.
        scale: As in `mean_field`.
        psi: Probabilities `(total,)` at which to measure; None to solve the equation first.

    Returns:
        The measurements; printing them gives a table.

    Raises:
        ShapeError: If the function is bound to sets of other sizes.
        OptionError: If the estimator is not smooth.

    Examples:
        >>> import setgrad as sg
        >>> F = sg.functions.FromCallable(lambda items, masks: 0.05 * masks.float().sum(1) ** 2)
        >>> result = contraction(F, sg.Sets.from_list([[[0.0], [1.0]]]), estimator=sg.functions.Exact())
        >>> bool(result.assumption), round(float(result.largest), 3), round(float(result.factor), 3)
        (True, 0.2, 0.025)
    """
    scale = deprecated_string("scale", scale, SCALES, removed_in="0.3.0")
    bound = function if isinstance(function, BoundSetFunction) else as_set_function(function).bind(sets)
    if not bound.sets.layout.same_as(sets.layout):
        raise ShapeError("the function is bound to sets of other sizes; bind it to these sets")
    if not estimator.smooth:
        raise OptionError(
            "the contraction is measured by a derivative with respect to psi, which is 0 for Bernoulli samples: use "
            "Gaussian(m), Pathwise(m), SecondDifference(m) or Exact()"
        )
    frozen = estimator.frozen()
    with torch.no_grad():
        if psi is None:
            psi = solve_bound(bound, frozen, ImplicitMeanField(on_failure="mask"), scale, 0.5, None).value
        equation = Equation(bound, frozen, scale)
        converged = segment_max((equation.step(psi) - psi).abs(), sets, empty=0.0) < 1e-3
        low, high, exact = _extremes(bound)
    sizes = sets.layout.lengths
    multiplier = _multiplier(scale, sets, low)
    return Contraction(
        sizes,
        torch.maximum(low.abs(), high.abs()) * multiplier,
        exact,
        torch.where(exact, (sizes * (sizes - 1)).to(low.dtype).sqrt() * (high - low) / 2 * multiplier, torch.nan),
        _factor(equation, psi),
        converged,
    )


def iterations_needed(contraction: float, tolerance: float, first: float) -> int:
    """Return the number of plain steps that suffice for a tolerance, if every step contracts.

    That is the smallest K with q^K first / (1 - q) <= tolerance (Özcan et al., 2024, Appendix H). The paper prints it
    as an upper bound on K; it is a lower bound.

    Args:
        contraction: Contraction factor q, below 1.
        tolerance: Largest acceptable distance to the solution.
        first: Distance between the start and the first iterate. If it is not known, use sqrt(|V|), the largest distance
            of two vectors of probabilities.

    Raises:
        OptionError: If the factor is not in [0, 1), the tolerance is not positive, or the distance is negative.

    Examples:
        >>> iterations_needed(0.5, 1e-3, 1.0)
        11
    """
    if not 0 <= contraction < 1:
        raise OptionError(
            f"the factor of a contraction is at least 0 and below 1, not {contraction}: there is no bound"
        )
    if not tolerance > 0 or not first >= 0:
        raise OptionError(f"tolerance must be positive and first not negative, not {tolerance} and {first}")
    goal = tolerance * (1 - contraction)
    if first <= goal:
        return 0
    return 1 if contraction == 0 else math.ceil(math.log(goal / first) / math.log(contraction))


def _extremes(bound: BoundSetFunction) -> tuple[Tensor, Tensor, Tensor]:
    """Return the smallest and the largest F of each set, and whether all of its subsets were evaluated."""
    layout = bound.sets.layout
    small = layout.lengths <= _EXACT_LIMIT
    in_small = small[layout.ids]
    sizes = layout.host_lengths[layout.host_lengths <= _EXACT_LIMIT]
    places = torch.where(in_small, layout.positions, 0)
    rows = torch.arange(2 ** int(sizes.max(initial=0)), device=layout.device)[:, None]
    masks = (((chunk >> places) & 1 == 1) & in_small for chunk in rows.split(_SUBSETS_AT_ONCE))
    extremes = [_min_and_max(bound.value(chunk)) for chunk in masks]
    if len(sizes) != len(layout):
        # Subsets of every size. The random numbers follow from the items, so that they do not depend on the batch.
        share = torch.linspace(0, 1, _RANDOM_SUBSETS, device=layout.device)[:, None]
        drawn = ItemNoise(bound.sets).uniform(layout, _RANDOM_SUBSETS) < share
        extremes.append(_min_and_max(bound.value(drawn & ~in_small)))
    low, high = (torch.stack(values) for values in zip(*extremes, strict=True))
    return low.amin(0), high.amax(0), small


def _min_and_max(values: Tensor) -> tuple[Tensor, Tensor]:
    return values.amin(0), values.amax(0)


def _multiplier(scale: Scale | None, sets: Sets, like: Tensor) -> Tensor:
    """Return the number by which a scale multiplies F, for each set."""
    if scale is None:
        return torch.ones_like(like)
    if not scale.linear:
        return torch.full_like(like, torch.nan)
    ones = torch.ones(sets.layout.total, dtype=like.dtype, device=like.device)
    return segment_max(scale(ones, sets.layout), sets, empty=1.0)


def _factor(equation: Equation, psi: Tensor) -> Tensor:
    """Return the largest eigenvalue of the Jacobian of a step, in absolute value, for each set."""
    sets = equation.bound.sets.with_values(psi.detach())
    if not sets.layout.total:
        return psi.new_zeros(len(sets))
    # Detached tensors, because the map is differentiated with respect to psi only.
    bound = equation.bound.with_tensors([t.detach() for t in equation.bound.tensors()])
    fixed = Equation(bound, equation.estimator, equation.scale)
    if fixed.scale is not None and fixed.scale.joint:
        return contraction_estimate(lambda p: fixed.step(p[0])[None], sets.values[None]).expand(len(sets))
    return contraction_estimate(lambda p: sets.with_values(fixed.step(unpad(p, sets))).padded()[0], sets.padded()[0])
