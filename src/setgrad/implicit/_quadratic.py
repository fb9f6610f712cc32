"""Quadratic programs as a layer: a QP solver finds the active constraints, one linear system gives the derivatives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from setgrad._autograd import outside_graph
from setgrad._status import Status, is_status
from setgrad.errors import DataError, ShapeError
from setgrad.implicit._active_set import ActiveRows, Certificate, QuadraticProgram, certify, kkt_system
from setgrad.implicit._linalg import LUFactors, check_precision, lu_factor, solve_with_factors
from setgrad.implicit._qp_backends import Backend, Candidate, available_backends, solve_equalities
from setgrad.implicit._solution import Outcome, Solution, check_outcome


def quadratic(
    Q: Tensor,
    q: Tensor,
    G: Tensor | None = None,
    h: Tensor | None = None,
    A: Tensor | None = None,
    b: Tensor | None = None,
    *,
    on_failure: str = "raise",
) -> Solution:
    """Minimise 1/2 y'Qy + q'y subject to Gy <= h and Ay = b, for each sample, and differentiate the minimum.

    The leading axes are batch axes. A tensor with fewer of them is shared by the samples and gets the sum of their
    gradients. Only the symmetric part of Q counts, and it must be positive semidefinite. An infinite entry of h is no
    constraint.

    A QP solver (moreau, or a solver of qpsolvers; needed for inequalities only) proposes the active constraints. Their
    linear system gives the value, in the dtype of the inputs, proves that it is optimal, and has derivatives of every
    order, in reverse and forward mode. This assumes strict complementarity: every active constraint has a positive
    multiplier. A constraint that is active without one (weakly active) counts as inactive, and so do some of the active
    constraints that depend on each other; the derivative is then one of several, always the same.

    Args:
        Q: `(*batch, n, n)`.
        q: `(*batch, n)`.
        G: `(*batch, m, n)`, with h.
        h: `(*batch, m)`.
        A: `(*batch, p, n)`, with b.
        b: `(*batch, p)`.
        on_failure: "raise", "warn", or "mask". Samples that failed have no derivative; their value is 0 if they are
            INFEASIBLE, UNBOUNDED or NONFINITE, else the solver's last point.

    Returns:
        The solution. Its `residual` measures the optimality conditions, with rows scaled to length 1 and Q to size 1;
        its `steps` count linear systems. A sample with several minima is SINGULAR.

    Raises:
        ConvergenceError: If a sample fails and `on_failure` is "raise".
        DataError: If Q is not positive semidefinite.
        MissingDependencyError: If there are inequalities and no QP solver is installed.
        ShapeError: If shapes, dtypes or devices do not fit together.

    Examples:
        >>> import torch
        >>> q = torch.tensor([[-1.0, 2.0]], dtype=torch.float64, requires_grad=True)
        >>> A, b = torch.ones(1, 2, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        >>> y = quadratic(torch.eye(2, dtype=torch.float64), q, A=A, b=b).value
        >>> y.tolist()
        [[2.0, -1.0]]
        >>> torch.autograd.grad(y[0, 0], q)[0].tolist()
        [[-0.5, 0.5]]
    """
    program = _as_program(Q, q, G, h, A, b)
    tensors = (program.Q, program.q, program.C, program.d)
    index, used, lu, pivots, point, status, residual, steps = outside_graph(
        _find_minimum, *tensors, program.n_equalities, on_failure
    )
    matrix, right = _replace_failed(*kkt_system(program, ActiveRows(index, used)), point, status)
    value = solve_with_factors(LUFactors(lu, pivots), matrix, right)[..., : q.shape[-1]]
    return Solution(value, status, residual, steps)


def _replace_failed(matrix: Tensor, right: Tensor, point: Tensor, status: Tensor) -> tuple[Tensor, Tensor]:
    """Replace the system of a failed sample by one whose solution is its point, a constant."""
    converged = is_status(status, Status.CONVERGED)[..., None]
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    padding = point.new_zeros(*point.shape[:-1], matrix.shape[-1] - point.shape[-1])
    constant = torch.cat([point, padding], -1)
    return torch.where(converged[..., None], matrix, identity), torch.where(converged, right, constant)


def _as_program(
    Q: Tensor, q: Tensor, G: Tensor | None, h: Tensor | None, A: Tensor | None, b: Tensor | None
) -> QuadraticProgram:
    """Check the inputs, expand them to a common batch, and collect equalities and inequalities in one matrix."""
    if q.dim() < 1 or Q.dim() < 2 or not q.shape[-1] or Q.shape[-2:] != (q.shape[-1],) * 2:
        raise ShapeError(f"Q must be (..., n, n) and q (..., n), n > 0; they are {tuple(Q.shape)} and {tuple(q.shape)}")
    n = q.shape[-1]
    constraints: list[tuple[Tensor, Tensor]] = []
    for names, matrix, bound in (("A and b", A, b), ("G and h", G, h)):
        if (matrix is None) != (bound is None):
            raise ShapeError(f"{names} come together: pass both or neither")
        matrix = q.new_zeros(0, n) if matrix is None else matrix
        bound = q.new_zeros(0) if bound is None else bound
        if bound.dim() < 1 or matrix.dim() < 2 or matrix.shape[-2:] != (bound.shape[-1], n):
            raise ShapeError(
                f"{names} must be (..., rows, {n}) and (..., rows); they are {tuple(matrix.shape)} and "
                f"{tuple(bound.shape)}"
            )
        constraints.append((matrix, bound))
    tensors = (Q, q, *(t for pair in constraints for t in pair))
    if len({(t.dtype, t.device) for t in tensors}) > 1 or not q.is_floating_point():
        raise ShapeError(
            "all tensors of a program must have one real dtype and one device; they have "
            + ", ".join(sorted({f"{t.dtype} on {t.device}" for t in tensors}))
        )
    check_precision(q.dtype)
    (A, b), (G, h) = constraints
    batches = [Q.shape[:-2], q.shape[:-1], A.shape[:-2], G.shape[:-2], b.shape[:-1], h.shape[:-1]]
    try:
        batch = torch.broadcast_shapes(*batches)
    except RuntimeError as error:
        raise ShapeError(
            f"the batch axes of Q, q, A, G, b, h do not fit together: {[tuple(shape) for shape in batches]}"
        ) from error
    C = torch.cat([m.expand(*batch, *m.shape[-2:]) for m in (A, G)], -2)
    d = torch.cat([v.expand(*batch, v.shape[-1]) for v in (b, h)], -1)
    # Rows of length 1 and an objective of size 1 do not move the minimum, and improve the condition of the system.
    row_norm = _positive_or_one(torch.linalg.vector_norm(C.detach(), dim=-1))
    size = _positive_or_one(Q.detach().abs().amax((-2, -1)))
    Q, q = (Q + Q.mT) / (2 * size[..., None, None]), q / size[..., None]
    return QuadraticProgram(
        Q.expand(*batch, n, n), q.expand(*batch, n), C / row_norm[..., None], d / row_norm, b.shape[-1]
    )


def _positive_or_one(size: Tensor) -> Tensor:
    return torch.where(size.isfinite() & (size > 0), size, 1.0)


@final
class _Minimum(torch.autograd.Function):
    """The active rows and the point, as constants: the linear system is differentiated, not the search.

    A Function, because `torch.func` passes plain tensors to its forward, and QP solvers cannot read others.
    """

    @staticmethod
    def forward(Q: Tensor, q: Tensor, C: Tensor, d: Tensor, n_equalities: int, policy: str) -> tuple[Tensor, ...]:
        batch = q.shape[:-1]
        flat = [t.reshape(batch.numel(), *t.shape[len(batch) :]) for t in (Q, q, C, d)]
        program = QuadraticProgram(flat[0], flat[1], flat[2], flat[3], n_equalities)
        result = _search(program)
        rows, factors = result.rows.trimmed(), result.factors
        if factors is None:
            matrix, _ = _replace_failed(*kkt_system(program, rows), result.y, result.status)
            factors = lu_factor(matrix)[0]
        outcome = (result.y, result.status, result.residual, result.steps)
        tensors = (rows.index, rows.used, factors.lu, factors.pivots, *outcome)
        output = tuple(t.reshape((*batch, *t.shape[1:])) for t in tensors)
        check_outcome(Outcome(*output[4:]), policy, "the quadratic program")
        return output

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[None, ...]:
        return (None,) * 6

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[None, ...]:
        return (None,) * 8

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        moved = [
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip(inputs[:4], in_dims[:4], strict=True)
        ]
        return _Minimum.apply(*moved, *inputs[4:]), (0,) * 8


def _find_minimum(*inputs: Any) -> tuple[Tensor, ...]:
    output: tuple[Tensor, ...] = _Minimum.apply(*inputs)
    return output


@final
@dataclass(frozen=True, eq=False)
class _SearchResult:
    """The point, active rows and status of each sample so far; `update` changes the tensors in place."""

    y: Tensor
    rows: ActiveRows
    status: Tensor
    residual: Tensor
    steps: Tensor
    factors: LUFactors | None = None

    def update(self, samples: Tensor, certificate: Certificate, candidate: Candidate) -> None:
        """Store what the certificate proves; for the other samples, the solver's point and status."""
        singular = certificate.singular & is_status(candidate.status, Status.CONVERGED)
        unproven = torch.where(singular, int(Status.SINGULAR), int(Status.STALLED))
        # A later solver that stalls does not contradict the reason that an earlier one gave.
        has_reason = is_status(unproven, Status.STALLED) & (self.status[samples] >= int(Status.INFEASIBLE))
        no_minimum = is_status(candidate.status, Status.INFEASIBLE) | is_status(candidate.status, Status.UNBOUNDED)
        unproven = torch.where(no_minimum, candidate.status, unproven)
        unproven = torch.where(has_reason, self.status[samples], unproven)
        no_minimum = unproven >= int(Status.INFEASIBLE)
        proven = certificate.proven
        self.status[samples] = torch.where(proven, int(Status.CONVERGED), unproven)
        point = candidate.y.masked_fill(no_minimum[..., None], 0.0)
        self.y[samples] = torch.where(proven[..., None], certificate.y, point)
        self.rows.index[samples], self.rows.used[samples] = certificate.rows.index, certificate.rows.used
        self.residual[samples] = certificate.residual.masked_fill(no_minimum & ~proven, torch.inf)
        self.steps[samples] += certificate.steps


def _search(program: QuadraticProgram) -> _SearchResult:
    """Try one backend after the other on the samples that are not solved yet."""
    Q, q, C, d, is_equality = program.Q, program.q, program.C, program.d, program.is_equality
    count, n_rows = d.shape
    # A row of zeros that holds with slack takes the place of a constraint without a bound.
    unbounded = (d == torch.inf) & ~is_equality
    C, d = C.masked_fill(unbounded[..., None], 0.0), d.masked_fill(unbounded, 1.0)
    program = replace(program, C=C, d=d)
    is_finite = torch.stack([t.flatten(1).isfinite().all(1) for t in (Q, q, C, d)]).all(0)
    _check_convex(Q, is_finite)
    result = _SearchResult(
        torch.zeros_like(q),
        ActiveRows.from_mask(torch.zeros_like(unbounded), min(n_rows, q.shape[-1])),
        torch.full((count,), int(Status.NONFINITE), device=q.device),
        torch.full((count,), torch.nan, dtype=q.dtype, device=q.device),
        torch.zeros(count, dtype=torch.long, device=q.device),
    )
    backends: list[Backend] = [solve_equalities] if n_rows == program.n_equalities else available_backends()
    samples = is_finite
    for backend in backends:
        if not bool(samples.any()):
            break
        subset = program if bool(samples.all()) else program.select(samples)
        candidate = backend(subset)
        # Active are the rows whose multiplier exceeds their slack, both measured along the row.
        multipliers, row_norm = candidate.multipliers, torch.linalg.vector_norm(subset.C, dim=-1)
        slack = (subset.d - (subset.C @ candidate.y[..., None])[..., 0]) / row_norm.masked_fill(row_norm == 0, 1.0)
        active = (multipliers > 0) & (multipliers * row_norm > slack)
        certificate = certify(subset, active, multipliers.masked_fill(is_equality, torch.inf))
        result.update(samples, certificate, candidate)
        if bool(samples.all() & certificate.proven.all()):
            # The usual case, all samples in one system: its factors serve for the value and the derivatives.
            return replace(result, factors=certificate.factors)
        samples = is_finite & ~is_status(result.status, Status.CONVERGED)
    return result


def _check_convex(Q: Tensor, is_finite: Tensor) -> None:
    rtol = torch.finfo(Q.dtype).eps ** (2 / 3)
    shift = (rtol * Q.abs().amax((-2, -1))).clamp(min=1e-30)[..., None, None]
    identity = torch.eye(Q.shape[-1], dtype=Q.dtype, device=Q.device)
    shifted = torch.where(is_finite[..., None, None], Q + shift * identity, identity)
    not_convex = is_finite & (torch.linalg.cholesky_ex(shifted)[1] != 0)
    if bool(not_convex.any()):
        raise DataError(
            f"Q of sample {int(not_convex.nonzero()[0, 0])} (and {int(not_convex.sum()) - 1} others) is not positive "
            "semidefinite, so the program is not convex: build it as L @ L.mT, or add a multiple of the identity"
        )
