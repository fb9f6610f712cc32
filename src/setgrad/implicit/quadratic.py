"""Quadratic programs as a layer: the point from a real solver, the derivative from one linear system."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad._autograd import outside_graph
from setgrad._status import Status, is_status
from setgrad.errors import DataError, ShapeError
from setgrad.implicit._factors import Factors, factorise, require_full_precision, solve_by, solve_marked
from setgrad.implicit._outcome import Outcome, check_outcome
from setgrad.implicit._qp_active import Certificate, Rows, certify, system
from setgrad.implicit._qp_solvers import Attempt, Programs, attempts
from setgrad.implicit._solve import Solution


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

    The last axes are those of one program; all others are samples. A tensor with fewer axes is shared by the samples
    and gets the sum of their gradients. Only the symmetric part of Q counts, and it must be positive semidefinite. An
    entry of h may be infinite: no constraint.

    The solver (moreau, or one behind qpsolvers; needed for inequalities only) proposes which constraints are active.
    The linear system of these constraints then gives the value, in the dtype of the inputs, proves it optimal, and is
    what is differentiated: any order, reverse or forward. This assumes strict complementarity, that every active
    constraint pushes. One that does not (weakly active) counts as inactive, and of active constraints that depend on
    each other some count as inactive too; the derivative is then one of several, always the same.

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
        A solution whose `residual` is that of the optimality conditions, with rows scaled to length 1 and Q to size 1,
        and whose `steps` count linear systems. A sample with several minima is SINGULAR.

    Example:
        >>> import torch
        >>> q = torch.tensor([[-1.0, 2.0]], dtype=torch.float64, requires_grad=True)
        >>> A, b = torch.ones(1, 2, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        >>> y = quadratic(torch.eye(2, dtype=torch.float64), q, A=A, b=b).value
        >>> y.tolist()
        [[2.0, -1.0]]
        >>> torch.autograd.grad(y[0, 0], q)[0].tolist()
        [[-0.5, 0.5]]
    """
    Q, q, C, d, equalities = _one_shape(Q, q, G, h, A, b)
    found = outside_graph(_decide, Q, q, C, d, equalities, on_failure)
    index, taken, lu, pivots, point, status, residual, steps = found
    matrix, right = _settled(*system(Q, q, C, d, Rows(index, taken)), point, status)
    value = solve_by(Factors(lu, pivots), matrix, right)[..., : q.shape[-1]]
    return Solution(value, status, residual, steps)


def _settled(matrix: Tensor, right: Tensor, point: Tensor, status: Tensor) -> tuple[Tensor, Tensor]:
    """The systems, but a failed sample solves for its own point, of which nothing is a parameter."""
    solved = is_status(status, Status.CONVERGED)[..., None]
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    padding = point.new_zeros(*point.shape[:-1], matrix.shape[-1] - point.shape[-1])
    own = torch.cat([point, padding], -1)
    return torch.where(solved[..., None], matrix, identity), torch.where(solved, right, own)


