"""The table of dynamic programming for the knapsack problem with whole weights, for a whole batch at a time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from setgrad.discrete.solvers import _knapsack_numpy
from setgrad.discrete.solvers._limits import batch_slices
from setgrad.discrete.solvers._numpy import numpy_views

# The maximum number of cells in the table of decisions, one byte each.
_MEMORY_LIMIT = 2**26
# NumPy is faster than torch with a few threads up to this number of cells in one step.
_NUMPY_LIMIT = 2**18


def best_items(theta: Tensor, weights: Tensor, capacity: Tensor) -> Tensor:
    """Return ones at the chosen items, for theta (count, n), weights (n,) or (count, n), and capacities (count,)."""
    n, max_capacity = theta.shape[1], int(capacity.max())
    parts = batch_slices(len(theta), n * (max_capacity + 1), _MEMORY_LIMIT)
    arrays = numpy_views((max_capacity + 1) * len(theta), _NUMPY_LIMIT, theta, capacity) if weights.ndim == 1 else None
    if arrays is not None:
        values, capacities = arrays
        chosen_parts = [
            _knapsack_numpy.fill(values[part], capacities[part], weights.tolist(), max_capacity) for part in parts
        ]
        return torch.from_numpy(np.concatenate(chosen_parts)).to(theta.dtype)
    return torch.cat(
        [
            fill(theta[part], weights if weights.ndim == 1 else weights[part], capacity[part], max_capacity)
            for part in parts
        ]
    )


def fill(theta: Tensor, weights: Tensor, capacity: Tensor, max_capacity: int) -> Tensor:
    """Compute the best value of each remaining capacity from the last item to the first, then read the decisions.

    Decisions are read from the first item on, and an item is chosen wherever that loses nothing, so equal items go to
    the lower index.
    """
    n, count = theta.shape[1], len(theta)
    # An item of value 0 or less is never chosen: minus infinity loses against leaving it out.
    value = torch.where(theta > 0, theta, -torch.inf).T.contiguous()
    shared = weights.ndim == 1
    # With one list of weights, shifting the table replaces a look-up for each instance.
    shifts = weights.tolist() if shared else []
    weights_by_item = weights if shared else weights.T.contiguous()
    best = theta.new_zeros(max_capacity + 1, count)
    decision_table = torch.zeros(n, max_capacity + 1, count, dtype=torch.bool, device=theta.device)
    capacities = torch.arange(max_capacity + 1, device=theta.device)[:, None]
    for item, gain, decisions in reversed(list(zip(range(n), value, decision_table, strict=True))):
        if shared:
            shift = shifts[item]
            if shift > max_capacity:
                continue
            with_item, without_item = best[: max_capacity + 1 - shift] + gain, best[shift:]
            torch.ge(with_item, without_item, out=decisions[shift:])
            torch.maximum(without_item, with_item, out=without_item)
        else:
            remaining = capacities - weights_by_item[item]
            with_item = (best.gather(0, remaining.clamp(min=0)) + gain).masked_fill_(remaining < 0, -torch.inf)
            torch.ge(with_item, best, out=decisions)
            best = torch.maximum(best, with_item)
    z = torch.empty(n, count, dtype=torch.uint8, device=theta.device)
    # The position of each instance in the flat rows of decisions.
    position = capacity * count + torch.arange(count, device=theta.device)
    for item, (decisions, chosen) in enumerate(zip(decision_table.view(torch.uint8).flatten(1), z, strict=True)):
        torch.index_select(decisions, 0, position, out=chosen)
        if shared:
            position.sub_(chosen, alpha=shifts[item] * count)
        else:
            position.sub_(chosen * weights_by_item[item], alpha=count)
    return z.T.to(theta.dtype)
