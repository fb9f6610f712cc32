"""Search for a good subset on the set function itself, for all sets of a batch at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor

from setgrad.functions import BoundSetFunction
from setgrad.inference.partial import log_total
from setgrad.selector.item_by_item import check_gains, choose_item_by_item, complete_each
from setgrad.sets import Sets, segment_matmul, segment_max, segment_rank, segment_sum

SEARCHES = ("greedy", "local", "completion")
# First items from which a subset is completed.
_FIRSTS = 32
# Penalties for changing an item, as a share of the largest gain.
_PENALTIES = (0.0, *(2.0**-k for k in range(10)))


def greedy(bound: BoundSetFunction, sizes: Tensor | None = None) -> Sets:
    """Build a subset item by item; each step adds the item with the largest gain (see `item_by_item`).

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
    return choose_item_by_item(bound, sizes=None if sizes is None else sizes.minimum(bound.sets.lengths)).subsets


def best_completion(bound: BoundSetFunction, sizes: Tensor, start: Tensor, excluded: Tensor) -> Sets:
    """Complete the subset from each of the best first items, and return the one that holds together best.

    Where one of several subsets is right, no item alone is likely, but each item of the right subset is, given the
    others. So a completion counts by its pseudo-likelihood: the product over its items of the probability that it is
    the next one after all others.

    Args:
        bound: F, bound to the sets.
        sizes: Number of items of each subset, `(b,)`.
        start: Items that are in the subset from the beginning, `(total,)`.
        excluded: Items that never join, `(total,)`.

    Returns:
        The chosen subsets, a `Sets` of booleans.

    Raises:
        DataError: If a gain is NaN or infinity.

    Examples:
        >>> import setgrad as sg
        >>> pairs = sg.functions.FromCallable(lambda items, masks: -(masks * (items[:, 0] - 1)).sum(1).square())
        >>> bound = pairs.bind(sg.Sets.from_list([[[3.0], [-1.0], [1.4]]]))
        >>> nothing = torch.zeros(3, dtype=torch.bool)
        >>> best_completion(bound, torch.tensor([2]), nothing, nothing).values.tolist()
        [True, True, False]
    """
    sets, closed = bound.sets, start | excluded
    sizes = sizes.to(sets.device)
    gains = bound.gains(start[None])[0].masked_fill(closed, -torch.inf)
    check_gains(gains, sets.layout.ids)
    rank, count = segment_rank(gains, sets), segment_sum(start, sets)
    is_open = (count < sizes)[sets.layout.ids] & gains.isfinite()
    firsts = torch.arange(max(1, min(_FIRSTS, sets.layout.longest)), device=sets.device)[:, None]
    begun = start | ((rank == firsts) & is_open)
    subsets = complete_each(bound, begun, sizes, excluded)
    # A row without a first item is not a completion, unless the subset was complete before.
    has_first = torch.where(count < sizes, count, -1) < segment_sum(begun.T, sets).T
    likelihood = _pseudo_likelihood(bound, subsets, start, excluded)
    best = likelihood.masked_fill(~has_first, -torch.inf).argmax(0)
    return sets.with_values(subsets.gather(0, best[sets.layout.ids][None])[0])


def _pseudo_likelihood(bound: BoundSetFunction, subsets: Tensor, fixed: Tensor, excluded: Tensor) -> Tensor:
    """Return the log-probability of each item of a subset given the others, summed over the items, `(m, b)`.

    Items that are fixed are not counted, and the probabilities are among the items that are not excluded.
    """
    sets = bound.sets
    movable = subsets & ~fixed
    total = torch.zeros(len(subsets), len(sets), dtype=torch.float64, device=sets.device)
    if not movable.any():
        return total
    # The number of each item among those of its subset, from 0.
    before = movable.cumsum(1) - movable.long()
    number = before - before[:, sets.layout.offsets[sets.layout.ids]]
    for k in range(int(segment_sum(movable.T, sets).max())):
        left_out = movable & (number == k)
        others = subsets & ~left_out
        gains = bound.gains(others).double()
        own = segment_sum(torch.where(left_out, gains, 0.0).T, sets).T
        has_item = segment_sum(left_out.T, sets).T > 0
        total += torch.where(has_item, own - log_total(gains, others | excluded, sets, where=has_item), 0.0)
    return total


@final
class Priced(BoundSetFunction):
    """F less a price for each chosen item.

    Args:
        function: F, bound to its sets.
        price: The price of each item, `(total,)`.
    """

    def __init__(self, function: BoundSetFunction, price: Tensor) -> None:
        self.function, self.price, self.sets = function, price, function.sets

    def value(self, masks: Tensor) -> Tensor:
        """Return F less the prices of the chosen items, `(m, b)`."""
        return self.function.value(masks) - segment_matmul(masks, self.price[:, None], self.sets).squeeze(2)

    def gains(self, masks: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Return the gains less the prices, `(m, total)` or `(m, len(coordinates))`."""
        return self.function.gains(masks, coordinates) - (
            self.price if coordinates is None else self.price[coordinates]
        )


def local_search(bound: BoundSetFunction, start: Sets, *, keep_size: bool, fixed: Tensor | None = None) -> Sets:
    """Improve a subset until no single move helps.

    With `keep_size` a move is a swap: it removes the item with the smallest loss, then adds the item with the largest
    gain. Otherwise it adds or removes one item. The 2, 4, 8, ... most promising moves are also tried together, so that
    large sets take few rounds.

    Args:
        bound: F, bound to the sets.
        start: The subsets to improve, a `Sets` of booleans.
        keep_size: Whether the number of chosen items stays the same.
        fixed: Items that no move changes, `(total,)`; None for none.

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
    still = torch.zeros_like(start.values) if fixed is None else fixed
    return _improve(bound, start, lambda picks: moves(bound, picks, counts, still))


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


def _flips(bound: BoundSetFunction, picks: Tensor, counts: Sequence[int], fixed: Tensor) -> Tensor:
    """Add or remove the most helpful items, as many as each of `counts`; returns `(m, total)`."""
    gains = bound.gains(picks[None])[0]
    improvement = torch.where(picks, -gains, gains).masked_fill(fixed, -torch.inf)
    rank, helps = segment_rank(improvement, bound.sets), improvement > 0
    return torch.stack([picks ^ (helps & (rank < count)) for count in counts])


def _swaps(bound: BoundSetFunction, picks: Tensor, counts: Sequence[int], fixed: Tensor) -> Tensor:
    """Remove the least valuable items, then add as many of the most helpful, for each of `counts`; `(m, total)`."""
    sets, movable = bound.sets, picks & ~fixed
    removal_rank = segment_rank((-bound.gains(picks[None])[0]).masked_fill(~movable, -torch.inf), sets)
    removed = torch.stack([movable & (removal_rank < count) for count in counts])
    smaller = picks & ~removed
    gains = bound.gains(smaller).masked_fill(smaller | fixed, -torch.inf)
    counts_removed = segment_sum(removed.T.long(), sets).T[:, sets.layout.ids]
    return smaller | (torch.stack([segment_rank(gain, sets) for gain in gains]) < counts_removed)
