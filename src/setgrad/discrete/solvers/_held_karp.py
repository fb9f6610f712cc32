"""Shortest tours by the dynamic programme of Held and Karp, a batch at a time."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from setgrad.discrete.solvers import _held_karp_host
from setgrad.discrete.solvers._arrays import small_arrays
from setgrad.discrete.solvers._shapes import slices

# Numbers of the working table; a part of the batch that fits the cache is quicker than all at once.
_ROOM = 2**20
# The same in NumPy, and where it is the faster of the two: up to so many cities, and numbers for the whole batch.
_HOST_ROOM, _FEW, _SMALL = 2**17, 9, 2**19


def shortest_tours(cost: Tensor) -> Tensor:
    """The best order of the cities for symmetric costs (count, n, n), n >= 3: (count, n), beginning with city 0."""
    count, n = cost.shape[:2]
    each = n * 2 ** (n - 1)
    arrays = small_arrays(count * each, _SMALL, cost) if n <= _FEW else None
    layers = _layers(n - 1)
    if arrays is not None:
        parts = [_held_karp_host.tours(arrays[0][part], layers) for part in slices(count, each, _HOST_ROOM)]
        return torch.from_numpy(np.concatenate(parts))
    there = [tuple(torch.from_numpy(rows).to(cost.device) for rows in layer) for layer in layers]
    return torch.cat([_by_torch(cost[part], there) for part in slices(count, each, _ROOM)])


@lru_cache(maxsize=16)
def _layers(others: int) -> list[tuple[Any, Any, Any]]:
    """For each size of a set of cities, and each pair of such a set and its member that is visited last, row numbers.

    In the table of best ways: of the pair, (pairs), and of its set without the last city, for each city that may come
    before, (pairs, size - 1). In the table of costs: of the legs between these cities and the last.
    """
    member = (np.arange(2**others)[:, None] >> np.arange(others)) & 1
    layers = []
    for size in range(2, others + 1):
        sets, last = (member * (member.sum(1) == size)[:, None]).nonzero()
        rest = sets ^ (1 << last)
        before = member[rest].nonzero()[1].reshape(-1, size - 1)
        layers.append((sets * others + last, rest[:, None] * others + before, last[:, None] * others + before))
    return layers


def _by_torch(cost: Tensor, layers: list[tuple[Tensor, ...]]) -> Tensor:
    """The same on any device, for a batch whose table fits into memory."""
    others, device = cost.shape[-1] - 1, cost.device
    cost = cost.permute(1, 2, 0).contiguous()  # the batch last: every operation below runs along it
    first, between = cost[0, 1:], cost[1:, 1:]
    legs = between.flatten(0, 1)
    # best[S, j]: the cheapest way from city 0 through all cities of S that ends at j
    best = cost.new_full((2**others, others, cost.shape[-1]), torch.inf)
    each = torch.arange(others, device=device)
    best[2**each, each] = first
    rows = best.flatten(0, 1)
    for here, before, leg in layers:
        ways = rows.index_select(0, before.flatten()).add_(legs.index_select(0, leg.flatten()))
        rows[here] = ways.unflatten(0, before.shape).amin(1)
    batch = torch.arange(cost.shape[-1], device=device)
    left = torch.full_like(batch, 2**others - 1)
    city = (best[-1] + first).argmin(0)
    tour = [city]
    for _ in range(others - 1):
        left = left ^ (1 << city)
        city = (best[left, :, batch] + between[city, :, batch]).argmin(1)
        tour.append(city)
    return torch.stack([torch.full_like(batch, -1), *tour], dim=1) + 1
