"""The Jacobian of the gains, for functions that read a subset through sums over its items.

The gain of item i is v(x + r_i) - v(x), where x is the sum of the rows of the other items of S. It depends on their
masks through x only. So one reverse pass through v gives the slope D_i of every gain by x, and the derivative of the
gain by the mask of item j is D_i . r_j, without another evaluation of v. By the item's own mask it is 0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from setgrad.sets import Sets

# With more entries in the Jacobians of all samples than this, differentiating the gains takes less memory.
_MAX_ENTRIES = 2**26


def with_and_without(sums: Tensor, rows: Tensor, shares: Tensor) -> Tensor:
    """Return sums with the item's row fully added and fully removed, `(2, m, k, h)`.

    Both are in one tensor, so that one sequence of kernels evaluates both.

    Args:
        sums: One sum for each item, `(m, k, h)`.
        rows: The rows of the items, `(k, h)`.
        shares: The share of its row that each sum includes now, `(m, k)`.
    """
    shares = shares.to(rows.dtype)
    return torch.addcmul(sums, torch.stack([1 - shares, -shares])[..., None], rows)


def linearise_gains(
    value: Callable[[list[Tensor]], Tensor],
    sums: list[Tensor],
    rows: list[Tensor],
    *,
    shares: Tensor,
    slopes: Tensor,
    sets: Sets,
    max_flips: int,
) -> tuple[Tensor, Tensor] | None:
    """Return mean gains `(total,)` and their Jacobian `(b, n, n)`, for `BoundSetFunction.linearisation`.

    Args:
        value: The function v, from a list of sums `(2, m, total, h)`, which it may overwrite, to `(2, m, total)`.
        sums: Each kind of sum over S, `(m, b, h)`, with all items.
        rows: What an item adds to each kind of sum, `(total, h)`.
        shares: How much of each item is in S, `(m, total)`.
        slopes: Derivative of the shares by the numbers that the Jacobian is for, `(m, total)`.
        sets: The sets.
        max_flips: Largest number of flipped subsets to evaluate at once.

    Returns:
        Gains and Jacobian; None if the Jacobians would be too large.
    """
    layout, m = sets.layout, len(shares)
    if not layout.total or len(layout) * m * layout.longest**2 > _MAX_ENTRIES:
        return None
    step, keep_graph = max(1, max_flips // layout.total), torch.is_grad_enabled()
    gains, jacobian = shares.new_zeros(layout.total), shares.new_zeros(len(layout), layout.longest, layout.longest)
    padded_rows = [sets.with_values(row).padded()[0].mT for row in rows]
    for start in range(0, m, step):
        chunk = slice(start, start + step)
        with torch.enable_grad():
            item_sums = [x[chunk].index_select(1, layout.ids).requires_grad_() for x in sums]
            values = value([with_and_without(x, row, shares[chunk]) for x, row in zip(item_sums, rows, strict=True)])
            difference = values[0] - values[1]
            by_sums = torch.autograd.grad(difference.sum(), item_sums, retain_graph=keep_graph)
        gains = gains + (difference if keep_graph else difference.detach()).sum(0)
        with torch.no_grad():
            by_numbers = _pad(slopes[chunk], sets)[..., None, :]
            for by_sum, row in zip(by_sums, padded_rows, strict=True):
                jacobian = jacobian + (torch.matmul(_pad(by_sum, sets), row) * by_numbers).sum(0)
    jacobian.diagonal(dim1=-2, dim2=-1).zero_()
    return gains / m, jacobian / m


def _pad(x: Tensor, sets: Sets) -> Tensor:
    """Return `(m, total, ...)` as `(m, b, longest, ...)`."""
    return sets.with_values(x.transpose(0, 1)).padded()[0].movedim(2, 0)
