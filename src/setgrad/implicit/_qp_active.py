"""The active set of a quadratic program: its linear system, and the proof that it is the right one.

A solver's point is only as good as its tolerance. The constraints that hold with equality there make a linear system
whose solution is exact; if its multipliers push and the other constraints hold, it is the minimum, whoever proposed it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.implicit._factors import Factors, solve_marked

# Corrections of a proposed set, at most. The first few change all rows that are wrong, the others one at a time:
# where many constraints meet in one point, a set can otherwise go round in circles.
_ROUNDS, _BOLD = 40, 3


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """Places of the active constraints, `(*batch, w)`, the taken ones in front, and which places are taken."""

    index: Tensor
    taken: Tensor

    @staticmethod
    def of(active: Tensor, width: int) -> Rows:
        """From a mask `(*batch, rows)`: the active ones in front, in order."""
        index = (~active).to(torch.uint8).argsort(dim=-1, stable=True)[..., :width]
        return Rows(index, active.gather(-1, index))

    def fitted(self) -> Rows:
        """Without the places that no sample takes."""
        width = int(self.taken.sum(-1).max()) if self.taken.numel() else 0
        return Rows(self.index[..., :width], self.taken[..., :width])

    def spread(self, x: Tensor, size: int) -> Tensor:
        """Values of the taken places, put back among all constraints."""
        return x.new_zeros(*x.shape[:-1], size).scatter(-1, self.index, torch.where(self.taken, x, 0.0))


def system(Q: Tensor, q: Tensor, C: Tensor, d: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Matrix and right-hand side of the conditions on y and the multipliers; places not taken have multiplier 0."""
    taken = rows.taken[..., None]
    chosen = torch.where(taken, C.gather(-2, rows.index[..., None].expand(*rows.index.shape, C.shape[-1])), 0.0)
    ends = torch.where(rows.taken, d.gather(-1, rows.index), 0.0)
    corner = torch.diag_embed((~rows.taken).to(Q.dtype))
    matrix = torch.cat([torch.cat([Q, chosen.mT], -1), torch.cat([chosen, corner], -1)], -2)
    return matrix, torch.cat([-q, ends], -1)


@final
@dataclass(frozen=True, eq=False)
class Certificate:
    """A point with its active rows, and for each sample whether it is proven, or its system singular.

    The factors are those of the system of the fitted rows.
    """

    y: Tensor
    rows: Rows
    proven: Tensor
    singular: Tensor
    residual: Tensor
    steps: Tensor
    factors: Factors


def certify(Q: Tensor, q: Tensor, C: Tensor, d: Tensor, equal: Tensor, active: Tensor, weight: Tensor) -> Certificate:
    """Correct a proposed active set until its system proves it, for a batch `(b, ...)`.

    A constraint that holds with equality without pushing (weakly active) is left out. Where active rows depend on each
    other, those of greater weight stay. `equal` marks the rows that are equalities, `(rows,)`.
    """
    n, size = C.shape[-1], C.shape[-2]
    width = min(size, n)
    eps = torch.finfo(q.dtype).eps
    loose, tight = eps**0.5, eps ** (2 / 3)
    length = torch.linalg.vector_norm(C, dim=-1)
    active = active | equal
    steps = torch.zeros(len(q), dtype=torch.long, device=q.device)
    changing = torch.ones_like(steps, dtype=torch.bool)
    for count in range(_ROUNDS):
        rows = Rows.of(active, width).fitted()
        x, singular, factors = solve_marked(*system(Q, q, C, d, rows))
        suspect = changing & (singular | (active.sum(-1) > width))
        if bool(suspect.any()):
            active = active.clone()
            active[suspect] = _independent(C[suspect], active[suspect], weight[suspect])
            rows = Rows.of(active, width).fitted()
            x, singular, factors = solve_marked(*system(Q, q, C, d, rows))
        y, force = x[..., :n], rows.spread(x[..., n:], size)
        pull = (Q @ y[..., None])[..., 0]
        push = (C.mT @ force[..., None])[..., 0]
        room = d - (C @ y[..., None])[..., 0]
        # What counts as nothing: for forces, and for distances from each constraint.
        strong = torch.stack([pull, q, push]).abs().amax((0, -1))[..., None]
        size_y = torch.linalg.vector_norm(y, dim=-1, keepdim=True).clamp(min=1.0)
        far = torch.where(d.isfinite(), d.abs(), 0.0) + length * size_y
        drop = active & ~equal & (force * length <= tight * strong)
        add = ~active & ~equal & (room < -tight * far)
        if count >= _BOLD:
            drop = _first(drop, force * length)
            add = _first(add, room / length.masked_fill(length == 0, 1.0)) & ~drop.any(-1, keepdim=True)
        changing = changing & (drop | add).any(-1)
        steps = steps + (changing | (count == 0))
        if count == _ROUNDS - 1 or not bool(changing.any()):
            break
        active = torch.where(changing[..., None], (active & ~drop) | add, active)
    broken = torch.where(equal, room.abs(), (-room).clamp(min=0.0))
    pulled = torch.where(equal, 0.0, (-force).clamp(min=0.0)) * length
    rest = pull + q + push
    proven = ~singular & (broken <= loose * far).all(-1) & (pulled <= loose * strong).all(-1)
    proven = proven & (rest.abs() <= loose * strong).all(-1)
    residual = torch.linalg.vector_norm(torch.cat([broken, pulled, rest], -1), dim=-1)
    return Certificate(y, Rows.of(active, width), proven, singular, residual, steps, factors)


def _first(which: Tensor, key: Tensor) -> Tensor:
    """Of the marked rows of each sample only that of the least key."""
    least = torch.where(which, key, torch.inf).argmin(-1, keepdim=True)
    return which & torch.zeros_like(which).scatter(-1, least, True)


def _independent(C: Tensor, active: Tensor, weight: Tensor) -> Tensor:
    """The active rows less those that depend on others of greater weight (the first, where weights are equal)."""
    order = torch.where(active, weight, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    left = C.gather(-2, order[..., None].expand_as(C))
    length = torch.linalg.vector_norm(left, dim=-1)
    left = left / length.masked_fill(length == 0, 1.0)[..., None]
    keep = active.gather(-1, order)
    small = torch.finfo(C.dtype).eps ** (2 / 3)
    for i in range(C.shape[-2]):
        norm = torch.linalg.vector_norm(left[:, i], dim=-1)
        keep[:, i] &= norm > small
        # Take the direction of a row that stays out of all the others.
        unit = torch.where(keep[:, i, None], left[:, i] / norm.masked_fill(norm == 0, 1.0)[:, None], 0.0)
        left = left - (left @ unit[..., None]) * unit[:, None, :]
    return torch.zeros_like(active).scatter(-1, order, keep)
