"""PyEPO's models as solvers, and solvers as PyEPO's models."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from queue import SimpleQueue
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.discrete._solver import CombinatorialSolver, SolverResult
from setgrad.discrete.solvers._pool import Array, WorkerPool, round_points, to_numpy
from setgrad.errors import MissingDependencyError, OptionError, ShapeError


@final
@dataclass(frozen=True, eq=False)
class PyEPOSolver(CombinatorialSolver):
    """An `optModel` of PyEPO as a solver: theta is (*batch, model.num_cost), the sense is the model's.

    If the model raises a RuntimeError, as PyEPO's models do where no solution was found, the instance is INFEASIBLE.

    Args:
        model: An object with `setObj(costs)`, `solve() -> (solution, objective)`, `num_cost` and `modelSense`.
        whole: Whether solutions must be whole numbers. Others get the status FRACTIONAL.
        workers: How many instances to solve at a time, each thread with a copy of the model (`model.copy()`).

    Examples:
        >>> class Cheapest:
        ...     modelSense, num_cost = 1, 3
        ...     def setObj(self, c): self.c = c
        ...     def solve(self): return [float(i == self.c.argmin()) for i in range(3)], self.c.min()
        >>> PyEPOSolver(Cheapest())(torch.tensor([2.0, 1.0, 3.0]))
        tensor([0., 1., 0.])
    """

    model: Any
    whole: bool = field(default=True, kw_only=True)
    workers: int = field(default=1, kw_only=True)
    sense: str = field(default="min", init=False)
    # The model itself, and its copies once they are needed.
    _models: list[Any] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        # PyEPO uses 1 for minimisation and -1 for maximisation.
        object.__setattr__(self, "sense", "min" if int(self.model.modelSense) == 1 else "max")
        super().__post_init__()

    def check(self, theta: Tensor) -> None:
        """Raise a ShapeError if theta has another number of costs than the model."""
        super().check(theta)
        if theta.shape[-1] != self.model.num_cost:
            raise ShapeError(f"the model has {self.model.num_cost} costs, but theta has {theta.shape[-1]}")

    def solve(self, theta: Tensor) -> SolverResult:
        """Solve the instances one by one with the model or its copies."""
        costs = to_numpy(theta if self.sense == "max" else -theta).reshape(-1, theta.shape[-1])
        models: SimpleQueue[Any] = SimpleQueue()
        for number in range(min(self.workers, len(costs))):
            if number == len(self._models):
                self._models.append(self.model.copy() if number else self.model)
            models.put(self._models[number])

        def solve_one(cost: Array) -> Array:
            model = models.get()
            try:
                return _solve_model(model, cost)
            finally:
                models.put(model)

        points = np.array(WorkerPool(self.workers).map(solve_one, costs)).reshape(theta.shape)
        result = round_points(torch.from_numpy(points), 1, whole=self.whole)
        return SolverResult(result.value.to(theta), result.status)


def _solve_model(model: Any, cost: Array) -> Array:
    """Return the model's solution for costs; NaN if there is none."""
    model.setObj(cost)
    try:
        solution, _ = model.solve()
    except RuntimeError:
        return np.full_like(cost, np.nan)
    point: Array = np.asarray(solution, dtype=np.float64).reshape(-1)
    if point.shape != cost.shape:
        raise ShapeError(f"the model returned {len(point)} numbers for {len(cost)} costs")
    return point


def to_pyepo(solver: CombinatorialSolver, shape: int | Sequence[int]) -> Any:
    """Return a solver as an `optModel`, for PyEPO's losses (SPO+, PFY, ...); needs PyEPO: `pip install pyepo`.

    PyEPO's costs are flat, so theta of one instance is read row by row. PyEPO solves one instance at a time.

    Args:
        solver: The solver.
        shape: The shape of one instance of theta.

    Returns:
        An instance of a subclass of `pyepo.model.opt.optModel`.

    Raises:
        OptionError: If the solver takes instances with another number of axes.
        MissingDependencyError: If PyEPO is not installed.

    Examples:
        >>> model = to_pyepo(TopK(2), 5)  # doctest: +SKIP
        >>> pyepo.func.SPOPlus(model)  # doctest: +SKIP
    """
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if len(shape) != solver.dims:
        raise OptionError(f"{type(solver).__name__} takes instances of {solver.dims} axes, got the shape {shape}")
    return _model_class()(solver, shape)


@lru_cache(maxsize=1)
def _model_class() -> Any:
    """Return a subclass of PyEPO's base class, defined when PyEPO is first needed."""
    try:
        base = importlib.import_module("pyepo.model.opt").optModel
    except ImportError as error:
        raise MissingDependencyError("to_pyepo needs PyEPO: pip install pyepo") from error

    class SolverModel(base):  # type: ignore[misc, valid-type]
        """A solver of setgrad with PyEPO's interface."""

        def __init__(self, solver: CombinatorialSolver, shape: tuple[int, ...]) -> None:
            self.solver, self.shape = solver, shape
            self.modelSense = importlib.import_module("pyepo").EPO.ModelSense(1 if solver.sense == "min" else -1)
            super().__init__()

        def _getModel(self) -> tuple[CombinatorialSolver, list[int]]:
            return self.solver, list(range(int(np.prod(self.shape))))

        def setObj(self, c: Any) -> None:
            """Set the costs."""
            self.costs = torch.as_tensor(c).detach().cpu().double().reshape(-1)

        def solve(self) -> tuple[Array, float]:
            """Return the solution, flat, and its objective."""
            z = self.solver(self.costs.reshape(self.shape)).reshape(-1)
            return z.numpy(), float(self.costs @ z)

    return SolverModel
