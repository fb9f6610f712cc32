"""Mean-field inference: the probabilities psi that solve psi = sigmoid(gradient of the multilinear extension).

A solver decides how many steps are taken and what is differentiated: `OneStepMeanField` and `UnrolledMeanField` take a
fixed number of steps. `ImplicitMeanField` iterates until the probabilities converge: `setgrad.implicit` solves and
differentiates the equation z = g(sigmoid(z)) for the logits z, where g is the scaled gradient of the extension.

With S = psi (1 - psi), the function S (z - g) is the gradient of minus the ELBO, so its Jacobian at the solution,
S - S H S, is symmetric, and positive definite at a strict maximum even if the iteration is not a contraction. Conjugate
gradients, preconditioned by 1/S, solve the adjoint system.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral
from typing import final

import torch
from torch import Tensor

from setgrad._autograd import is_tracked, outside_graph
from setgrad._deprecation import deprecated_string
from setgrad.errors import OptionError
from setgrad.functions import BoundSetFunction, Exact, ExtensionEstimator, as_set_function
from setgrad.functions._set_function import AnySetFunction
from setgrad.implicit import CG, GMRES, AdaptivePicard, EquationSolver, LinearSolver, Solution, Status, fixed_point
from setgrad.inference.scales import SCALES, Scale
from setgrad.sets import Sets, segment_max, unpad
from setgrad.sets._sets import pad

# Logits below this size count as 0 in the tolerance. Logits under a scale are small and must still be solved for.
_MIN_NORM = 1e-6
# On a GPU, convergence is checked every so many steps. Few steps are often enough, so checks are frequent.
_CHECK_EVERY = 2


@final
@dataclass(frozen=True, eq=False)
class MeanField:
    """The result of mean-field inference.

    Attributes:
        logits: Logits of all items, or of the items `coordinates`.
        coordinates: Flat indices of the items that the logits belong to; None for all.
        residual: For each set, the largest change of a probability in the last step.
        steps: Number of steps, for each set if the solver counts them.
        status: For each set, its `setgrad.implicit.Status`; None for solvers with a fixed number of steps.
        solution: The solution of the equation; None for solvers with a fixed number of steps.
    """

    logits: Tensor
    coordinates: Tensor | None
    residual: Tensor
    steps: int | Tensor
    status: Tensor | None = None
    solution: Solution | None = None

    @property
    def value(self) -> Tensor:
        """The probability of each item to be chosen."""
        return torch.sigmoid(self.logits)

    @property
    def converged(self) -> Tensor:
        """For each set, whether it was solved; after a backward pass, whether its adjoint system was solved too."""
        if self.status is None or self.solution is None:
            return torch.ones_like(self.residual, dtype=torch.bool)
        # With the member itself instead of int, `torch.compile` would turn the comparison into one bool.
        solved = self.status == int(Status.CONVERGED)
        adjoint = self.solution.adjoint
        return solved if adjoint is None else solved & (adjoint.status == int(Status.CONVERGED))


@final
@dataclass(frozen=True, eq=False)
class Equation:
    """The mean-field equation z = logits(psi), psi = sigmoid(z), for the sets of a batch."""

    bound: BoundSetFunction
    estimator: ExtensionEstimator
    scale: Scale | None

    def logits(self, psi: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Return the scaled gradient of the multilinear extension, of all items or of the items `coordinates`."""
        if self.scale is None:
            return self.estimator.gradient(self.bound, psi, coordinates)
        # A scale needs the gradient of the whole set.
        scaled = self.scale(self.estimator.gradient(self.bound, psi), self.bound.sets.layout)
        return scaled if coordinates is None else scaled[coordinates]

    def step(self, psi: Tensor) -> Tensor:
        """Return the probabilities after one plain step."""
        return torch.sigmoid(self.logits(psi))

    def result(self, psi: Tensor, steps: int, coordinates: Tensor | None) -> MeanField:
        """Return the result of a last step from psi, with the largest change of a probability of each set."""
        logits = self.logits(psi, coordinates)
        before = psi.detach()
        read = slice(None) if coordinates is None else coordinates
        change = (torch.sigmoid(logits.detach()) - before[read]).abs().to(before.dtype)
        if coordinates is not None:
            change = torch.zeros_like(before).index_copy(0, coordinates, change)
        return MeanField(logits, coordinates, segment_max(change, self.bound.sets, empty=0.0), steps)


