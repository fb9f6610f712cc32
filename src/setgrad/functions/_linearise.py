"""The Jacobian of the gains, for functions that look at S through sums over S.

The gain of item i is V(x + r_i) - V(x), where x sums the rows of the other items of S. It depends on their masks
through x alone. So one reverse pass through V gives its slope D_i by x, for all items at once, and the derivative by
the mask of item j is D_i . r_j: no further look at V. By its own mask it is 0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from setgrad.functions._flips import in_and_out
from setgrad.sets import Sets

# Entries of the Jacobians, of all samples, beyond which memory is better spent otherwise.
_ENTRIES = 2**26


def linearise(
    value: Callable[[list[Tensor]], Tensor],
    sums: list[Tensor],
    rows: list[Tensor],
    shares: Tensor,
    moves: Tensor,
    sets: Sets,
    *,
    chunk: int,
) -> tuple[Tensor, Tensor] | None:
    """Mean gains `(total,)` and their Jacobian `(b, n, n)` for `BoundSetFunction.linearised`.

    Args:
        value: V, from a list of sums `(2, m, total, h)`, which it may overwrite, to `(2, m, total)`.
        sums: Each kind of sum over S, `(m, b, h)`, with all items.
        rows: What an item adds to each kind of sum, `(total, h)`.
        shares: How much of each item is in S, `(m, total)`.
        moves: How far that moves with the number that the Jacobian is for, `(m, total)`.
        sets: The sets.
        chunk: Bounds how many flipped subsets are evaluated at once.
    """
    layout, m = sets.layout, len(shares)
    if not layout.total or len(layout) * m * layout.longest**2 > _ENTRIES:
        return None
    step, graph = max(1, chunk // layout.total), torch.is_grad_enabled()
    gains, matrix = shares.new_zeros(layout.total), shares.new_zeros(len(layout), layout.longest, layout.longest)
    padded_rows = [sets.with_values(row).padded()[0].mT for row in rows]
    for start in range(0, m, step):
        part = slice(start, start + step)
        with torch.enable_grad():
            here = [x[part].index_select(1, layout.ids).requires_grad_() for x in sums]
            values = value([in_and_out(x, row, shares[part]) for x, row in zip(here, rows, strict=True)])
            difference = values[0] - values[1]
            slopes = torch.autograd.grad(difference.sum(), here, retain_graph=graph)
        gains = gains + (difference if graph else difference.detach()).sum(0)
        with torch.no_grad():
            moved = _padded(moves[part], sets)[..., None, :]
            for slope, row in zip(slopes, padded_rows, strict=True):
                matrix = matrix + (torch.matmul(_padded(slope, sets), row) * moved).sum(0)
    matrix.diagonal(dim1=-2, dim2=-1).zero_()
    return gains / m, matrix / m


def _padded(x: Tensor, sets: Sets) -> Tensor:
    """From `(m, total, ...)` to `(m, b, longest, ...)`."""
    return sets.with_values(x.transpose(0, 1)).padded()[0].movedim(2, 0)
