"""The active set of a quadratic program: its linear system, and the check that it is optimal.

The point of a QP solver is only as accurate as the solver's tolerance. The constraints that are active there define a
linear system with an exact solution. If its multipliers are positive and the other constraints hold, it is the minimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.implicit._linalg import LUFactors, solve_checked

# The first rounds change all wrong rows of an active set at once, the later ones one row at a time: where many
# constraints meet in one point, the set could cycle otherwise.
_MAX_ROUNDS, _ROUNDS_WITH_MANY_CHANGES = 40, 3


@final
@dataclass(frozen=True, eq=False)
class QuadraticProgram:
    """Programs min 1/2 y'Qy + q'y `(*batch, ...)`; the first rows of C y and d are equalities, the others C y <= d."""

    Q: Tensor
    q: Tensor
    C: Tensor
    d: Tensor
    n_equalities: int

    @property
    def is_equality(self) -> Tensor:
        """Mask of the rows that are equalities, `(rows,)`."""
        return torch.arange(self.d.shape[-1], device=self.d.device) < self.n_equalities

    def select(self, rows: Tensor) -> QuadraticProgram:
        """Return the programs of some samples."""
        return QuadraticProgram(self.Q[rows], self.q[rows], self.C[rows], self.d[rows], self.n_equalities)


@final
@dataclass(frozen=True, eq=False)
class ActiveRows:
    """Indices of the active constraints, `(*batch, width)`, and a mask of the places that hold one (the first ones)."""

    index: Tensor
    used: Tensor

    @staticmethod
    def from_mask(active: Tensor, width: int) -> ActiveRows:
        """Collect the rows of a mask `(*batch, rows)` in order."""
        index = (~active).to(torch.uint8).argsort(dim=-1, stable=True)[..., :width]
        return ActiveRows(index, active.gather(-1, index))

    def trimmed(self) -> ActiveRows:
        """Drop the places that no sample uses."""
        width = int(self.used.sum(-1).max()) if self.used.numel() else 0
        return ActiveRows(self.index[..., :width], self.used[..., :width])

    def scatter(self, x: Tensor, n_rows: int) -> Tensor:
        """Return the values of the used places at their rows, and 0 at all other rows."""
        return x.new_zeros(*x.shape[:-1], n_rows).scatter(-1, self.index, torch.where(self.used, x, 0.0))


def kkt_system(program: QuadraticProgram, rows: ActiveRows) -> tuple[Tensor, Tensor]:
    """Return the matrix and right-hand side for y and the multipliers; the multiplier of an unused place is 0."""
    C, d, used = program.C, program.d, rows.used
    active = torch.where(used[..., None], C.gather(-2, rows.index[..., None].expand(*used.shape, C.shape[-1])), 0.0)
    bounds = torch.where(used, d.gather(-1, rows.index), 0.0)
    corner = torch.diag_embed((~used).to(C.dtype))
    return block_matrix(program.Q, active, corner), torch.cat([-program.q, bounds], -1)


def block_matrix(Q: Tensor, C: Tensor, corner: Tensor) -> Tensor:
    """Return the symmetric matrix [[Q, C'], [C, corner]]."""
    return torch.cat([torch.cat([Q, C.mT], -1), torch.cat([C, corner], -1)], -2)


@final
@dataclass(frozen=True, eq=False)
class Certificate:
    """A point with its active rows, whether it is proven optimal, and the factors of its (trimmed) system."""

    y: Tensor
    rows: ActiveRows
    proven: Tensor
    singular: Tensor
    residual: Tensor
    steps: Tensor
    factors: LUFactors


def certify(program: QuadraticProgram, active: Tensor, priority: Tensor) -> Certificate:
    """Correct a proposed active set `(b, rows)` until its system proves it optimal.

    A constraint that holds with equality but has no positive multiplier (weakly active) is left out. Of active rows
    that depend on each other, those of higher priority stay.
    """
    Q, q, C, d, is_equality = program.Q, program.q, program.C, program.d, program.is_equality
    n, n_rows = C.shape[-1], C.shape[-2]
    width = min(n_rows, n)
    eps = torch.finfo(q.dtype).eps
    loose, tight = eps**0.5, eps ** (2 / 3)
    row_norm = torch.linalg.vector_norm(C, dim=-1)
    active = active | is_equality
    steps = torch.zeros(len(q), dtype=torch.long, device=q.device)
    changing = torch.ones_like(steps, dtype=torch.bool)
    for count in range(_MAX_ROUNDS):
        rows = ActiveRows.from_mask(active, width).trimmed()
        x, singular, factors = solve_checked(*kkt_system(program, rows))
        dependent = changing & (singular | (active.sum(-1) > width))
        if bool(dependent.any()):
            active = active.clone()
            active[dependent] = _independent_rows(C[dependent], active[dependent], priority[dependent])
            rows = ActiveRows.from_mask(active, width).trimmed()
            x, singular, factors = solve_checked(*kkt_system(program, rows))
        y, multipliers = x[..., :n], rows.scatter(x[..., n:], n_rows)
        Qy = (Q @ y[..., None])[..., 0]
        constraint_force = (C.mT @ multipliers[..., None])[..., 0]
        slack = d - (C @ y[..., None])[..., 0]
        # Scales of the multipliers, and of the distance from each constraint.
        force_scale = torch.stack([Qy, q, constraint_force]).abs().amax((0, -1))[..., None]
        y_norm = torch.linalg.vector_norm(y, dim=-1, keepdim=True).clamp(min=1.0)
        distance_scale = torch.where(d.isfinite(), d.abs(), 0.0) + row_norm * y_norm
        drop = active & ~is_equality & (multipliers * row_norm <= tight * force_scale)
        add = ~active & ~is_equality & (slack < -tight * distance_scale)
        if count >= _ROUNDS_WITH_MANY_CHANGES:
            drop = _keep_smallest(drop, multipliers * row_norm)
            add = _keep_smallest(add, slack / row_norm.masked_fill(row_norm == 0, 1.0)) & ~drop.any(-1, keepdim=True)
        changing = changing & (drop | add).any(-1)
        steps = steps + (changing | (count == 0))
        if count == _MAX_ROUNDS - 1 or not bool(changing.any()):
            break
        active = torch.where(changing[..., None], (active & ~drop) | add, active)
    violation = torch.where(is_equality, slack.abs(), (-slack).clamp(min=0.0))
    wrong_sign = torch.where(is_equality, 0.0, (-multipliers).clamp(min=0.0)) * row_norm
    gradient = Qy + q + constraint_force
    proven = ~singular & (violation <= loose * distance_scale).all(-1) & (wrong_sign <= loose * force_scale).all(-1)
    proven = proven & (gradient.abs() <= loose * force_scale).all(-1)
    residual = torch.linalg.vector_norm(torch.cat([violation, wrong_sign, gradient], -1), dim=-1)
    return Certificate(y, ActiveRows.from_mask(active, width), proven, singular, residual, steps, factors)


def _keep_smallest(mask: Tensor, key: Tensor) -> Tensor:
    """Of the marked rows of each sample, keep only the one with the smallest key."""
    smallest = torch.where(mask, key, torch.inf).argmin(-1, keepdim=True)
    return mask & torch.zeros_like(mask).scatter(-1, smallest, True)


def _independent_rows(C: Tensor, active: Tensor, priority: Tensor) -> Tensor:
    """Drop the active rows that depend on rows of higher priority (on earlier rows, where priorities are equal)."""
    order = torch.where(active, priority, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    remainders = C.gather(-2, order[..., None].expand_as(C))
    norms = torch.linalg.vector_norm(remainders, dim=-1)
    remainders = remainders / norms.masked_fill(norms == 0, 1.0)[..., None]
    keep = active.gather(-1, order)
    rounding = torch.finfo(C.dtype).eps ** (2 / 3)
    for i in range(C.shape[-2]):
        norm = torch.linalg.vector_norm(remainders[:, i], dim=-1)
        keep[:, i] &= norm > rounding
        # Remove the direction of a row that stays from all the others.
        unit = torch.where(keep[:, i, None], remainders[:, i] / norm.masked_fill(norm == 0, 1.0)[:, None], 0.0)
        remainders = remainders - (remainders @ unit[..., None]) * unit[:, None, :]
    return torch.zeros_like(active).scatter(-1, order, keep)