class MeanFieldSolver(abc.ABC):
    """A choice of how far to iterate and what to differentiate."""

    @abc.abstractmethod
    def solve(self, equation: Equation, psi: Tensor, coordinates: Tensor | None) -> MeanField:
        """Return the result for an equation.

        Args:
            equation: The equation.
            psi: Probabilities to start from, `(total,)`.
            coordinates: Flat indices of the items to return; None for all.
        """


@final
@dataclass(frozen=True)
class OneStepMeanField(MeanFieldSolver):
    """Take several steps and differentiate the last one only. Works with every estimator.

    With `Bernoulli` samples this is the gradient of the published DiffMF, without its unused graph, and the gradient of
    the published iDiffMF after convergence.

    Args:
        steps: Number of steps.

    Raises:
        OptionError: If `steps` is not a positive integer.
    """

    steps: int = 1

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def solve(self, equation: Equation, psi: Tensor, coordinates: Tensor | None) -> MeanField:
        """Return the result of the last step, which alone has a graph."""
        psi = psi.detach()
        with torch.no_grad():
            for _ in range(self.steps - 1):
                # `no_grad` does not stop forward mode, `detach` does.
                psi = equation.step(psi).detach()
        return equation.result(psi, self.steps, coordinates)


@final
@dataclass(frozen=True)
class UnrolledMeanField(MeanFieldSolver):
    """Take several steps and differentiate through all of them. More than one step needs a smooth estimator.

    Args:
        steps: Number of steps.

    Raises:
        OptionError: If `steps` is not a positive integer.
    """

    steps: int = 1

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def solve(self, equation: Equation, psi: Tensor, coordinates: Tensor | None) -> MeanField:
        """Return the result of the last step, with the graph of all steps.

        Raises:
            OptionError: If several steps through `Bernoulli` samples are to be differentiated.
        """
        if self.steps > 1 and not equation.estimator.smooth and torch.is_grad_enabled():
            raise OptionError(
                f"{self.steps} unrolled steps cannot be differentiated through Bernoulli samples, whose derivative "
                "with respect to psi is 0: use Gaussian(m), Exact(), or OneStepMeanField(steps) for the last step only"
            )
        for _ in range(self.steps - 1):
            psi = equation.step(psi)
        return equation.result(psi, self.steps, coordinates)


