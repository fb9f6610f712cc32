"""Short tours by local search, for a whole batch at a time: nearest neighbours, then 2-opt and Or-opt moves."""

from __future__ import annotations

import torch
from torch import Tensor

from setgrad.discrete.solvers._limits import batch_slices

_MAX_SEGMENT = 3  # cities that an Or-opt move carries along
_MEMORY_LIMIT = 2**23  # numbers in memory at a time


def local_search_tours(cost: Tensor, starts: int) -> Tensor:
    """Return the best of several local optima, (count, n), for symmetric costs (count, n, n)."""
    count, n = cost.shape[:2]
    starts = min(starts, n)
    first = torch.arange(starts, device=cost.device) * n // starts
    owner = torch.arange(count, device=cost.device).repeat_interleave(starts)
    tours = _nearest_neighbour_tours(cost, owner, first.repeat(count))
    tours = _improve(cost, owner, tours)
    length = cost[owner[:, None], tours, tours.roll(-1, 1)].sum(1)
    best = length.reshape(count, starts).argmin(1)
    return tours.reshape(count, starts, n)[torch.arange(count, device=cost.device), best]


def _nearest_neighbour_tours(cost: Tensor, owner: Tensor, city: Tensor) -> Tensor:
    """Return tours that always continue to the nearest city that was not visited."""
    n = cost.shape[-1]
    visited = torch.zeros(len(owner), n, dtype=torch.bool, device=cost.device)
    tour = [city]
    for _ in range(n - 1):
        visited.scatter_(1, city[:, None], True)
        city = cost[owner, city].masked_fill_(visited, torch.inf).argmin(1)
        tour.append(city)
    return torch.stack(tour, dim=1)


def _improve(cost: Tensor, owner: Tensor, tours: Tensor) -> Tensor:
    """Apply the best move of every tour until none helps by more than rounding errors."""
    n = cost.shape[-1]
    tolerance = cost.abs().amax((1, 2)) * (32 * torch.finfo(cost.dtype).eps)
    active = torch.arange(len(tours), device=cost.device)
    while len(active):
        moved = []
        for part in batch_slices(len(active), 8 * n * n, _MEMORY_LIMIT):
            rows = active[part]
            part_tours, owners = tours[rows], owner[rows]
            between = cost[owners[:, None, None], part_tours[:, :, None], part_tours[:, None, :]]
            change, move = _move_costs(between).flatten(1).min(1)
            better = change < -tolerance[owners]
            tours[rows[better]] = part_tours[better].gather(1, _order_after(move[better], n))
            moved.append(rows[better])
        active = torch.cat(moved)
    return tours


def _move_costs(between: Tensor) -> Tensor:
    """Return how much each move adds to the length, (tours, 7, n, n), for costs between positions of a tour."""
    n = between.shape[-1]
    place = torch.arange(n, device=between.device)
    step = between.roll(-1, 2).diagonal(dim1=1, dim2=2)  # from each position to the next
    turned = between + between.roll((-1, -1), (1, 2)) - step[:, :, None] - step[:, None, :]
    changes = [turned.masked_fill(place[:, None] >= place, torch.inf)]
    for length in range(1, _MAX_SEGMENT + 1):
        head, tail = between, between.roll(1 - length, 1)  # rows: where the segment begins
        gap = step.roll(1, 1) + step.roll(1 - length, 1)
        closed = between.roll((1, -length), (1, 2)).diagonal(dim1=1, dim2=2)
        fixed = (closed - gap)[:, :, None] - step[:, None, :]
        # columns: the position after which the segment goes, outside of it and not just before it
        inside = (place - place[:, None] + 1) % n <= length
        for first, last in ((head, tail), (tail, head)):
            changes.append((first + last.roll(-1, 2) + fixed).masked_fill(inside, torch.inf))
    return torch.stack(changes, dim=1)


def _order_after(move: Tensor, n: int) -> Tensor:
    """Return the positions of a tour in their new order, for moves numbered as in `_move_costs`."""
    kind, begin, end = move[:, None] // (n * n), move[:, None] // n % n, move[:, None] % n
    place = torch.arange(n, device=move.device)[None]
    turned = torch.where((begin < place) & (place <= end), begin + 1 + end - place, place)
    # Or-opt: count from the first city of the segment; the others keep their order, the segment goes in between.
    length, backwards = (kind + 1) // 2, kind % 2 == 0
    offset = torch.where(backwards, length - 1 - place, place)
    key = torch.where(place < length, 4 * ((end - begin) % n) + 1 + offset, 4 * place)
    carried = (begin + key.argsort(1)) % n
    return torch.where(kind == 0, turned, carried)
