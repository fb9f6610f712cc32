"""Points of quadratic programs from real solvers: moreau where it is installed, else those behind qpsolvers."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from setgrad._status import Status
from setgrad.errors import MissingDependencyError

Array = npt.NDArray[np.float64]

# Names within qpsolvers and the packages they come from, the quickest first, with the options that make them accurate.
_BEHIND_QPSOLVERS: dict[str, tuple[str, dict[str, float]]] = {
    "piqp": ("piqp", {}),
    "proxqp": ("proxsuite", {"eps_abs": 1e-9, "eps_rel": 0.0}),
    "clarabel": ("clarabel", {}),
}


@final
@dataclass(frozen=True, eq=False)
class Programs:
    """A batch of programs in float64: the first `equalities` rows of C y, d are equalities, the others C y <= d."""

    Q: Array
    q: Array
    C: Array
    d: Array
    equalities: int


@final
@dataclass(frozen=True, eq=False)
class Found:
    """For each sample the point, the multipliers of the inequalities, and the solver's verdict, a `Status`."""

    y: Array
    forces: Array
    verdict: npt.NDArray[np.int64]


Attempt = Callable[[Programs], Found]


def attempts() -> list[Attempt]:
    """What is installed, the quickest first; the later ones are for the samples that the earlier ones leave open."""
    if importlib.util.find_spec("moreau") is not None:
        # The active-set method is many times quicker on small programs, the interior-point method hardier.
        return [moreau_attempt("active_set"), moreau_attempt("ipm")]
    if importlib.util.find_spec("qpsolvers") is not None:
        found = [name for name, (package, _) in _BEHIND_QPSOLVERS.items() if importlib.util.find_spec(package)]
        if found:
            return [qpsolvers_attempt(name) for name in found]
    raise MissingDependencyError(
        "a quadratic program with inequalities needs a solver, and neither moreau nor qpsolvers with piqp, proxsuite "
        'or clarabel is installed: pip install "setgrad[qp]"'
    )


def moreau_attempt(method: str) -> Attempt:
    """All samples in one call of moreau, by its method "active_set" or "ipm"."""

    def solve(programs: Programs) -> Found:
        # Not an import statement, because the type checker need not have the package.
        moreau = importlib.import_module("moreau")
        (count, n), rows = programs.q.shape, programs.d.shape[-1]
        # Dense patterns: every sample must have the same, and a zero costs little at these sizes.
        solver = moreau.CompiledSolver(
            n,
            rows,
            np.arange(n + 1) * n,
            np.tile(np.arange(n), n),
            np.arange(rows + 1) * n,
            np.tile(np.arange(n), rows),
            moreau.Cones(num_zero_cones=programs.equalities, num_nonneg_cones=rows - programs.equalities),
            moreau.Settings(solver=method, device="cpu", batch_size=count),
        )
        solver.setup(programs.Q.reshape(count, -1), programs.C.reshape(count, -1))
        answer = solver.solve(programs.q, programs.d)
        verdict = np.array([_verdict(status) for status in solver.info.status], dtype=np.int64)
        return Found(np.asarray(answer.x), np.asarray(answer.z)[:, programs.equalities :], verdict)

    return solve


def qpsolvers_attempt(name: str) -> Attempt:
    """One sample after the other by a solver of qpsolvers."""
    options = _BEHIND_QPSOLVERS[name][1]

    def solve(programs: Programs) -> Found:
        qpsolvers = importlib.import_module("qpsolvers")
        y, forces = np.zeros_like(programs.q), np.zeros_like(programs.d[:, programs.equalities :])
        verdict = np.full(len(y), int(Status.STALLED), dtype=np.int64)
        for i in range(len(y)):
            equal, unequal = slice(None, programs.equalities), slice(programs.equalities, None)
            problem = qpsolvers.Problem(
                programs.Q[i],
                programs.q[i],
                programs.C[i, unequal],
                programs.d[i, unequal],
                *((programs.C[i, equal], programs.d[i, equal]) if programs.equalities else (None, None)),
            )
            with warnings.catch_warnings():
                # Sparse copies and failures are announced by warnings; the status says the latter again.
                warnings.simplefilter("ignore")
                answer = qpsolvers.solve_problem(problem, solver=name, **options)
            extras: dict[str, Any] = answer.extras
            verdict[i] = _verdict(extras["status"] if "status" in extras else extras["info"].status)
            if answer.x is not None and answer.z is not None:
                y[i], forces[i] = answer.x, answer.z
        return Found(y, forces, verdict)

    return solve


def _verdict(status: object) -> int:
    """A solver's own status. All of them name the same three outcomes, in different spellings."""
    name = str(getattr(status, "name", status)).lower().replace("_", "")
    if "primalinfeasible" in name:
        return int(Status.INFEASIBLE)
    if "dualinfeasible" in name:
        return int(Status.UNBOUNDED)
    return int(Status.CONVERGED if name.endswith("solved") and "un" not in name else Status.STALLED)