@final
@dataclass(frozen=True)
class ImplicitMeanField(MeanFieldSolver):
    """Iterate until the probabilities converge, and differentiate the solution by the implicit function theorem.

    The gradient does not depend on the path to the solution, and memory does not grow with the number of steps. The
    random numbers of the estimator are drawn once, so that there is one equation to solve.

    Args:
        solver: A solver of fixed points.
        adjoint: Solver of the linear system of the backward pass. By default `CG()` if the system is symmetric, which
            it is with `Exact()` and no scale or a constant one, else `GMRES()`.
        tol: Norm of z - g(sigmoid(z)), relative to the norm of z, at which a set has converged.
        max_steps: Largest number of steps.
        on_failure: "raise", "warn" or "mask". With "mask", sets that do not converge get no gradient, and their status
            says so.
    """

    solver: EquationSolver = field(default_factory=AdaptivePicard)
    adjoint: LinearSolver | None = None
    tol: float = 1e-4
    max_steps: int = 100
    on_failure: str = "raise"

    def solve(self, equation: Equation, psi: Tensor, coordinates: Tensor | None) -> MeanField:
        """Return the solution for all items, or its entries `coordinates`.

        Raises:
            OptionError: If a gradient through `Bernoulli` samples is needed.
            ConvergenceError: If a set does not converge and `on_failure` is "raise".
        """
        needs_gradient = torch.is_grad_enabled() and any(is_tracked(t) for t in equation.bound.tensors())
        if needs_gradient and not equation.estimator.smooth:
            raise OptionError(
                "the implicit gradient needs the derivative of the equation with respect to psi, which is 0 for "
                "Bernoulli samples: use Gaussian(m), Pathwise(m), SecondDifference(m) or Exact()"
            )
        estimator, scale = equation.estimator.frozen(), equation.scale
        bound = estimator.prepare(equation.bound)
        joint = scale is not None and scale.joint
        # A start of 0 or 1 has an infinite logit, from which no iteration returns.
        sets = equation.bound.sets.with_values(torch.logit(psi.detach(), eps=torch.finfo(psi.dtype).eps))
        # A scale that reads the whole batch turns it into one sample.
        start, mask = (sets.values[None], None) if joint else sets.padded()

        def step(z: Tensor, gradient: Callable[[Tensor], Tensor]) -> Tensor:
            logits = gradient(_probabilities(z, sets, joint))
            logits = logits if scale is None else scale(logits, sets.layout)
            return logits[None] if joint else pad(logits, sets)

        def fn(z: Tensor, *tensors: Tensor) -> Tensor:
            function = bound.with_tensors(tensors)
            return step(z, lambda psi: estimator.gradient(function, psi))

        def linearisation(z: Tensor, *tensors: Tensor) -> Callable[[Tensor], Tensor]:
            function = bound.with_tensors(tensors)
            gradient = estimator.linearisation(function, _probabilities(z.detach(), sets, joint))
            return lambda v: step(v, gradient)

        item_indices = sets.with_values(torch.arange(sets.layout.total, device=psi.device))

        def restrict(rows: Tensor, *tensors: Tensor) -> Callable[[Tensor], Tensor] | None:
            items = item_indices.take(rows)
            few, function = estimator.restrict(items), bound.with_tensors(tensors).restrict(rows, items)
            if few is None or function is None:
                return None
            longest = items.layout.longest

            def fn(z: Tensor) -> Tensor:
                logits = few.gradient(function, torch.sigmoid(unpad(z[:, :longest], items)))
                logits = logits if scale is None else scale(logits, items.layout)
                return torch.nn.functional.pad(pad(logits, items), (0, z.shape[1] - longest))

            return fn

        symmetric = isinstance(estimator, Exact) and (scale is None or scale.linear)

        def solve() -> Solution:
            return fixed_point(
                fn,
                start,
                *bound.tensors(),
                solver=self.solver,
                adjoint=self.adjoint or (CG() if symmetric else GMRES(restart=10)),
                tol=self.tol,
                max_steps=self.max_steps,
                on_failure=self.on_failure,
                mask=None if mask is None or sets.layout.uniform else mask,
                weight=_variance,
                check_every=1 if psi.device.type == "cpu" else _CHECK_EVERY,
                min_norm=_MIN_NORM,
                linearisation=linearisation,
                restrict=None if joint else restrict,
            )

        # `torch.compile` cannot trace the layout of the sets inside the derivatives of the equation.
        solution = outside_graph(solve)
        z = solution.value[0] if joint else unpad(solution.value, sets)
        repeats = len(sets) if joint else 1
        return MeanField(
            z if coordinates is None else z[coordinates],
            coordinates,
            # A probability moves by at most a quarter of the change of its logit.
            (solution.residual / 4).repeat(repeats),
            solution.steps.repeat(repeats),
            solution.status.repeat(repeats),
            solution,
        )


