"""Solvers of one integer program: HiGHS by way of SciPy, and OR-Tools."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import numpy.typing as npt

from setgrad._status import Status
from setgrad.discrete.solvers._host import WHOLE, Array, need
from setgrad.errors import OptionError

# The power of 2 that is about a million.
_EXPONENT_OF_VALUES = 20


@final
@dataclass(frozen=True, eq=False)
class Program:
    """Maximise value @ x, with lower <= A x <= upper and least <= x <= most, x whole where `integer` says so."""

    value: Array
    A: Array
    lower: Array
    upper: Array
    least: Array
    most: Array
    integer: npt.NDArray[np.bool_]

    @property
    def bounded(self) -> bool:
        """Whether every variable has two finite ends."""
        return bool(np.isfinite(self.least).all() and np.isfinite(self.most).all())

    def with_row(self, row: Array, upper: float) -> Program:
        """The same program with one constraint more: row @ x <= upper."""
        return replace(
            self,
            A=np.vstack([self.A, row]),
            lower=np.append(self.lower, -np.inf),
            upper=np.append(self.upper, upper),
        )

    def scaled(self) -> Program:
        """The same program in the units that backends work best in; powers of 2 lose no digit.

        Their tolerances are not relative. The largest entry of each row is about 1, far above the tolerance of rows.
        Values are about a million, because points whose products differ by less than 1e-6 are equal to a backend.
        """
        rows = -_exponent(self.A)
        return replace(
            self,
            value=np.ldexp(self.value, _EXPONENT_OF_VALUES - _exponent(self.value)),
            A=np.ldexp(self.A, rows[:, None]),
            lower=np.ldexp(self.lower, rows),
            upper=np.ldexp(self.upper, rows),
        )


def _exponent(numbers: Array) -> npt.NDArray[np.int32]:
    """Of the power of 2 next above the largest number on the last axis; 0 where all are 0."""
    return np.frexp(np.abs(numbers).max(-1, initial=0))[1]


@dataclass(frozen=True, kw_only=True)
class Backend(ABC):
    """Solves a program.

    Args:
        time_limit: Seconds for one instance; None is no limit.
    """

    time_limit: float | None = None

    def __post_init__(self) -> None:
        if self.time_limit is not None and not self.time_limit >= 0:
            raise OptionError(f"time_limit must be 0 seconds or more, got {self.time_limit}")

    @abstractmethod
    def find(self, program: Program) -> tuple[Array | None, Status]:
        """The best point that was found, if any, and how it ended."""

    def solve(self, program: Program) -> tuple[Array | None, Status]:
        """The point with its whole numbers made exactly whole, and how it ended."""
        point, status = self.find(program.scaled())
        if point is None:
            return None, Status.NOT_FOUND if status == Status.TIME_LIMIT else status
        whole = np.where(program.integer, np.round(point), point)
        if np.abs(whole - point).max(initial=0) > WHOLE:
            return None, Status.FRACTIONAL
        return np.clip(whole, program.least, program.most), status


@final
@dataclass(frozen=True)
class HiGHS(Backend):
    """HiGHS, which comes with SciPy.

    Args:
        gap: Stop when the best point is known to be within this part of the best value; 0 is exact, up to about 1e-12
            of the largest entry of theta.

    Example:
        >>> HiGHS(time_limit=60.0)
        HiGHS(time_limit=60.0, gap=0.0)
    """

    gap: float = 0.0

    def find(self, program: Program) -> tuple[Array | None, Status]:
        """One call of `scipy.optimize.milp`."""
        optimize = need("scipy.optimize")
        limit = {} if self.time_limit is None else {"time_limit": self.time_limit}
        found = optimize.milp(
            -program.value,
            integrality=program.integer.astype(np.uint8),
            bounds=optimize.Bounds(program.least, program.most),
            constraints=optimize.LinearConstraint(program.A, program.lower, program.upper) if len(program.A) else (),
            options={"mip_rel_gap": self.gap, **limit},
        )
        ends = {0: Status.SOLVED, 1: Status.TIME_LIMIT, 2: Status.INFEASIBLE, 3: Status.UNBOUNDED}
        # HiGHS sometimes cannot tell the two apart; with bounds on all variables it can only be the first.
        status = ends.get(found.status, Status.INFEASIBLE if program.bounded else Status.UNBOUNDED)
        return found.x, status


@final
@dataclass(frozen=True)
class ORTools(Backend):
    """One of the solvers of OR-Tools (`pip install "setgrad[solvers]"`).

    Args:
        engine: Its name there: "SCIP", "SAT" (all variables must be whole), "CBC", ...

    Example:
        >>> ORTools(engine="SAT")
        ORTools(time_limit=None, engine='SAT')
    """

    engine: str = "SCIP"

    def find(self, program: Program) -> tuple[Array | None, Status]:
        """Build the model, solve it, read the point."""
        linear = need("ortools.linear_solver.pywraplp")
        model = linear.Solver.CreateSolver(self.engine)
        if model is None:
            raise OptionError(f"OR-Tools has no engine {self.engine!r}; try SCIP or SAT")
        if self.time_limit is not None:
            model.SetTimeLimit(max(1, round(1000 * self.time_limit)))
        x = [
            model.Var(float(least), float(most), bool(integer), "")
            for least, most, integer in zip(program.least, program.most, program.integer, strict=True)
        ]
        for row, lower, upper in zip(program.A, program.lower, program.upper, strict=True):
            constraint = model.Constraint(float(lower), float(upper))
            for i in row.nonzero()[0]:
                constraint.SetCoefficient(x[i], float(row[i]))
        objective = model.Objective()
        for variable, value in zip(x, program.value, strict=True):
            objective.SetCoefficient(variable, float(value))
        objective.SetMaximization()
        options = linear.MPSolverParameters()
        # Without this OR-Tools is content with one part in ten thousand.
        options.SetDoubleParam(options.RELATIVE_MIP_GAP, 0.0)
        end = model.Solve(options)
        if end in (model.OPTIMAL, model.FEASIBLE):
            point = np.array([variable.solution_value() for variable in x])
            return point, Status.SOLVED if end == model.OPTIMAL else Status.TIME_LIMIT
        ends = {
            model.INFEASIBLE: Status.INFEASIBLE,
            model.UNBOUNDED: Status.UNBOUNDED,
            model.NOT_SOLVED: Status.TIME_LIMIT,
        }
        # Engines without a word for "unbounded" refuse the model instead.
        return None, ends.get(end, Status.INFEASIBLE if program.bounded else Status.UNBOUNDED)
