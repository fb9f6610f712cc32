"""Shortest tours by the dynamic programme of Held and Karp, a batch at a time."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from setgrad.discrete.solvers._shapes import slices

# Numbers of the working table; a part of the batch that fits the cache is quicker than all at once.
_ROOM = 2**20


def shortest_tours(cost: Tensor) -> Tensor:
    """The best order of the cities for symmetric costs (count, n, n), n >= 3: (count, n), beginning with city 0."""
    n = cost.shape[-1]
    return torch.cat([_tours(cost[part]) for part in slices(len(cost), n * 2 ** (n - 1), _ROOM)])


@lru_cache(maxsize=16)
def _layers(others: int) -> list[tuple[Tensor, Tensor]]:
    """For each size of a set of cities: all pairs of a set (a bit mask) and its member that is visited last."""
    sets = torch.arange(2**others)
    member = (sets[:, None] >> torch.arange(others)) & 1
    return [
        tuple((member * (member.sum(1) == size)[:, None]).nonzero().unbind(1))  # type: ignore[misc]
        for size in range(2, others + 1)
    ]


def _tours(cost: Tensor) -> Tensor:
    others, device = cost.shape[-1] - 1, cost.device
    cost = cost.permute(1, 2, 0).contiguous()  # the batch last: every operation below runs along it
    first, between = cost[0, 1:], cost[1:, 1:]
    # best[S, j]: the cheapest way from city 0 through all cities of S that ends at j
    best = cost.new_full((2**others, others, cost.shape[-1]), torch.inf)
    each = torch.arange(others, device=device)
    best[2**each, each] = first
    for sets, last in ((a.to(device), b.to(device)) for a, b in _layers(others)):
        best[sets, last] = (best[sets ^ (1 << last)] + between[last]).amin(1)
    batch = torch.arange(cost.shape[-1], device=device)
    left = torch.full_like(batch, 2**others - 1)
    city = (best[-1] + first).argmin(0)
    tour = [city]
    for _ in range(others - 1):
        left = left ^ (1 << city)
        city = (best[left, :, batch] + between[city, :, batch]).argmin(1)
        tour.append(city)
    return torch.stack([torch.full_like(batch, -1), *tour], dim=1) + 1