def mean_field(
    function: AnySetFunction,
    sets: Sets,
    *,
    estimator: ExtensionEstimator,
    solver: MeanFieldSolver | None = None,
    scale: Scale | str | None = None,
    start: float | Tensor = 0.5,
    coordinates: Tensor | None = None,
) -> MeanField:
    """Infer the probability of each item to be chosen.

    Args:
        function: F, or any callable that `as_set_function` takes.
        sets: The sets to choose from.
        estimator: How expectations over subsets are computed: `Exact()`, `Bernoulli(m)`, `Gaussian(m)`, `Pathwise(m)`.
        solver: `OneStepMeanField()` by default; `UnrolledMeanField(k)`, `ImplicitMeanField()`.
        scale: How the gradient is scaled before the sigmoid, such as `L2Scale()`; None for no scale.
        start: Probability that the iteration starts from, one number or one for each item.
        coordinates: Flat indices of the items whose probabilities are needed; None for all.

    Returns:
        Probabilities, logits, and how the iteration ended.

    Raises:
        OptionError: If an argument has the wrong type or value, or the estimator does not support the function.
        ConvergenceError: If `ImplicitMeanField(on_failure="raise")` does not converge.

    Examples:
        >>> import setgrad as sg
        >>> sets = sg.Sets.from_list([[[0.0], [3.0]]])
        >>> result = mean_field(sg.functions.Modular(), sets, estimator=sg.functions.Exact())
        >>> [round(p, 3) for p in result.value.tolist()]
        [0.5, 0.953]
    """
    if isinstance(scale, str):
        scale = deprecated_string("scale", scale, SCALES, removed_in="0.3.0")
    if not isinstance(estimator, ExtensionEstimator):
        raise OptionError(f"estimator must be Exact(), Bernoulli(m), Gaussian(m) or another one, not {estimator!r}")
    if not (solver is None or isinstance(solver, MeanFieldSolver)):
        raise OptionError(
            f"solver must be OneStepMeanField(), UnrolledMeanField(k) or ImplicitMeanField(), not {solver!r}"
        )
    if not (scale is None or isinstance(scale, Scale)):
        raise OptionError(f"scale must be ConstantScale(c), L2Scale(), another Scale or None, not {scale!r}")
    if coordinates is not None and (coordinates.dtype == torch.bool or coordinates.is_floating_point()):
        raise OptionError("coordinates are indices of items, such as mask.nonzero()[:, 0], not a mask or fractions")
    # Checked in this function only, because reading the values waits for the GPU.
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
    """Run mean field on a function that is already bound to its sets; the arguments are those of `mean_field`.

    Raises:
        OptionError: If `start` is not one probability, or one for each item.
    """
    layout = bound.sets.layout
    dtype = bound.sets.values.dtype
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    if isinstance(start, Tensor):
        if start.shape != (layout.total,):
            raise OptionError(
                f"start must be one probability, or one for each of {layout.total} items, not {tuple(start.shape)}"
            )
        psi = start.to(dtype)
    elif 0 <= start <= 1:
        psi = torch.full((layout.total,), start, dtype=dtype, device=layout.device)
    else:
        raise OptionError(f"mean field starts at a probability between 0 and 1, not {start}")
    return solver.solve(Equation(bound, estimator, scale), psi, coordinates)


def _check_steps(steps: int) -> None:
    if not isinstance(steps, Integral) or isinstance(steps, bool) or steps < 1:
        raise OptionError(f"mean field needs a whole number of steps, at least 1, not {steps!r}")


def _probabilities(z: Tensor, sets: Sets, joint: bool) -> Tensor:
    """Return the probability of each item from the unknowns of the equation."""
    return torch.sigmoid(z[0] if joint else unpad(z, sets))


def _variance(z: Tensor) -> Tensor:
    """Return the variance psi (1 - psi) of each item, above rounding: certain items would make the system singular."""
    psi = torch.sigmoid(z)
    return (psi * torch.sigmoid(-z)).clamp(min=torch.finfo(z.dtype).eps)
