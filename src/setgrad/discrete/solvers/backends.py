"""Backends that solve one integer program: HiGHS (through SciPy) and OR-Tools."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import numpy.typing as npt

from setgrad._status import Status
from setgrad.discrete.solvers._pool import INTEGER_TOLERANCE, Array, require
from setgrad.errors import OptionError

# 2**20 is about a million.
_EXPONENT_OF_VALUES = 20


@final
@dataclass(frozen=True, eq=False)
class Program:
    """Maximise value @ x, with lower <= A x <= upper and min_value <= x <= max_value; `integer` marks whole x."""

    value: Array
    A: Array
    lower: Array
    upper: Array
    min_value: Array
    max_value: Array
    integer: npt.NDArray[np.bool_]

    @property
    def bounded(self) -> bool:
        """Whether every variable has two finite bounds."""
        return bool(np.isfinite(self.min_value).all() and np.isfinite(self.max_value).all())

    def with_row(self, row: Array, upper: float) -> Program:
        """Return the program with another constraint: row @ x <= upper."""
        return replace(
            self,
            A=np.vstack([self.A, row]),
            lower=np.append(self.lower, -np.inf),
            upper=np.append(self.upper, upper),
        )

    def scaled(self) -> Program:
        """Return the program in units that suit backends; powers of 2 lose no digit.

        Backends have absolute tolerances. The largest entry of each row becomes about 1, far above the tolerance of
        rows. Values become about a million, because a backend treats points as equal if their products differ by less
        than 1e-6.
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
    """Return the exponent of the next power of 2 above the largest number on the last axis; 0 where all are 0."""
    return np.frexp(np.abs(numbers).max(-1, initial=0))[1]


@dataclass(frozen=True, kw_only=True)
class Backend(ABC):
    """Solves one integer program.

    Args:
        time_limit: Seconds for one instance; None for no limit.

    Raises:
        OptionError: If the time limit is negative.
    """

    time_limit: float | None = None

    def __post_init__(self) -> None:
        if self.time_limit is not None and not self.time_limit >= 0:
            raise OptionError(f"time_limit must be 0 seconds or more, got {self.time_limit}")

    @abstractmethod
    def find(self, program: Program) -> tuple[Array | None, Status]:
        """Return the best point found, if any, and the status."""

    def solve(self, program: Program) -> tuple[Array | None, Status]:
        """Return the point with its integers rounded exactly, and the status; no point if it is fractional."""
        point, status = self.find(program.scaled())
        if point is None:
            return None, Status.NOT_FOUND if status == Status.TIME_LIMIT else status
        whole = np.where(program.integer, np.round(point), point)
        if np.abs(whole - point).max(initial=0) > INTEGER_TOLERANCE:
            return None, Status.FRACTIONAL
        return np.clip(whole, program.min_value, program.max_value), status


@final
@dataclass(frozen=True)
class HiGHS(Backend):
    """HiGHS, as part of SciPy.

    Args:
        gap: Stop when the best point is known to be within this fraction of the best value; 0 is exact, up to about
            1e-12 of the largest entry of theta.

    Examples:
        >>> HiGHS(time_limit=60.0)
        HiGHS(time_limit=60.0, gap=0.0)
    """

    gap: float = 0.0

    def find(self, program: Program) -> tuple[Array | None, Status]:
        """Call `scipy.optimize.milp`."""
        optimize = require("scipy.optimize")
        limit = {} if self.time_limit is None else {"time_limit": self.time_limit}
        result = optimize.milp(
            -program.value,
            integrality=program.integer.astype(np.uint8),
            bounds=optimize.Bounds(program.min_value, program.max_value),
            constraints=optimize.LinearConstraint(program.A, program.lower, program.upper) if len(program.A) else (),
            options={"mip_rel_gap": self.gap, **limit},
        )
        statuses = {0: Status.SOLVED, 1: Status.TIME_LIMIT, 2: Status.INFEASIBLE, 3: Status.UNBOUNDED}
        # HiGHS cannot always tell the two apart; with bounds on all variables it must be the first.
        status = statuses.get(result.status, Status.INFEASIBLE if program.bounded else Status.UNBOUNDED)
        return result.x, status


@final
@dataclass(frozen=True)
class ORTools(Backend):
    """One of the solvers of OR-Tools (`pip install "setgrad[solvers]"`).

    Args:
        engine: The name of the solver in OR-Tools: "SCIP", "SAT" (all variables must be whole), "CBC", ...

    Examples:
        >>> ORTools(engine="SAT")
        ORTools(time_limit=None, engine='SAT')
    """

    engine: str = "SCIP"

    def find(self, program: Program) -> tuple[Array | None, Status]:
        """Build the model, solve it and read the point.

        Raises:
            OptionError: If OR-Tools has no such engine.
        """
        linear = require("ortools.linear_solver.pywraplp")
        model = linear.Solver.CreateSolver(self.engine)
        if model is None:
            raise OptionError(f"OR-Tools has no engine {self.engine!r}; try SCIP or SAT")
        if self.time_limit is not None:
            model.SetTimeLimit(max(1, round(1000 * self.time_limit)))
        x = [
            model.Var(float(low), float(high), bool(integer), "")
            for low, high, integer in zip(program.min_value, program.max_value, program.integer, strict=True)
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
        # By default OR-Tools stops at one part in ten thousand.
        options.SetDoubleParam(options.RELATIVE_MIP_GAP, 0.0)
        outcome = model.Solve(options)
        if outcome in (model.OPTIMAL, model.FEASIBLE):
            point = np.array([variable.solution_value() for variable in x])
            return point, Status.SOLVED if outcome == model.OPTIMAL else Status.TIME_LIMIT
        statuses = {
            model.INFEASIBLE: Status.INFEASIBLE,
            model.UNBOUNDED: Status.UNBOUNDED,
            model.NOT_SOLVED: Status.TIME_LIMIT,
        }
        # Engines that cannot report "unbounded" reject the model instead.
        return None, statuses.get(outcome, Status.INFEASIBLE if program.bounded else Status.UNBOUNDED)
