"""Shortest tours by the dynamic program of Held and Karp, for a whole batch at a time."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from setgrad.discrete.solvers import _held_karp_numpy
from setgrad.discrete.solvers._limits import batch_slices
from setgrad.discrete.solvers._numpy import numpy_views

# Numbers in the working table; a part of the batch that fits the cache is faster than all at once.
_MEMORY_LIMIT = 2**20
# The same in NumPy, which is faster than torch up to this number of cities and of numbers for the whole batch.
_NUMPY_MEMORY_LIMIT, _NUMPY_CITIES, _NUMPY_LIMIT = 2**17, 9, 2**19


def shortest_tours(cost: Tensor) -> Tensor:
    """Return the best order of the cities, (count, n), from city 0, for symmetric costs (count, n, n), n >= 3."""
    count, n = cost.shape[:2]
    numbers = n * 2 ** (n - 1)
    arrays = numpy_views(count * numbers, _NUMPY_LIMIT, cost) if n <= _NUMPY_CITIES else None
    layers = _layers(n - 1)
    if arrays is not None:
        parts = [
            _held_karp_numpy.tours(arrays[0][part], layers)
            for part in batch_slices(count, numbers, _NUMPY_MEMORY_LIMIT)
        ]
        return torch.from_numpy(np.concatenate(parts))
    on_device = [tuple(torch.from_numpy(rows).to(cost.device) for rows in layer) for layer in layers]
    return torch.cat([_tours_in_torch(cost[part], on_device) for part in batch_slices(count, numbers, _MEMORY_LIMIT)])


@lru_cache(maxsize=16)
def _layers(others: int) -> list[tuple[Any, Any, Any]]:
    """Return row numbers for each size of a set of cities, and each pair of such a set and its last city.

    Three arrays for each size: rows of the pairs in the table of shortest paths, (pairs,); rows of the sets without the
    last city, for each city that may come before it, (pairs, size - 1); and rows of the legs between these cities and
    the last one in the table of costs.
    """
    member = (np.arange(2**others)[:, None] >> np.arange(others)) & 1
    layers = []
    for size in range(2, others + 1):
        sets, last = (member * (member.sum(1) == size)[:, None]).nonzero()
        rest = sets ^ (1 << last)
        before = member[rest].nonzero()[1].reshape(-1, size - 1)
        layers.append((sets * others + last, rest[:, None] * others + before, last[:, None] * others + before))
    return layers


def _tours_in_torch(cost: Tensor, layers: list[tuple[Tensor, ...]]) -> Tensor:
    """Compute the same on any device, for a batch whose table fits into memory."""
    others, device = cost.shape[-1] - 1, cost.device
    cost = cost.permute(1, 2, 0).contiguous()  # the batch last: every operation runs along it
    first, between = cost[0, 1:], cost[1:, 1:]
    legs = between.flatten(0, 1)
    # best[S, j]: the cheapest path from city 0 through all cities of S that ends at j
    best = cost.new_full((2**others, others, cost.shape[-1]), torch.inf)
    each = torch.arange(others, device=device)
    best[2**each, each] = first
    rows = best.flatten(0, 1)
    for pairs, previous, leg in layers:
        paths = rows.index_select(0, previous.flatten()).add_(legs.index_select(0, leg.flatten()))
        rows[pairs] = paths.unflatten(0, previous.shape).amin(1)
    batch = torch.arange(cost.shape[-1], device=device)
    remaining = torch.full_like(batch, 2**others - 1)
    city = (best[-1] + first).argmin(0)
    tour = [city]
    for _ in range(others - 1):
        remaining = remaining ^ (1 << city)
        city = (best[remaining, :, batch] + between[city, :, batch]).argmin(1)
        tour.append(city)
    return torch.stack([torch.full_like(batch, -1), *tour], dim=1) + 1
