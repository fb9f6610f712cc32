"""Search for a good subset on F itself, for all sets of a batch at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from setgrad.functions import BoundSetFunction
from setgrad.sets import Sets, segment_max, segment_rank, segment_sum

# Prices of a change, in parts of the largest gain.
_PRICES = (0.0, *(2.0**-k for k in range(10)))


def greedy(bound: BoundSetFunction, sizes: Tensor | None = None) -> Sets:
    """Add the item with the largest gain, up to `sizes` `(b,)` items, or while a gain is positive.

    Example:
        >>> import setgrad as sg
        >>> bound = sg.functions.Modular().bind(sg.Sets.from_list([[[1.0], [-1.0], [2.0]]]))
        >>> greedy(bound).values.tolist(), greedy(bound, torch.tensor([1])).values.tolist()
        ([True, False, True], [False, False, True])
    """
    sets = bound.sets
    picked = torch.zeros(sets.layout.total, dtype=torch.bool, device=sets.device)
    limit = sets.lengths if sizes is None else sizes.minimum(sets.lengths)
    for taken in range(int(limit.max()) if len(limit) else 0):
        gains = bound.gains(picked[None])[0].masked_fill(picked, -torch.inf)
        wanted = limit > taken
        if sizes is None:
            wanted &= segment_max(gains, sets) > 0
            # A set that stopped stays stopped: its gains do not change any more.
        add = (segment_rank(gains, sets) == 0) & wanted[sets.layout.ids] & gains.isfinite()
        if not bool(add.any()):
            break
        picked = picked | add
    return sets.with_values(picked)


def local_search(bound: BoundSetFunction, start: Sets, *, keep_size: bool, max_moves: int = 100) -> Sets:
    """Improve a subset by single moves until none helps: swaps if the size is kept, else adding or removing one item.

    A swap removes the item that is missed least, then adds the item that helps most.
    """
    sets, picked = bound.sets, start.values.clone()
    ids = sets.layout.ids
    for _ in range(max_moves):
        changed = _swap(bound, picked) if keep_size else _flip(bound, picked)
        before, after = bound.value(torch.stack([picked, changed]))
        # Rounding must not pass for progress, or two equal subsets would be swapped for ever.
        better = after > before + 1e-9 * before.abs().clamp(min=1)
        if not bool(better.any()):
            break
        picked = torch.where(better[ids], changed, picked)
    return sets.with_values(picked)


def constrained_search(
    bound: BoundSetFunction, start: Sets, solve: Callable[[Tensor], Tensor], *, max_moves: int = 100
) -> Sets:
    """Improve an allowed subset by moves to other allowed subsets, until none of those tried is better.

    Around a subset F is taken for the sum of its gains. `solve` finds the allowed subset of the largest sum exactly,
    once for each of several prices on every item that changes: high prices allow small steps, where the sum is right.
    The best by F itself is kept.

    Args:
        bound: F for the sets.
        start: An allowed subset of each.
        solve: From worths `(m, total)` to the best allowed subsets, booleans `(m, total)`.
        max_moves: When to stop.
    """
    sets, picked = bound.sets, start.values.clone()
    ids = sets.layout.ids
    for _ in range(max_moves):
        gains = bound.gains(picked[None])[0]
        stay = torch.where(picked, 1.0, -1.0) * segment_max(gains.abs(), sets, empty=0.0)[ids]
        tried = solve(gains + torch.tensor(_PRICES, dtype=gains.dtype, device=gains.device)[:, None] * stay)
        before, after = bound.value(picked[None])[0], bound.value(tried)
        value, which = after.max(0)
        better = value > before + 1e-9 * before.abs().clamp(min=1)
        if not bool(better.any()):
            break
        best = tried.gather(0, which[ids][None])[0]
        picked = torch.where(better[ids], best, picked)
    return sets.with_values(picked)


def _flip(bound: BoundSetFunction, picked: Tensor) -> Tensor:
    gains = bound.gains(picked[None])[0]
    improvement = torch.where(picked, -gains, gains)
    return picked ^ (segment_rank(improvement, bound.sets) == 0)


def _swap(bound: BoundSetFunction, picked: Tensor) -> Tensor:
    sets = bound.sets
    missed = (-bound.gains(picked[None])[0]).masked_fill(~picked, -torch.inf)
    out = (segment_rank(missed, sets) == 0) & picked
    smaller = picked & ~out
    gains = bound.gains(smaller[None])[0].masked_fill(smaller, -torch.inf)
    room = segment_sum(out.long(), sets)[sets.layout.ids] > 0
    return smaller | ((segment_rank(gains, sets) == 0) & room)
