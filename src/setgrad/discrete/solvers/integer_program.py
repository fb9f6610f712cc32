"""Any integer program with a linear objective."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from setgrad.discrete._solver import CombinatorialSolver, SolverResult
from setgrad.discrete.solvers._host import HostPool, gather, to_host
from setgrad.discrete.solvers._parameters import as_tensor, spread
from setgrad.discrete.solvers.backends import Backend, HiGHS, Program
from setgrad.errors import OptionError, ShapeError


@final
@dataclass(frozen=True, eq=False)
class IntegerProgram(CombinatorialSolver):
    """The best z with lower <= A z <= upper and least <= z <= most, in whole numbers; theta is (*batch, n).

    Instances are solved one by one on the host, and each has a status of its own: INFEASIBLE, UNBOUNDED, TIME_LIMIT
    (z is the best point found so far) or NOT_FOUND (there is none). Which of equal points is found is the backend's
    choice; it depends on the instance alone. Constraints hold up to its tolerance (1e-6 for HiGHS): exactly, where A
    and its bounds are whole numbers.

    Args:
        A: Coefficients of the constraints, (*batch, constraints, n).
        upper: Their upper ends, (*batch, constraints).
        lower: Their lower ends; None is no lower end. Equal ends make an equality.
        least: The least value of each variable: a number or (*batch, n).
        most: The largest value of each variable.
        integer: Which variables are whole: True, or (n,) of bool.
        backend: Who solves a program: `HiGHS()` or `ORTools()`, with a time limit.
        pool: Who solves the instances.

    Example:
        >>> IntegerProgram([[2.0, 3.0, 4.0]], upper=[5.0])(torch.tensor([1.0, 1.5, 2.0]))
        tensor([1., 1., 0.])
    """

    A: Any
    upper: Any
    lower: Any = None
    least: Any = 0.0
    most: Any = 1.0
    integer: Any = True
    backend: Backend = field(default_factory=HiGHS)
    pool: HostPool = field(default_factory=HostPool)

    def __post_init__(self) -> None:
        super().__post_init__()
        if as_tensor(self.A).ndim < 2:
            raise ShapeError(f"A must be (*batch, constraints, n), got shape {tuple(as_tensor(self.A).shape)}")
        for name in ("A", "upper", "lower", "least", "most"):
            if getattr(self, name) is not None and bool(as_tensor(getattr(self, name)).isnan().any()):
                raise OptionError(f"{name} holds NaN")

    def check(self, theta: Tensor) -> None:
        """Refuse a theta with another number of variables."""
        super().check(theta)
        if as_tensor(self.A).shape[-1] != theta.shape[-1]:
            raise ShapeError(f"A has {as_tensor(self.A).shape[-1]} columns, but theta has {theta.shape[-1]} entries")

    def solve(self, theta: Tensor) -> SolverResult:
        """Hand every instance to the pool."""
        batch, n = theta.shape[:-1], theta.shape[-1]
        rows = as_tensor(self.A).shape[-2]
        own = {"A": (rows, n), "upper": (rows,), "lower": (rows,), "least": (n,), "most": (n,), "integer": (n,)}
        given = {name: getattr(self, name) for name in own}
        if self.lower is None:
            given["lower"] = -torch.inf
        arrays = {
            name: to_host(spread(name, as_tensor(value), batch, *own[name])).reshape(batch.numel(), *own[name])
            for name, value in given.items()
        }
        whole = arrays.pop("integer").astype(bool)
        programs = [
            Program(value, integer=whole[i], **{name: array[i] for name, array in arrays.items()})
            for i, value in enumerate(to_host(theta).reshape(-1, n))
        ]
        return gather(self.pool.map(self.backend.solve, programs), theta)
