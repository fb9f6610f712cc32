"""The table of the knapsack problem with whole weights, a batch at a time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from setgrad.discrete.solvers import _knapsack_host
from setgrad.discrete.solvers._arrays import small_arrays
from setgrad.discrete.solvers._shapes import slices

# Cells of the table of decisions, one byte each.
_ROOM = 2**26
# Cells of one step up to which NumPy is faster than torch with a few threads.
_SMALL = 2**18


def best_items(theta: Tensor, weights: Tensor, room: Tensor) -> Tensor:
    """Ones at the items to take: theta (count, n), weights (n,) or (count, n), room (count,)."""
    n, most = theta.shape[1], int(room.max())
    parts = slices(len(theta), n * (most + 1), _ROOM)
    arrays = small_arrays((most + 1) * len(theta), _SMALL, theta, room) if weights.ndim == 1 else None
    if arrays is not None:
        worths, rooms = arrays
        found = [_knapsack_host.fill(worths[part], rooms[part], weights.tolist(), most) for part in parts]
        return torch.from_numpy(np.concatenate(found)).to(theta.dtype)
    return torch.cat(
        [fill(theta[part], weights if weights.ndim == 1 else weights[part], room[part], most) for part in parts]
    )


def fill(theta: Tensor, weights: Tensor, room: Tensor, most: int) -> Tensor:
    """From the last item to the first the best worth for each room left, then from the first item on the decisions.

    Going forwards an item is taken wherever that loses nothing, so equal items go to the lower index.
    """
    n, count = theta.shape[1], len(theta)
    # An item that is worth nothing is never taken: minus infinity loses against leaving it.
    worth = torch.where(theta > 0, theta, -torch.inf).T.contiguous()
    shared = weights.ndim == 1
    # One list for all needs no look-up for each instance: shifting the table is enough.
    shifts = weights.tolist() if shared else []
    each = weights if shared else weights.T.contiguous()
    best = theta.new_zeros(most + 1, count)
    take = torch.zeros(n, most + 1, count, dtype=torch.bool, device=theta.device)
    rooms = torch.arange(most + 1, device=theta.device)[:, None]
    for item, gain, decided in reversed(list(zip(range(n), worth, take, strict=True))):
        if shared:
            shift = shifts[item]
            if shift > most:
                continue
            taken, left = best[: most + 1 - shift] + gain, best[shift:]
            torch.ge(taken, left, out=decided[shift:])
            torch.maximum(left, taken, out=left)
        else:
            after = rooms - each[item]
            taken = (best.gather(0, after.clamp(min=0)) + gain).masked_fill_(after < 0, -torch.inf)
            torch.ge(taken, best, out=decided)
            best = torch.maximum(best, taken)
    z = torch.empty(n, count, dtype=torch.uint8, device=theta.device)
    # Where each instance stands in the rows of decisions, which are read as one.
    here = room * count + torch.arange(count, device=theta.device)
    for item, (decided, chosen) in enumerate(zip(take.view(torch.uint8).flatten(1), z, strict=True)):
        torch.index_select(decided, 0, here, out=chosen)
        if shared:
            here.sub_(chosen, alpha=shifts[item] * count)
        else:
            here.sub_(chosen * each[item], alpha=count)
    return z.T.to(theta.dtype)
