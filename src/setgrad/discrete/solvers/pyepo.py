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

from setgrad._status import Status
from setgrad.discrete._solver import CombinatorialSolver, SolverResult
from setgrad.discrete.solvers._host import WHOLE, Array, HostPool, gather, to_host
from setgrad.errors import MissingDependencyError, OptionError, ShapeError


@final
@dataclass(frozen=True, eq=False)
class FromPyEPO(CombinatorialSolver):
    """An `optModel` of PyEPO as a solver: theta is (*batch, model.num_cost), the sense is the model's.

    A model that raises RuntimeError, as PyEPO's do where no solution was found, makes its instance INFEASIBLE.

    Args:
        model: Anything with `setObj(costs)`, `solve() -> (solution, objective)`, `num_cost` and `modelSense`.
        whole: Whether answers must be whole numbers. They get the status FRACTIONAL where they are not.
        workers: How many instances to solve at a time, each thread with a copy of the model (`model.copy()`).

    Example:
        >>> class Cheapest:
        ...     modelSense, num_cost = 1, 3
        ...     def setObj(self, c): self.c = c
        ...     def solve(self): return [float(i == self.c.argmin()) for i in range(3)], self.c.min()
        >>> FromPyEPO(Cheapest())(torch.tensor([2.0, 1.0, 3.0]))
        tensor([0., 1., 0.])
    """

    model: Any
    whole: bool = field(default=True, kw_only=True)
    workers: int = field(default=1, kw_only=True)
    sense: str = field(default="min", init=False)
    # The model itself, and its copies once they are needed.
    _models: list[Any] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        # PyEPO writes 1 for the smallest and -1 for the largest objective.
        object.__setattr__(self, "sense", "min" if int(self.model.modelSense) == 1 else "max")
        super().__post_init__()

    def check(self, theta: Tensor) -> None:
        """Refuse a theta with another number of costs."""
        super().check(theta)
        if theta.shape[-1] != self.model.num_cost:
            raise ShapeError(f"the model has {self.model.num_cost} costs, but theta has {theta.shape[-1]}")

    def solve(self, theta: Tensor) -> SolverResult:
        """Let the model, or its copies, solve one instance after the other."""
        n = theta.shape[-1]
        costs = to_host(theta if self.sense == "max" else -theta).reshape(-1, n)
        models: SimpleQueue[Any] = SimpleQueue()
        for number in range(min(self.workers, len(costs))):
            if number == len(self._models):
                self._models.append(self.model.copy() if number else self.model)
            models.put(self._models[number])

        def one(cost: Array) -> tuple[Array | None, Status]:
            model = models.get()
            try:
                return self._ask(model, cost)
            finally:
                models.put(model)

        return gather(HostPool(self.workers).map(one, costs), theta)

    def _ask(self, model: Any, cost: Array) -> tuple[Array | None, Status]:
        model.setObj(cost)
        try:
            solution, _ = model.solve()
        except RuntimeError:
            return None, Status.INFEASIBLE
        point = np.asarray(solution, dtype=np.float64).reshape(-1)
        if point.shape != cost.shape:
            raise ShapeError(f"the model returned {len(point)} numbers for {len(cost)} costs")
        if not np.isfinite(point).all():
            return None, Status.INFEASIBLE if np.isnan(point).any() else Status.UNBOUNDED
        if not self.whole:
            return point, Status.SOLVED
        near = np.round(point)
        fractional = not bool((np.abs(near - point) <= WHOLE).all())
        return near, Status.FRACTIONAL if fractional else Status.SOLVED


def to_pyepo(solver: CombinatorialSolver, shape: int | Sequence[int]) -> Any:
    """A solver as an `optModel`, for PyEPO's losses (SPO+, PFY, ...); needs PyEPO: `pip install pyepo`.

    PyEPO's costs are flat, so theta of `shape` (one instance) is read row by row. It asks for one instance at a time.

    Example:
        >>> model = to_pyepo(TopK(2), 5)  # doctest: +SKIP
        >>> pyepo.func.SPOPlus(model)  # doctest: +SKIP
    """
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if len(shape) != solver.dims:
        raise OptionError(f"{type(solver).__name__} takes instances of {solver.dims} axes, got the shape {shape}")
    return _model_type()(solver, shape)


@lru_cache(maxsize=1)
def _model_type() -> Any:
    """A class of PyEPO's, made when PyEPO is first needed."""
    try:
        base = importlib.import_module("pyepo.model.opt").optModel
    except ImportError as error:
        raise MissingDependencyError("to_pyepo needs PyEPO: pip install pyepo") from error

    class SolverModel(base):  # type: ignore[misc, valid-type]
        """A solver of setgrad's behind PyEPO's interface."""

        def __init__(self, solver: CombinatorialSolver, shape: tuple[int, ...]) -> None:
            self.solver, self.shape = solver, shape
            self.modelSense = importlib.import_module("pyepo").EPO.ModelSense(1 if solver.sense == "min" else -1)
            super().__init__()

        def _getModel(self) -> tuple[CombinatorialSolver, list[int]]:
            return self.solver, list(range(int(np.prod(self.shape))))

        def setObj(self, c: Any) -> None:
            """Keep the costs."""
            self.costs = torch.as_tensor(c).detach().cpu().double().reshape(-1)

        def solve(self) -> tuple[Array, float]:
            """The solution, flat, and its objective."""
            z = self.solver(self.costs.reshape(self.shape)).reshape(-1)
            return z.numpy(), float(self.costs @ z)

    return SolverModel
