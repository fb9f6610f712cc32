"""Search for a good subset on F itself, for all sets of a batch at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from setgrad.errors import DataError
from setgrad.functions import BoundSetFunction
from setgrad.sets import Sets, segment_max, segment_rank, segment_sum

# Prices of a change, in parts of the largest gain.
_PRICES = (0.0, *(2.0**-k for k in range(10)))


def greedy(bound: BoundSetFunction, sizes: Tensor | None = None) -> Sets:
    """Add the item with the largest gain, up to `sizes` `(b,)` items, or while a gain is positive.

    An item whose gain is minus infinity is never added.

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
        if bool((wrong := gains.isnan() | (gains == torch.inf)).any()):
            raise DataError(
                f"F gives an item of set {int(sets.layout.ids[wrong][0])} a gain that is no number; look for features "
                "far beyond those that it was fitted on"
            )
        wanted = limit > taken
        if sizes is None:
            wanted &= segment_max(gains, sets) > 0
            # A set that stopped stays stopped: its gains do not change any more.
        add = (segment_rank(gains, sets) == 0) & wanted[sets.layout.ids] & gains.isfinite()
        if not bool(add.any()):
            break
        picked = picked | add
    return sets.with_values(picked)


def local_search(bound: BoundSetFunction, start: Sets, *, keep_size: bool) -> Sets:
    """Improve a subset until no single move helps: a swap if the size is kept, else adding or removing one item.

    A swap removes the item that is missed least, then adds the item that helps most. The 2, 4, 8, ... most promising
    moves together are tried too, so that large sets take few rounds.

    Example:
        >>> import setgrad as sg
        >>> sets = sg.Sets.from_list([[[1.0], [-1.0], [2.0]]])
        >>> bound = sg.functions.Modular().bind(sets)
        >>> local_search(bound, sets.with_values(torch.tensor([False, True, False])), keep_size=True).values.tolist()
        [False, False, True]
    """
    sets, picked = bound.sets, start.values.clone()
    ids, moves = sets.layout.ids, _swaps if keep_size else _flips
    counts = [2**k for k in range(max(sets.layout.longest.bit_length(), 1))]
    value, done = bound.value(picked[None])[0], False
    # F rises in every round, so that no subset comes back and the search ends.
    while not done:
        picked, value, done = _take_better(bound, picked, value, moves(bound, picked, counts), ids)
    return sets.with_values(picked)


def constrained_search(bound: BoundSetFunction, start: Sets, solve: Callable[[Tensor], Tensor]) -> Sets:
    """Improve an allowed subset by moves to other allowed subsets, until none of those tried is better.

    Around a subset F is taken for the sum of its gains. `solve` finds the allowed subset of the largest sum exactly,
    once for each of several prices on every item that changes: high prices allow small steps, where the sum is right.
    The best by F itself is kept.

    Args:
        bound: F for the sets.
        start: An allowed subset of each.
        solve: From worths `(m, total)` to the best allowed subsets, booleans `(m, total)`.
    """
    sets, picked = bound.sets, start.values.clone()
    ids = sets.layout.ids
    value, done = bound.value(picked[None])[0], False
    while not done:
        gains = bound.gains(picked[None])[0]
        stay = torch.where(picked, 1.0, -1.0) * segment_max(gains.abs(), sets, empty=0.0)[ids]
        tried = solve(gains + torch.tensor(_PRICES, dtype=gains.dtype, device=gains.device)[:, None] * stay)
        picked, value, done = _take_better(bound, picked, value, tried, ids)
    return sets.with_values(picked)


def _take_better(
    bound: BoundSetFunction, picked: Tensor, value: Tensor, tried: Tensor, ids: Tensor
) -> tuple[Tensor, Tensor, bool]:
    """The best of the subsets `(m, total)` where it is better than the one picked, its value, and whether none was.

    `value` `(b,)` is what was found for the one picked: asked again, beside others, it may be rounded to another
    number, and a subset would be better than itself, for ever.
    """
    best, which = bound.value(tried).max(0)
    # Rounding must not pass for progress.
    rounding = max(1e-9, 64 * torch.finfo(value.dtype).eps) if value.is_floating_point() else 0.0
    better = best > value + rounding * value.abs().clamp(min=1)
    chosen = tried.gather(0, which[ids][None])[0]
    return torch.where(better[ids], chosen, picked), torch.where(better, best, value), not bool(better.any())


def _flips(bound: BoundSetFunction, picked: Tensor, counts: Sequence[int]) -> Tensor:
    """Add or remove the items that help most, as many as each of `counts`: `(m, total)`."""
    gains = bound.gains(picked[None])[0]
    improvement = torch.where(picked, -gains, gains)
    rank, helps = segment_rank(improvement, bound.sets), improvement > 0
    return torch.stack([picked ^ (helps & (rank < count)) for count in counts])


def _swaps(bound: BoundSetFunction, picked: Tensor, counts: Sequence[int]) -> Tensor:
    """Remove the items that are missed least, then add as many that help most, for each of `counts`: `(m, total)`."""
    sets = bound.sets
    missed = segment_rank((-bound.gains(picked[None])[0]).masked_fill(~picked, -torch.inf), sets)
    out = torch.stack([picked & (missed < count) for count in counts])
    smaller = picked & ~out
    gains = bound.gains(smaller).masked_fill(smaller, -torch.inf)
    room = segment_sum(out.T.long(), sets).T[:, sets.layout.ids]
    return smaller | (torch.stack([segment_rank(gain, sets) for gain in gains]) < room)
