"""Good tours by local search, a batch at a time: nearest neighbours, then the best 2-opt or Or-opt moves."""

from __future__ import annotations

import torch
from torch import Tensor

from setgrad.discrete.solvers._shapes import slices

_LONGEST = 3  # cities that an Or-opt move carries along
_ROOM = 2**23  # numbers that are worked on at a time


def good_tours(cost: Tensor, starts: int) -> Tensor:
    """The best of several local optima for symmetric costs (count, n, n): (count, n)."""
    count, n = cost.shape[:2]
    starts = min(starts, n)
    first = torch.arange(starts, device=cost.device) * n // starts
    owner = torch.arange(count, device=cost.device).repeat_interleave(starts)
    tours = _nearest(cost, owner, first.repeat(count))
    tours = _improve(cost, owner, tours)
    length = cost[owner[:, None], tours, tours.roll(-1, 1)].sum(1)
    best = length.reshape(count, starts).argmin(1)
    return tours.reshape(count, starts, n)[torch.arange(count, device=cost.device), best]


def _nearest(cost: Tensor, owner: Tensor, here: Tensor) -> Tensor:
    """Go on to the nearest city that is left."""
    n = cost.shape[-1]
    seen = torch.zeros(len(owner), n, dtype=torch.bool, device=cost.device)
    tour = [here]
    for _ in range(n - 1):
        seen.scatter_(1, here[:, None], True)
        here = cost[owner, here].masked_fill_(seen, torch.inf).argmin(1)
        tour.append(here)
    return torch.stack(tour, dim=1)


def _improve(cost: Tensor, owner: Tensor, tours: Tensor) -> Tensor:
    """Make the best move of every tour until none helps; each must help by more than rounding can pretend."""
    n = cost.shape[-1]
    least = cost.abs().amax((1, 2)) * (32 * torch.finfo(cost.dtype).eps)
    alive = torch.arange(len(tours), device=cost.device)
    while len(alive):
        moved = []
        for piece in slices(len(alive), 8 * n * n, _ROOM):
            some = alive[piece]
            part, whose = tours[some], owner[some]
            between = cost[whose[:, None, None], part[:, :, None], part[:, None, :]]
            change, move = _changes(between).flatten(1).min(1)
            better = change < -least[whose]
            tours[some[better]] = part[better].gather(1, _order(move[better], n))
            moved.append(some[better])
        alive = torch.cat(moved)
    return tours


def _changes(between: Tensor) -> Tensor:
    """What each move adds to the length, (tours, 7, n, n), for the costs between positions of a tour."""
    n = between.shape[-1]
    place = torch.arange(n, device=between.device)
    step = between.roll(-1, 2).diagonal(dim1=1, dim2=2)  # from each position to the next
    turned = between + between.roll((-1, -1), (1, 2)) - step[:, :, None] - step[:, None, :]
    changes = [turned.masked_fill(place[:, None] >= place, torch.inf)]
    for length in range(1, _LONGEST + 1):
        head, tail = between, between.roll(1 - length, 1)  # rows: where the carried cities begin
        gap = step.roll(1, 1) + step.roll(1 - length, 1)
        closed = between.roll((1, -length), (1, 2)).diagonal(dim1=1, dim2=2)
        fixed = (closed - gap)[:, :, None] - step[:, None, :]
        # columns: the position after which they go, which must lie outside them and not just before
        inside = (place - place[:, None] + 1) % n <= length
        for near, far in ((head, tail), (tail, head)):
            changes.append((near + far.roll(-1, 2) + fixed).masked_fill(inside, torch.inf))
    return torch.stack(changes, dim=1)


def _order(move: Tensor, n: int) -> Tensor:
    """The positions of a tour in their new order, for moves numbered as in `_changes`."""
    kind, begin, end = move[:, None] // (n * n), move[:, None] // n % n, move[:, None] % n
    place = torch.arange(n, device=move.device)[None]
    turned = torch.where((begin < place) & (place <= end), begin + 1 + end - place, place)
    # Or-opt: count from the first carried city; the others keep their order, the carried ones squeeze in between.
    length, backwards = (kind + 1) // 2, kind % 2 == 0
    goes = torch.where(backwards, length - 1 - place, place)
    key = torch.where(place < length, 4 * ((end - begin) % n) + 1 + goes, 4 * place)
    carried = (begin + key.argsort(1)) % n
    return torch.where(kind == 0, turned, carried)
