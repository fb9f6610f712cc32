"""Mean-field inference: the probabilities psi that solve psi = sigmoid(gradient of the multilinear extension).

How far the iteration goes and what of it is differentiated is the choice of a solver: `OneStepMeanField` and `UnrolledMeanField` take a
fixed number of steps from a start, `ImplicitMeanField` goes on until the probabilities settle.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from numbers import Integral
from typing import final

import torch
from torch import Tensor

from setgrad.errors import OptionError, unknown_name
from setgrad.functions import BoundSetFunction, ExtensionEstimator, SetFunction, as_set_function
from setgrad.implicit import Solution, Status
from setgrad.inference.scales import SCALES, Scale
from setgrad.sets import Sets, segment_max


@final
@dataclass(frozen=True, eq=False)
class MeanField:
    """What inference found.

    `logits` belong to all items, or to the `coordinates` that were asked for; `value` is their sigmoid. `residual` says
    for each set how far from settled it is: the largest change of a probability in the last step. `status` is that of
    `setgrad.implicit`, for each set, where the solver has one, and `solution` what it returned.
    """

    logits: Tensor
    coordinates: Tensor | None
    residual: Tensor
    steps: int | Tensor
    status: Tensor | None = None
    solution: Solution | None = None

    @property
    def value(self) -> Tensor:
        """Probability of each item to be chosen."""
        return torch.sigmoid(self.logits)

    @property
    def settled(self) -> Tensor:
        """Which sets were solved; after a backward pass, those whose adjoint system was solved too."""
        if self.status is None or self.solution is None:
            return torch.ones_like(self.residual, dtype=torch.bool)
        # As numbers: with the member itself, `torch.compile` would make one bool of the comparison.
        solved = self.status == int(Status.CONVERGED)
        adjoint = self.solution.adjoint
        return solved if adjoint is None else solved & (adjoint.status == int(Status.CONVERGED))


@final
@dataclass(frozen=True, eq=False)
class Equation:
    """z = logits(psi), psi = sigmoid(z), for the sets of a batch."""

    bound: BoundSetFunction
    estimator: ExtensionEstimator
    scale: Scale | None

    def logits(self, psi: Tensor, wanted: Tensor | None = None) -> Tensor:
        """The scaled gradient of the multilinear extension, for all items or those `wanted`."""
        if self.scale is None:
            return self.estimator.gradient(self.bound, psi, wanted)
        # A scale looks at the gradient of a whole set, so nothing is saved by asking for a part of it.
        scaled = self.scale(self.estimator.gradient(self.bound, psi), self.bound.sets.layout)
        return scaled if wanted is None else scaled[wanted]

    def step(self, psi: Tensor) -> Tensor:
        """One plain step."""
        return torch.sigmoid(self.logits(psi))

    def change(self, logits: Tensor, psi: Tensor, wanted: Tensor | None) -> Tensor:
        """For each set the largest difference between sigmoid(logits) of the `wanted` items and psi."""
        places = slice(None) if wanted is None else wanted
        before = psi.detach()
        change = (torch.sigmoid(logits.detach()) - before[places]).abs().to(before.dtype)
        if wanted is not None:
            change = torch.zeros_like(before).index_copy(0, wanted, change)
        return segment_max(change, self.bound.sets, empty=0.0)


class MeanFieldSolver(abc.ABC):
    """How far to iterate, and what to differentiate."""

    @abc.abstractmethod
    def solve(self, equation: Equation, psi: Tensor, coordinates: Tensor | None) -> MeanField:
        """From probabilities to start with, find the logits of all items or those of `coordinates`."""


@final
@dataclass(frozen=True)
class OneStepMeanField(MeanFieldSolver):
    """Take `steps` steps and differentiate the last one only, whatever the estimator.

    With `Bernoulli` samples this is what the published DiffMF computes, without the graph that it builds in vain, and
    what the published iDiffMF computes once it has converged.
    """

    steps: int = 1

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def solve(self, equation: Equation, psi: Tensor, coordinates: Tensor | None) -> MeanField:
        """Iterate without a graph, then take one step with it."""
        psi = psi.detach()
        with torch.no_grad():
            for _ in range(self.steps - 1):
                # Forward mode goes on without a graph, but not past this.
                psi = equation.step(psi).detach()
        logits = equation.logits(psi, coordinates)
        return MeanField(logits, coordinates, equation.change(logits, psi, coordinates), self.steps)


@final
@dataclass(frozen=True)
class UnrolledMeanField(MeanFieldSolver):
    """Take `steps` steps and differentiate through all of them. More than one step needs a smooth estimator."""

    steps: int = 1

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def solve(self, equation: Equation, psi: Tensor, coordinates: Tensor | None) -> MeanField:
        """Iterate with the graph kept."""
        if self.steps > 1 and not equation.estimator.smooth and torch.is_grad_enabled():
            raise OptionError(
                f"{self.steps} unrolled steps cannot be differentiated through Bernoulli samples, whose derivative "
                "with respect to psi is 0: use Gaussian(m) or Exact(), or OneStepMeanField(steps) for the last step alone"
            )
        for _ in range(self.steps - 1):
            psi = equation.step(psi)
        logits = equation.logits(psi, coordinates)
        return MeanField(logits, coordinates, equation.change(logits, psi, coordinates), self.steps)


def mean_field(
    function: SetFunction,
    sets: Sets,
    *,
    estimator: ExtensionEstimator,
    solver: MeanFieldSolver | None = None,
    scale: Scale | str | None = None,
    start: float | Tensor = 0.5,
    coordinates: Tensor | None = None,
) -> MeanField:
    """Infer how likely each item is to be chosen.

    Args:
        function: F, or any callable that `as_set_function` takes.
        sets: The sets to choose from.
        estimator: How expectations over subsets are taken: `Exact()`, `Bernoulli(m)`, `Gaussian(m)`, `Pathwise(m)`.
        solver: `OneStepMeanField()` by default; `UnrolledMeanField(k)`, `ImplicitMeanField()`.
        scale: None, a `Scale`, or the name of one: "l2", "frobenius-batch", "nuclear-batch".
        start: Probability that the iteration starts from, one number or one for each item.
        coordinates: Flat numbers of the items whose probability will be read; None for all.

    Example:
        >>> import setgrad as sg
        >>> sets = sg.Sets.from_list([[[0.0], [3.0]]])
        >>> found = mean_field(sg.functions.Modular(), sets, estimator=sg.functions.Exact())
        >>> [round(p, 3) for p in found.value.tolist()]
        [0.5, 0.953]
    """
    if isinstance(scale, str):
        if scale not in SCALES:
            raise unknown_name("scale", scale, SCALES)
        scale = SCALES[scale]
    _check_kinds(estimator, solver, scale, coordinates)
    # Here and not below, because looking at the numbers waits for a GPU.
    if isinstance(start, Tensor) and not bool(((start >= 0) & (start <= 1)).all()):
        raise OptionError("mean field starts at probabilities between 0 and 1 everywhere, without NaN")
    bound = as_set_function(function).bind(sets)
    return solve_bound(bound, estimator, solver or OneStepMeanField(), scale, start, coordinates)


def solve_bound(
    bound: BoundSetFunction,
    estimator: ExtensionEstimator,
    solver: MeanFieldSolver,
    scale: Scale | None,
    start: float | Tensor,
    coordinates: Tensor | None,
) -> MeanField:
    """Run mean field on a function that is already bound to its sets."""
    layout = bound.sets.layout
    kind = bound.sets.dtype if bound.sets.dtype.is_floating_point else torch.get_default_dtype()
    if isinstance(start, Tensor):
        if start.shape != (layout.total,):
            raise OptionError(
                f"start must be one probability, or one for each of {layout.total} items, not {tuple(start.shape)}"
            )
        psi = start.to(kind)
    elif 0 <= start <= 1:
        psi = torch.full((layout.total,), start, dtype=kind, device=layout.device)
    else:
        raise OptionError(f"mean field starts at a probability between 0 and 1, not {start}")
    return solver.solve(Equation(bound, estimator, scale), psi, coordinates)


def _check_steps(steps: int) -> None:
    if not isinstance(steps, Integral) or isinstance(steps, bool) or steps < 1:
        raise OptionError(f"mean field needs a whole number of steps, at least 1, not {steps!r}")


def _check_kinds(
    estimator: ExtensionEstimator, solver: MeanFieldSolver | None, scale: Scale | None, coordinates: Tensor | None
) -> None:
    if not isinstance(estimator, ExtensionEstimator):
        raise OptionError(f"estimator must be Exact(), Bernoulli(m), Gaussian(m) or another, not {estimator!r}")
    if not (solver is None or isinstance(solver, MeanFieldSolver)):
        raise OptionError(
            f"solver must be OneStepMeanField(), UnrolledMeanField(k) or ImplicitMeanField(), not {solver!r}"
        )
    if not (scale is None or isinstance(scale, Scale)):
        raise OptionError(f"scale must be ConstantScale(c), L2Scale(), a name or None, not {scale!r}")
    if coordinates is not None and (coordinates.dtype == torch.bool or coordinates.is_floating_point()):
        raise OptionError("coordinates are numbers of items, such as mask.nonzero()[:, 0], not a mask or fractions")
