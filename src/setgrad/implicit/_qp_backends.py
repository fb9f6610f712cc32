"""Candidates for the minimum of a quadratic program.

They come from moreau if it is installed, else from qpsolvers; without inequalities, from one linear system.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from setgrad._status import Status
from setgrad.errors import MissingDependencyError
from setgrad.implicit._active_set import QuadraticProgram, block_matrix
from setgrad.implicit._linalg import solve_checked

Array = npt.NDArray[np.float64]
# Points, multipliers of the inequalities, and the solver's own status, for each sample.
NumpyResult = tuple[Array, Array, list[Any]]

# Solvers of qpsolvers, fastest first: the package each comes from, and options that make it accurate.
_QPSOLVERS: dict[str, tuple[str, dict[str, float]]] = {
    "piqp": ("piqp", {}),
    "proxqp": ("proxsuite", {"eps_abs": 1e-9, "eps_rel": 0.0}),
    "clarabel": ("clarabel", {}),
}


@final
@dataclass(frozen=True, eq=False)
class Candidate:
    """Points `(b, n)`, multipliers `(b, rows)`, 0 for equalities, and the solver's `Status` of each sample `(b,)`."""

    y: Tensor
    multipliers: Tensor
    status: Tensor


Backend = Callable[[QuadraticProgram], Candidate]


def available_backends() -> list[Backend]:
    """Return the installed backends, fastest first; the later ones solve the samples that the earlier ones cannot.

    Raises:
        MissingDependencyError: If none is installed.
    """
    if importlib.util.find_spec("moreau") is not None:
        # The active-set method is much faster on small programs, the interior-point method more robust.
        return [moreau_backend("active_set"), moreau_backend("ipm")]
    if importlib.util.find_spec("qpsolvers") is not None:
        names = [name for name, (package, _) in _QPSOLVERS.items() if importlib.util.find_spec(package)]
        if names:
            return [qpsolvers_backend(name) for name in names]
    raise MissingDependencyError(
        "a quadratic program with inequalities needs a solver, and neither moreau nor qpsolvers with piqp, proxsuite "
        'or clarabel is installed: pip install "setgrad[qp]"'
    )


def moreau_backend(method: str) -> Backend:
    """Return a backend that solves all samples in one call of moreau, by its method "active_set" or "ipm"."""

    def solve(Q: Array, q: Array, C: Array, d: Array, n_equalities: int) -> NumpyResult:
        # Not an import statement, because the type checker need not have the package.
        moreau = importlib.import_module("moreau")
        (count, n), n_rows = q.shape, d.shape[-1]
        # Dense patterns: all samples must share one, and a stored zero costs little at these sizes.
        solver = moreau.CompiledSolver(
            n,
            n_rows,
            np.arange(n + 1) * n,
            np.tile(np.arange(n), n),
            np.arange(n_rows + 1) * n,
            np.tile(np.arange(n), n_rows),
            moreau.Cones(num_zero_cones=n_equalities, num_nonneg_cones=n_rows - n_equalities),
            moreau.Settings(solver=method, device="cpu", batch_size=count),
        )
        solver.setup(Q.reshape(count, -1), C.reshape(count, -1))
        result = solver.solve(q, d)
        return np.asarray(result.x), np.asarray(result.z)[:, n_equalities:], list(solver.info.status)

    return _from_numpy(solve)


def qpsolvers_backend(name: str) -> Backend:
    """Return a backend that solves one sample after the other by a solver of qpsolvers."""
    options = _QPSOLVERS[name][1]

    def solve(Q: Array, q: Array, C: Array, d: Array, n_equalities: int) -> NumpyResult:
        qpsolvers = importlib.import_module("qpsolvers")
        y, multipliers, statuses = np.zeros_like(q), np.zeros_like(d[:, n_equalities:]), []
        equal, unequal = slice(None, n_equalities), slice(n_equalities, None)
        for i in range(len(y)):
            equalities = (C[i, equal], d[i, equal]) if n_equalities else (None, None)
            problem = qpsolvers.Problem(Q[i], q[i], C[i, unequal], d[i, unequal], *equalities)
            with warnings.catch_warnings():
                # About sparse copies and failures; the status tells the latter too.
                warnings.simplefilter("ignore")
                result = qpsolvers.solve_problem(problem, solver=name, **options)
            extras: dict[str, Any] = result.extras
            statuses.append(extras["status"] if "status" in extras else extras["info"].status)
            if result.x is not None and result.z is not None:
                y[i], multipliers[i] = result.x, result.z
        return y, multipliers, statuses

    return _from_numpy(solve)


def solve_equalities(program: QuadraticProgram) -> Candidate:
    """Solve programs without inequalities: one linear system, whose residual tells why there is no solution."""
    n, eps = program.q.shape[-1], torch.finfo(program.q.dtype).eps
    corner = program.C.new_zeros(len(program.C), program.n_equalities, program.n_equalities)
    matrix = block_matrix(program.Q, program.C, corner)
    right = torch.cat([-program.q, program.d], -1)
    x, singular, _ = solve_checked(matrix, right)
    status = torch.full((len(x),), int(Status.CONVERGED), device=x.device)
    if bool(singular.any()):
        matrix, right = matrix[singular], right[singular]
        x[singular] = (torch.linalg.pinv(matrix, hermitian=True, rtol=eps ** (2 / 3)) @ right[..., None])[..., 0]
        residual = ((matrix @ x[singular][..., None])[..., 0] - right).abs()
        violated = residual > eps**0.5 * right.abs().amax(-1, keepdim=True)
        reason = torch.where(violated[:, :n].any(-1), int(Status.UNBOUNDED), int(Status.CONVERGED))
        status[singular] = torch.where(violated[:, n:].any(-1), int(Status.INFEASIBLE), reason)
    return Candidate(x[..., :n], torch.zeros_like(program.d), status)


def _from_numpy(solve: Callable[[Array, Array, Array, Array, int], NumpyResult]) -> Backend:
    def backend(program: QuadraticProgram) -> Candidate:
        tensors = (program.Q, program.q, program.C, program.d)
        Q, q, C, d = (t.to("cpu", torch.float64).numpy() for t in tensors)
        *arrays, statuses = solve(Q, q, C, d, program.n_equalities)
        y, multipliers = (torch.from_numpy(np.nan_to_num(a, posinf=0.0, neginf=0.0)).to(program.q) for a in arrays)
        status = torch.tensor([_translate_status(status) for status in statuses], dtype=torch.long).to(program.q.device)
        return Candidate(y, torch.nn.functional.pad(multipliers, (program.n_equalities, 0)), status)

    return backend


def _translate_status(status: object) -> int:
    """Return the `Status` for a solver's own status; solvers spell the same outcomes differently."""
    name = str(getattr(status, "name", status)).lower().replace("_", "")
    if "primalinfeasible" in name:
        return int(Status.INFEASIBLE)
    if "dualinfeasible" in name:
        return int(Status.UNBOUNDED)
    return int(Status.CONVERGED if name.endswith("solved") and "un" not in name else Status.STALLED)
