"""Search for a good subset on the set function itself, for all sets of a batch at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from setgrad.errors import DataError
from setgrad.functions import BoundSetFunction
from setgrad.sets import Sets, segment_max, segment_rank, segment_sum

SEARCHES = ("greedy", "local")
# Penalties for changing an item, as a share of the largest gain.
_PENALTIES = (0.0, *(2.0**-k for k in range(10)))


def greedy(bound: BoundSetFunction, sizes: Tensor | None = None) -> Sets:
    """Build a subset item by item; each step adds the item with the largest gain.

    Args:
        bound: F, bound to the sets.
        sizes: Number of items to choose from each set, `(b,)`; None to add items while the gain is positive. An item
            with a gain of minus infinity is never added.

    Returns:
        The chosen subsets, a `Sets` of booleans.

    Raises:
        DataError: If a gain is NaN or infinity.

    Examples:
        >>> import setgrad as sg
        >>> bound = sg.functions.Modular().bind(sg.Sets.from_list([[[1.0], [-1.0], [2.0]]]))
        >>> greedy(bound).values.tolist(), greedy(bound, torch.tensor([1])).values.tolist()
        ([True, False, True], [False, False, True])
    """
    sets = bound.sets
    picks = torch.zeros(sets.layout.total, dtype=torch.bool, device=sets.device)
    limit = sets.lengths if sizes is None else sizes.minimum(sets.lengths)
    for count in range(int(limit.max()) if len(limit) else 0):
        gains = bound.gains(picks[None])[0].masked_fill(picks, -torch.inf)
        if bool((wrong := gains.isnan() | (gains == torch.inf)).any()):
            raise DataError(
                f"the gain of an item of set {int(sets.layout.ids[wrong][0])} is not finite; look for features far "
                "beyond those that the selector was fitted on"
            )
        is_open = limit > count
        if sizes is None:
            # A set that stopped stays stopped, because its gains do not change any more.
            is_open &= segment_max(gains, sets) > 0
        added = (segment_rank(gains, sets) == 0) & is_open[sets.layout.ids] & gains.isfinite()
        if not bool(added.any()):
            break
        picks = picks | added
    return sets.with_values(picks)


def local_search(bound: BoundSetFunction, start: Sets, *, keep_size: bool) -> Sets:
    """Improve a subset until no single move helps.

    With `keep_size` a move is a swap: it removes the item with the smallest loss, then adds the item with the largest
    gain. Otherwise it adds or removes one item. The 2, 4, 8, ... most promising moves are also tried together, so that
    large sets take few rounds.

    Args:
        bound: F, bound to the sets.
        start: The subsets to improve, a `Sets` of booleans.
        keep_size: Whether the number of chosen items stays the same.

    Returns:
        The improved subsets.

    Examples:
        >>> import setgrad as sg
        >>> sets = sg.Sets.from_list([[[1.0], [-1.0], [2.0]]])
        >>> bound = sg.functions.Modular().bind(sets)
        >>> local_search(bound, sets.with_values(torch.tensor([False, True, False])), keep_size=True).values.tolist()
        [False, False, True]
    """
    sets, moves = bound.sets, _swaps if keep_size else _flips
    counts = [2**k for k in range(max(sets.layout.longest.bit_length(), 1))]
    return _improve(bound, start, lambda picks: moves(bound, picks, counts))


def constrained_search(bound: BoundSetFunction, start: Sets, solve: Callable[[Tensor], Tensor]) -> Sets:
    """Improve a feasible subset by moves to other feasible subsets, until none of the candidates is better.

    Around a subset, F is approximated by the sum of its gains. `solve` maximises that sum exactly, once for each of
    several penalties on items that change: with a high penalty the steps are small and the approximation is good. The
    best candidate by F itself is the next subset.

    Args:
        bound: F, bound to the sets.
        start: A feasible subset of each set.
        solve: Returns the best feasible subsets, booleans `(m, total)`, for scores `(m, total)`.

    Returns:
        The improved subsets.
    """
    sets, ids = bound.sets, bound.sets.layout.ids

    def candidates(picks: Tensor) -> Tensor:
        gains = bound.gains(picks[None])[0]
        stay = torch.where(picks, 1.0, -1.0) * segment_max(gains.abs(), sets, empty=0.0)[ids]
        return solve(gains + torch.tensor(_PENALTIES, dtype=gains.dtype, device=gains.device)[:, None] * stay)

    return _improve(bound, start, candidates)


def _improve(bound: BoundSetFunction, start: Sets, candidates: Callable[[Tensor], Tensor]) -> Sets:
    """Replace each subset by the best candidate until no candidate is better."""
    picks, is_done = start.values.clone(), False
    value = bound.value(picks[None])[0]
    # F increases in every round, so no subset returns and the search ends.
    while not is_done:
        picks, value, is_done = _take_better(bound, picks, value, candidates(picks), bound.sets.layout.ids)
    return bound.sets.with_values(picks)


def _take_better(
    bound: BoundSetFunction, picks: Tensor, value: Tensor, candidates: Tensor, ids: Tensor
) -> tuple[Tensor, Tensor, bool]:
    """Return the best of the candidates `(m, total)` where it is better than the picks, its value, and whether none is.

    `value` `(b,)` is the value of the picks. It is not computed again: beside other subsets it may be rounded
    differently, and a subset would be better than itself for ever.
    """
    best, which = bound.value(candidates).max(0)
    # A difference within rounding is no improvement.
    rounding = max(1e-9, 64 * torch.finfo(value.dtype).eps) if value.is_floating_point() else 0.0
    better = best > value + rounding * value.abs().clamp(min=1)
    chosen = candidates.gather(0, which[ids][None])[0]
    return torch.where(better[ids], chosen, picks), torch.where(better, best, value), not bool(better.any())


def _flips(bound: BoundSetFunction, picks: Tensor, counts: Sequence[int]) -> Tensor:
    """Add or remove the most helpful items, as many as each of `counts`; returns `(m, total)`."""
    gains = bound.gains(picks[None])[0]
    improvement = torch.where(picks, -gains, gains)
    rank, helps = segment_rank(improvement, bound.sets), improvement > 0
    return torch.stack([picks ^ (helps & (rank < count)) for count in counts])


def _swaps(bound: BoundSetFunction, picks: Tensor, counts: Sequence[int]) -> Tensor:
    """Remove the least valuable items, then add as many of the most helpful, for each of `counts`; `(m, total)`."""
    sets = bound.sets
    removal_rank = segment_rank((-bound.gains(picks[None])[0]).masked_fill(~picks, -torch.inf), sets)
    removed = torch.stack([picks & (removal_rank < count) for count in counts])
    smaller = picks & ~removed
    gains = bound.gains(smaller).masked_fill(smaller, -torch.inf)
    counts_removed = segment_sum(removed.T.long(), sets).T[:, sets.layout.ids]
    return smaller | (torch.stack([segment_rank(gain, sets) for gain in gains]) < counts_removed)
