"""Choosing item by item on F, for all sets of a batch at once.

A step evaluates the gains at the subset so far and adds the item with the largest one. The first 32 items of a set are
added one by one. After that a step adds several, about 3 % of those already chosen, so that a large subset takes few
steps. The path of a set does not depend on how many items are wanted: a smaller subset is the beginning of a larger
one. From a set of more than 2,048 items it is taken in rounds (`_rounds.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from setgrad.errors import DataError
from setgrad.functions import BoundSetFunction, NoiseSource
from setgrad.selector._rounds import LARGEST_WHOLE, STEP, choose_apart, choose_in_rounds
from setgrad.sets import Sets, segment_max, segment_rank, segment_sum

# A step adds one item for every so many that are chosen already, at least one.
_BLOCK = 32


@final
@dataclass(frozen=True, eq=False)
class Path:
    """The order in which items join, as a score of each item.

    Attributes:
        subsets: The items that joined, and those that the path started from.
        scores: For each item `(total,)`, in float64, the smallest gain on the path up to it. Scores fall along the path
            and are lower still for items that did not join, so the items with the best scores are the beginning of the
            path. Items that it started from have infinity, and items that may not join have minus infinity.
        is_sure: For each set `(b,)`, whether gains that differ by less than the margin would give the same subset.
    """

    subsets: Sets
    scores: Tensor
    is_sure: Tensor


def choose_item_by_item(
    bound: BoundSetFunction,
    *,
    sizes: Tensor | None = None,
    cut: Tensor | float | None = None,
    min_size: int = 0,
    start: Tensor | None = None,
    excluded: Tensor | None = None,
    first: Tensor | None = None,
    steps: int | None = None,
    margin: float = 0.0,
) -> Path:
    """Add the items with the largest gains until a subset has its size, or no gain exceeds the cut.

    Args:
        bound: F, bound to the sets.
        sizes: Largest number of items of each subset `(b,)`, with those it starts from; None for all.
        cut: Items join while the largest gain exceeds this, one number or one for each set; None for 0 without sizes,
            and for no cut with them.
        min_size: Number of items that join also below the cut.
        start: Items that are in the subset from the beginning, `(total,)`.
        excluded: Items that never join, `(total,)`. An item with a gain of minus infinity does not join either.
        first: The gains at the start, `(total,)`, if they are known already.
        steps: Largest number of steps, each of which then adds several items; None for a step for each item. A smaller
            subset is then no longer the beginning of a larger one.
        margin: By how much gains may be wrong, relative to the largest one of their set.

    Returns:
        The path of each set. Of a set of more than 2,048 items, without `steps`, and of a function with `in_chunks` it
        is taken in rounds (`choose_in_rounds`). The latter is always sure: its one set is in no batch with others.

    Raises:
        DataError: If a gain is NaN or infinity.

    Examples:
        >>> import setgrad as sg
        >>> bound = sg.functions.Modular().bind(sg.Sets.from_list([[[1.0], [-1.0], [2.0]]]))
        >>> choose_item_by_item(bound).subsets.values.tolist()
        [True, False, True]
        >>> choose_item_by_item(bound, sizes=torch.tensor([1])).scores.tolist()
        [1.0, -1.0, 2.0]
    """
    sets, device = bound.sets, bound.sets.device
    nothing = torch.zeros(sets.layout.total, dtype=torch.bool, device=device)
    start, excluded = (nothing if part is None else part for part in (start, excluded))
    if cut is None:
        cut = 0.0 if sizes is None else -torch.inf
    cuts = torch.as_tensor(cut, dtype=torch.float64, device=device).expand(len(sets))
    sizes = sets.lengths if sizes is None else sizes
    if bound.in_chunks:
        subsets, scores = choose_in_rounds(
            choose_from_all,
            bound,
            size=int(sizes[0]),
            cut=float(cuts[0]),
            min_size=min_size,
            start=start,
            excluded=excluded,
            first=first,
            steps=steps,
        )
        return Path(sets.with_values(subsets), scores, torch.ones(1, dtype=torch.bool, device=device))
    known: dict[str, Any] = {"min_size": min_size, "start": start, "excluded": excluded, "first": first}
    if steps is None and sets.layout.longest > LARGEST_WHOLE:
        found = choose_apart(choose_from_all, bound, sizes=sizes, cuts=cuts, **known, margin=margin)
        if found is not None:
            return Path(sets.with_values(found[0]), *found[1:])
    return choose_from_all(bound, sizes=sizes, cut=cuts, **known, steps=steps, margin=margin)


def choose_from_all(
    bound: BoundSetFunction,
    *,
    sizes: Tensor,
    cut: Tensor | float,
    min_size: int,
    start: Tensor,
    excluded: Tensor | None = None,
    first: Tensor | None = None,
    steps: int | None = None,
    margin: float = 0.0,
) -> Path:
    """Return the path over all items of each set; the arguments are those of `choose_item_by_item`."""
    whole, device = bound.sets, bound.sets.device
    picks, scores = start.clone(), torch.where(start, torch.inf, -torch.inf).double()
    is_sure = torch.ones(len(whole), dtype=torch.bool, device=device)
    # The sets that still grow, where their items are, and what is known of both. Finished sets leave the batch when
    # they are half of it.
    rows, items = torch.arange(len(whole), device=device), torch.arange(whole.layout.total, device=device)
    chosen, closed, own_scores = start, start if excluded is None else start | excluded, scores
    level = torch.full((len(whole),), torch.inf, dtype=torch.float64, device=device)
    cuts = torch.as_tensor(cut, dtype=torch.float64, device=device).expand(len(whole))
    count, clear = segment_sum(start, whole), torch.ones_like(is_sure)
    least = torch.ones_like(sizes)
    if steps is not None:
        least = (-((count - sizes) // steps)).clamp(min=1)
    while len(items):
        sets, ids = bound.sets, bound.sets.layout.ids
        gains = bound.gains(chosen[None])[0] if first is None else first
        gains, first = gains.double().masked_fill(closed, -torch.inf), None
        check_gains(gains, ids, rows)
        rank = segment_rank(gains, sets)
        block = (count // _BLOCK).maximum(least).minimum(sizes - count)
        joins = gains.isfinite() & (rank < block[ids])
        step = STEP * torch.where(level.isfinite(), level.abs(), 0.0).clamp(min=1.0)
        reached = torch.minimum(gains, level[ids] - (rank + 1) * step[ids])
        above = reached - cuts[ids]
        if margin:
            clear = clear & _is_clear(gains, above, joins, sets, margin)
        joins &= (above > 0) | (rank < (min_size - count)[ids])
        own_scores = torch.where(closed, own_scores, reached)
        level = level.minimum(-segment_max(torch.where(joins, -reached, -torch.inf), sets))
        chosen, joined = chosen | joins, segment_sum(joins, sets)
        count = count + joined
        grows = (joined > 0) & (count < sizes)
        # A finished set that is still in the batch stays as it is, as it does alone.
        closed = closed | joins | ~grows[ids]
        remaining = grows.nonzero()[:, 0]
        part = None
        if 0 < 2 * len(remaining) <= len(rows):
            positions = sets.with_values(torch.arange(sets.layout.total, device=device)).take(remaining)
            part = bound.restrict(remaining, positions)
        if part is not None or not len(remaining):
            picks[items], scores[items], is_sure[rows] = chosen, own_scores, clear
        if not len(remaining):
            break
        if part is not None:
            bound, rows, items = part, rows[remaining], items[positions.values]
            chosen, closed, own_scores = (x[positions.values] for x in (chosen, closed, own_scores))
            level, cuts, count, clear, least, sizes = (x[remaining] for x in (level, cuts, count, clear, least, sizes))
    return Path(whole.with_values(picks), scores, is_sure)


def _is_clear(gains: Tensor, above: Tensor, joins: Tensor, sets: Sets, margin: float) -> Tensor:
    """Return for each set `(b,)` whether the items that may join are the same for gains that differ a little.

    Args:
        gains: The gains; minus infinity for items that may not join.
        above: By how much the scores of the items are above the cut.
        joins: The items with the largest gains, which join if they are above the cut.
        sets: The sets.
        margin: As in `choose_item_by_item`.
    """
    # One column for each maximum.
    parts = torch.stack(
        [
            torch.where(gains.isfinite(), gains.abs(), 1.0),
            torch.where(joins, -gains, -torch.inf),
            torch.where(joins, -torch.inf, gains),
            torch.where(joins, -above.abs(), -torch.inf),
        ],
        1,
    )
    largest, worst, best_other, nearest = segment_max(parts, sets).unbind(1)
    worst, nearest, slack = -worst, -nearest, margin * largest.clamp(min=1.0)
    return ~(worst - best_other < slack) & (nearest > slack)


def path_steps(size: int) -> int:
    """Return about how many steps a path to a subset of this size takes.

    Examples:
        >>> path_steps(20), path_steps(64), path_steps(640)
        (20, 64, 146)
    """
    return min(size, _BLOCK) + math.ceil(sum(_BLOCK / block for block in range(1, size // _BLOCK)))


def draw_item_by_item(
    bound: BoundSetFunction, noise: Callable[[int], NoiseSource], start: Tensor, excluded: Tensor, stop_logit: float
) -> Tensor:
    """Draw subsets: the next item, or the end, with probabilities proportional to exp(gain) and exp(stop_logit).

    Args:
        bound: F, bound to the sets.
        noise: Returns the source of the random numbers of a step.
        start: Items that are in the subset from the beginning, `(n, total)`, one row for each draw.
        excluded: Items that never join, `(total,)`.
        stop_logit: The logit of the end.

    Returns:
        The drawn subsets, booleans `(n, total)`.

    Raises:
        DataError: If a gain is NaN or infinity.

    Examples:
        >>> import setgrad as sg
        >>> from setgrad.functions import FreshNoise
        >>> sets = sg.Sets.from_list([[[50.0], [-50.0], [50.0]]])
        >>> bound, nothing = sg.functions.Modular().bind(sets), torch.zeros(2, 3, dtype=torch.bool)
        >>> draw_item_by_item(bound, FreshNoise, nothing, nothing[0], 0.0).tolist()
        [[True, False, True], [True, False, True]]
    """
    sets, ids = bound.sets, bound.sets.layout.ids
    picks, is_open = start.clone(), torch.ones(len(start), len(sets), dtype=torch.bool, device=sets.device)
    for number in range(sets.layout.longest):
        gains = bound.gains(picks).double().masked_fill(picks | excluded, -torch.inf)
        check_gains(gains, ids)
        uniform = noise(number).uniform(sets.layout, 2 * len(picks)).double().clamp(2**-54, 1 - 2**-54)
        to_join, to_stop = uniform.chunk(2)
        # The fractional part of a sum of independent uniform numbers is uniform: one number for each set.
        stop = stop_logit + _gumbel(segment_sum(to_stop.T, sets).T.frac().clamp(2**-54, 1 - 2**-54))
        keys = gains + _gumbel(to_join)
        is_open &= stop < segment_max(keys.T, sets).T
        if not bool(is_open.any()):
            break
        picks = picks | (is_best(keys, sets) & is_open[:, ids])
    return picks


def complete_each(bound: BoundSetFunction, firsts: Tensor, sizes: Tensor, excluded: Tensor) -> Tensor:
    """Complete several begun subsets of each set, item by item.

    Args:
        bound: F, bound to the sets.
        firsts: The begun subsets, `(m, total)`.
        sizes: Number of items of each subset, `(b,)`.
        excluded: Items that never join, `(total,)`.

    Returns:
        The subsets `(m, total)`.
    """
    sets, ids = bound.sets, bound.sets.layout.ids
    picks = firsts.clone()
    for _ in range(int(sizes.max()) if len(sizes) else 0):
        is_open = sizes > segment_sum(picks.T, sets).T
        if not bool(is_open.any()):
            break
        gains = bound.gains(picks).double().masked_fill(picks | excluded, -torch.inf)
        check_gains(gains, ids)
        is_open &= segment_max(gains.T, sets).T.isfinite()
        picks = picks | (is_best(gains, sets) & is_open[:, ids])
    return picks


def is_best(keys: Tensor, sets: Sets) -> Tensor:
    """Return whether each item has the largest of the keys `(m, total)` of its set; the first one of equals."""
    ids, positions = sets.layout.ids, sets.layout.positions
    ties = keys == segment_max(keys.T, sets).T[:, ids]
    first = -segment_max(torch.where(ties, -positions, -sets.layout.total).T, sets, empty=0).T
    return positions == first[:, ids]


def _gumbel(uniform: Tensor) -> Tensor:
    return -(-uniform.log()).log()


def check_gains(gains: Tensor, ids: Tensor, rows: Tensor | None = None) -> None:
    """Raise a DataError that names the set if a gain is NaN or infinity.

    Args:
        gains: Gains of items, `(..., n)`; minus infinity is allowed.
        ids: The sets of the items, `(n,)`.
        rows: The numbers of these sets; None if they are numbered so.
    """
    # The largest of several numbers is NaN if one of them is.
    if not gains.numel() or float(gains.detach().max()) < math.inf:
        return
    number = ids.expand_as(gains)[gains.isnan() | (gains == torch.inf)][0]
    raise DataError(
        f"the gain of an item of set {int(number if rows is None else rows[number])} is not finite; look for features "
        "far beyond those that the selector was fitted on"
    )