def _one_shape(
    Q: Tensor, q: Tensor, G: Tensor | None, h: Tensor | None, A: Tensor | None, b: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """Equalities and inequalities in one matrix, and the samples on the same leading axes."""
    if q.dim() < 1 or Q.dim() < 2 or not q.shape[-1] or Q.shape[-2:] != (q.shape[-1],) * 2:
        raise ShapeError(f"Q must be (..., n, n) and q (..., n), n > 0; they are {tuple(Q.shape)} and {tuple(q.shape)}")
    n = q.shape[-1]
    parts: list[tuple[Tensor, Tensor]] = []
    for names, matrix, end in (("A and b", A, b), ("G and h", G, h)):
        if (matrix is None) != (end is None):
            raise ShapeError(f"{names} come together: give both or neither")
        matrix = q.new_zeros(0, n) if matrix is None else matrix
        end = q.new_zeros(0) if end is None else end
        if end.dim() < 1 or matrix.dim() < 2 or matrix.shape[-2:] != (end.shape[-1], n):
            raise ShapeError(
                f"{names} must be (..., rows, {n}) and (..., rows); they are {tuple(matrix.shape)} and "
                f"{tuple(end.shape)}"
            )
        parts.append((matrix, end))
    tensors = (Q, q, *(t for part in parts for t in part))
    if len({(t.dtype, t.device) for t in tensors}) > 1 or not q.is_floating_point():
        raise ShapeError(
            "all parts of a program must have one real dtype and one device; they have "
            + ", ".join(sorted({f"{t.dtype} on {t.device}" for t in tensors}))
        )
    require_full_precision(q.dtype)
    samples = [Q.shape[:-2], q.shape[:-1], *(m.shape[:-2] for m, _ in parts), *(e.shape[:-1] for _, e in parts)]
    try:
        batch = torch.broadcast_shapes(*samples)
    except RuntimeError as error:
        raise ShapeError(
            f"the leading axes of the parts do not fit together: {[tuple(s) for s in samples]} for Q, q, A, G, b, h"
        ) from error
    C = torch.cat([m.expand(*batch, *m.shape[-2:]) for m, _ in parts], -2)
    d = torch.cat([e.expand(*batch, e.shape[-1]) for _, e in parts], -1)
    # Units do not move the minimum: rows of length 1 and an objective of size 1 keep the system well conditioned.
    length = _unit(torch.linalg.vector_norm(C.detach(), dim=-1))
    size = _unit(Q.detach().abs().amax((-2, -1)))
    Q, q = (Q + Q.mT) / (2 * size[..., None, None]), q / size[..., None]
    return Q.expand(*batch, n, n), q.expand(*batch, n), C / length[..., None], d / length, parts[0][1].shape[-1]


def _unit(size: Tensor) -> Tensor:
    return torch.where(size.isfinite() & (size > 0), size, 1.0)


@final
class _Point(torch.autograd.Function):
    """The active rows and the point, as constants: what they decide is differentiated, not the decision.

    A Function only because `torch.func` hands its forward plain tensors, which solvers outside torch can read.
    """

    @staticmethod
    def forward(Q: Tensor, q: Tensor, C: Tensor, d: Tensor, equalities: int, policy: str) -> tuple[Tensor, ...]:
        """Flatten the batch, find the points, and report as the policy says."""
        batch = q.shape[:-1]
        flat = [t.reshape(batch.numel(), *t.shape[len(batch) :]) for t in (Q, q, C, d)]
        answer = _find(flat[0], flat[1], flat[2], flat[3], equalities)
        rows = answer.rows.fitted()
        factors = answer.factors
        if factors is None:
            matrix, _ = _settled(*system(flat[0], flat[1], flat[2], flat[3], rows), answer.y, answer.status)
            factors = factorise(matrix)[0]
        found = (
            rows.index,
            rows.taken,
            factors.lu,
            factors.pivots,
            answer.y,
            answer.status,
            answer.residual,
            answer.steps,
        )
        shaped = tuple(t.reshape((*batch, *t.shape[1:])) for t in found)
        check_outcome(Outcome(*shaped[4:]), policy, "the quadratic program")
        return shaped

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Nothing is differentiable."""
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[None, ...]:
        """No gradient: the linear system has it."""
        return (None,) * 6

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[None, ...]:
        """No tangent either."""
        return (None,) * 8

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        """One more leading axis."""
        moved = [
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip(inputs[:4], in_dims[:4], strict=True)
        ]
        return _Point.apply(*moved, *inputs[4:]), (0,) * 8


def _decide(*given: Any) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = _Point.apply(*given)
    return found


Proposal = Callable[[Tensor, Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]]


@final
@dataclass(frozen=True, eq=False)
class _Answer:
    """What is known of each sample so far; `write` fills it in."""

    y: Tensor
    rows: Rows
    status: Tensor
    residual: Tensor
    steps: Tensor
    factors: Factors | None = None

    def write(self, which: Tensor, certificate: Certificate, y: Tensor, verdict: Tensor) -> None:
        """What a certificate proves holds; of the others, what the solver said and its point."""
        hopeless = is_status(verdict, Status.INFEASIBLE) | is_status(verdict, Status.UNBOUNDED)
        singular = certificate.singular & is_status(verdict, Status.CONVERGED)
        unproven = torch.where(singular, int(Status.SINGULAR), int(Status.STALLED))
        # A later solver that gives up does not contradict an earlier one that knew why.
        known = is_status(unproven, Status.STALLED) & (self.status[which] >= int(Status.INFEASIBLE))
        unproven = torch.where(known, self.status[which], torch.where(hopeless, verdict, unproven))
        hopeless = unproven >= int(Status.INFEASIBLE)
        proven = certificate.proven
        self.status[which] = torch.where(proven, int(Status.CONVERGED), unproven)
        self.y[which] = torch.where(proven[..., None], certificate.y, y.masked_fill(hopeless[..., None], 0.0))
        self.rows.index[which], self.rows.taken[which] = certificate.rows.index, certificate.rows.taken
        self.residual[which] = certificate.residual.masked_fill(hopeless & ~proven, torch.inf)
        self.steps[which] += certificate.steps


def _find(Q: Tensor, q: Tensor, C: Tensor, d: Tensor, equalities: int) -> _Answer:
    count, size = d.shape
    equal = torch.arange(size, device=q.device) < equalities
    # No constraint is a row of zeros with room.
    absent = (d == torch.inf) & ~equal
    C, d = C.masked_fill(absent[..., None], 0.0), d.masked_fill(absent, 1.0)
    finite = torch.stack([t.flatten(1).isfinite().all(1) for t in (Q, q, C, d)]).all(0)
    _check_convex(Q, finite)
    answer = _Answer(
        torch.zeros_like(q),
        Rows.of(torch.zeros_like(absent), min(size, q.shape[-1])),
        torch.full((count,), int(Status.NONFINITE), device=q.device),
        torch.full((count,), torch.nan, dtype=q.dtype, device=q.device),
        torch.zeros(count, dtype=torch.long, device=q.device),
    )
    proposals = (_from_equations,) if size == equalities else tuple(_from_solver(a) for a in attempts())
    left = finite
    for propose in proposals:
        if not bool(left.any()):
            break
        part = (Q, q, C, d) if bool(left.all()) else (Q[left], q[left], C[left], d[left])
        y, force, verdict = propose(*part, equalities)
        # Active is what pushes more than it has room, both measured along the row.
        length = torch.linalg.vector_norm(part[2], dim=-1)
        room = (part[3] - (part[2] @ y[..., None])[..., 0]) / length.masked_fill(length == 0, 1.0)
        active = (force > 0) & (force * length > room)
        certificate = certify(*part, equal, active, force.masked_fill(equal, torch.inf))
        answer.write(left, certificate, y, verdict)
        if bool(left.all() & certificate.proven.all()):
            # All samples in one system, the usual case: its factors serve for the value and its derivatives.
            return replace(answer, factors=certificate.factors)
        left = finite & ~is_status(answer.status, Status.CONVERGED)
    return answer


def _from_solver(attempt: Attempt) -> Proposal:
    """A solver outside torch as a function from programs to points, forces of all rows, and verdicts."""

    def propose(Q: Tensor, q: Tensor, C: Tensor, d: Tensor, equalities: int) -> tuple[Tensor, Tensor, Tensor]:
        objective, slope, rows, ends = (t.to("cpu", torch.float64).numpy() for t in (Q, q, C, d))
        found = attempt(Programs(objective, slope, rows, ends, equalities))
        y, force = (torch.from_numpy(np.nan_to_num(a, posinf=0.0, neginf=0.0)).to(q) for a in (found.y, found.forces))
        return y, torch.nn.functional.pad(force, (equalities, 0)), torch.from_numpy(found.verdict).to(q.device)

    return propose


def _from_equations(Q: Tensor, q: Tensor, C: Tensor, d: Tensor, equalities: int) -> tuple[Tensor, Tensor, Tensor]:
    """Without inequalities the conditions are one linear system; what it leaves over says why it has no solution."""
    n, eps = q.shape[-1], torch.finfo(q.dtype).eps
    corner = C.new_zeros(len(C), equalities, equalities)
    matrix = torch.cat([torch.cat([Q, C.mT], -1), torch.cat([C, corner], -1)], -2)
    right = torch.cat([-q, d], -1)
    x, singular, _ = solve_marked(matrix, right)
    verdict = torch.full((len(q),), int(Status.CONVERGED), device=q.device)
    if bool(singular.any()):
        matrix, right = matrix[singular], right[singular]
        x[singular] = (torch.linalg.pinv(matrix, hermitian=True, rtol=eps ** (2 / 3)) @ right[..., None])[..., 0]
        rest = ((matrix @ x[singular][..., None])[..., 0] - right).abs() > eps**0.5 * right.abs().amax(-1, keepdim=True)
        reason = torch.where(rest[:, :n].any(-1), int(Status.UNBOUNDED), int(Status.CONVERGED))
        verdict[singular] = torch.where(rest[:, n:].any(-1), int(Status.INFEASIBLE), reason)
    return x[..., :n], torch.zeros_like(d), verdict


def _check_convex(Q: Tensor, finite: Tensor) -> None:
    tight = torch.finfo(Q.dtype).eps ** (2 / 3)
    shift = (tight * Q.abs().amax((-2, -1))).clamp(min=1e-30)[..., None, None]
    identity = torch.eye(Q.shape[-1], dtype=Q.dtype, device=Q.device)
    concave = finite & (
        torch.linalg.cholesky_ex(torch.where(finite[..., None, None], Q + shift * identity, identity))[1] != 0
    )
    if bool(concave.any()):
        raise DataError(
            f"Q of sample {int(concave.nonzero()[0, 0])} (and {int(concave.sum()) - 1} others) is not positive "
            "semidefinite, so the program is not convex: build it as L @ L.mT, or add a multiple of the identity"
        )
