"""Any integer program with a linear objective."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from setgrad.discrete._solver import CombinatorialSolver, SolverResult
from setgrad.discrete.solvers._parameters import as_tensor, broadcast_parameter
from setgrad.discrete.solvers._pool import WorkerPool, stack_results, to_numpy
from setgrad.discrete.solvers.backends import Backend, HiGHS, Program
from setgrad.errors import OptionError, ShapeError


@final
@dataclass(frozen=True, eq=False)
class IntegerProgram(CombinatorialSolver):
    """The best z with lower <= A z <= upper and min_value <= z <= max_value, in whole numbers; theta is (*batch, n).

    Instances are solved one by one on the CPU, and each has its own status: INFEASIBLE, UNBOUNDED, TIME_LIMIT (z is the
    best point found so far) or NOT_FOUND (no point was found). Ties are broken by the backend; the result depends on
    the instance alone. Constraints hold up to the backend's tolerance (1e-6 for HiGHS), and exactly where A and its
    bounds are whole numbers.

    Args:
        A: Coefficients of the constraints, (*batch, constraints, n).
        upper: Upper bounds of the constraints, (*batch, constraints).
        lower: Lower bounds of the constraints; None for none. Equal bounds make an equality.
        min_value: The minimum of each variable: a number or (*batch, n).
        max_value: The maximum of each variable: a number or (*batch, n).
        integer: Which variables are whole: True for all, or (n,) of bool.
        backend: `HiGHS()` or `ORTools()`, with a time limit.
        pool: The workers that solve the instances.

    Raises:
        ShapeError: If A has fewer than two axes.
        OptionError: If a parameter contains NaN.

    Examples:
        >>> IntegerProgram([[2.0, 3.0, 4.0]], upper=[5.0])(torch.tensor([1.0, 1.5, 2.0]))
        tensor([1., 1., 0.])
    """

    A: Any
    upper: Any
    lower: Any = None
    min_value: Any = 0.0
    max_value: Any = 1.0
    integer: Any = True
    backend: Backend = field(default_factory=HiGHS)
    pool: WorkerPool = field(default_factory=WorkerPool)

    def __post_init__(self) -> None:
        super().__post_init__()
        if as_tensor(self.A).ndim < 2:
            raise ShapeError(f"A must be (*batch, constraints, n), got shape {tuple(as_tensor(self.A).shape)}")
        for name in ("A", "upper", "lower", "min_value", "max_value"):
            if getattr(self, name) is not None and bool(as_tensor(getattr(self, name)).isnan().any()):
                raise OptionError(f"{name} contains NaN")

    def check(self, theta: Tensor) -> None:
        """Raise a ShapeError if theta has another number of variables than A."""
        super().check(theta)
        if as_tensor(self.A).shape[-1] != theta.shape[-1]:
            raise ShapeError(f"A has {as_tensor(self.A).shape[-1]} columns, but theta has {theta.shape[-1]} entries")

    def solve(self, theta: Tensor) -> SolverResult:
        """Solve every instance in the pool."""
        batch, n = theta.shape[:-1], theta.shape[-1]
        rows = as_tensor(self.A).shape[-2]
        shapes = {"A": (rows, n), "upper": (rows,), "lower": (rows,)}
        shapes |= dict.fromkeys(("min_value", "max_value", "integer"), (n,))
        values = {name: getattr(self, name) for name in shapes}
        if self.lower is None:
            values["lower"] = -torch.inf
        arrays = {
            name: to_numpy(broadcast_parameter(name, as_tensor(values[name]), batch, *shape)).reshape(
                batch.numel(), *shape
            )
            for name, shape in shapes.items()
        }
        integer = arrays.pop("integer").astype(bool)
        programs = [
            Program(value, integer=integer[i], **{name: array[i] for name, array in arrays.items()})
            for i, value in enumerate(to_numpy(theta).reshape(-1, n))
        ]
        return stack_results(self.pool.map(self.backend.solve, programs), theta)
