"""Choosing item by item from a large set.

A look at all items costs much, and a path has many steps. So a round looks at all items once, and its path goes over
those with the largest gains. After a number of steps their order may be out of date, and the next round looks at all
items again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from setgrad.functions import BoundSetFunction
from setgrad.sets import Sets

# Sets in memory with more items than this are chosen from in rounds. A round then adds a quarter of the items that are
# chosen already, at least one, from so many items for each, at least the other number.
LARGEST_WHOLE, _QUARTER, _EACH, _CANDIDATES = 2048, 4, 8, 1024
# A set that is read in chunks is looked at less often, because each look encodes it again. A round holds so many items
# for each item that is still wanted, within limits. It adds at most half of them, unless it holds all.
_SHARE, _FEWEST, _MOST = 8, 2**12, 2**16
# Scores fall along a path by at least this much, relative to their size.
STEP = 1e-12


def choose_in_rounds(
    choose: Callable[..., Any],
    bound: BoundSetFunction,
    *,
    size: int,
    cut: float,
    min_size: int,
    start: Tensor,
    excluded: Tensor,
    first: Tensor | None,
    steps: int | None = None,
    margin: float = 0.0,
    exact: Callable[[], BoundSetFunction] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the chosen items and the scores of a path, `(total,)` each; see `choose_item_by_item`.

    If a round holds all items, it is the path over all items.

    Args:
        choose: Chooses item by item from the items of a round.
        bound: F, bound to one set.
        size: Largest number of items of the subset, with those it starts from.
        cut: Items join while the largest gain exceeds this.
        min_size: Number of items that join also below the cut.
        start: Items that are in the subset from the beginning.
        excluded: Items that never join.
        first: The gains at the start, if they are known already.
        steps: Largest number of steps of a round.
        margin: By how much gains may be wrong. It may change the last candidates of a round, which are far from being
            chosen in it.
        exact: Returns F in double precision, for the rounds with a decision that the margin could change.
    """
    picks, level = start.clone(), torch.inf
    scores = torch.full((len(picks),), -torch.inf, dtype=torch.float64, device=picks.device).masked_fill(
        start, torch.inf
    )
    count = int(picks.sum())
    while True:
        gains = bound.gains(picks[None])[0] if first is None else first
        first, closed = None, picks | excluded
        gains = gains.masked_fill(closed, -torch.inf)
        if bound.in_chunks:
            wanted = min(_MOST, max(_FEWEST, _SHARE * (size - count)))
            added = wanted // 2
        else:
            # Whatever the size that is wanted, so that a smaller subset is the beginning of a larger one.
            added = max(1, count // _QUARTER)
            wanted = max(_CANDIDATES, _EACH * added)
        candidates = _largest(gains, wanted, stable=not bound.in_chunks)
        candidates = candidates[gains[candidates] > -torch.inf]
        has_all = len(candidates) == len(closed) - int(closed.sum())
        # Chosen items are among those of the round too, as long as they fit into memory.
        inside = picks.nonzero()[:, 0] if count <= _MOST or not bound.in_chunks else candidates[:0]
        # In the order of the set, which decides between equal gains.
        items = torch.cat([inside, candidates]).sort().values
        most, before = size if has_all else min(size, count + added), count - len(inside)
        options: dict[str, Any] = {
            "sizes": torch.tensor([most - before], device=picks.device),
            "cut": cut,
            "min_size": max(0, min_size - before),
            "start": picks[items],
            "steps": steps,
        }
        path = choose(_among(bound, items, picks), **options, first=gains[items], margin=margin)
        if exact is not None and not bool(path.is_sure):
            path = choose(_among(exact(), items, picks), **options)
        is_open = ~picks[items]
        found = _below(path.scores[is_open], level)
        joined = path.subsets.values[is_open]
        # What was not looked at closely is at most as good as what was.
        scores = torch.where(closed, scores, gains.double().clamp(max=float(found.min()) if len(found) else level))
        scores[items[is_open]] = found
        picks[items[is_open]] = joined
        new = int(joined.sum())
        count, level = count + new, float(found[joined].min()) if new else level
        # A path that ended at the cut is looked at again: other items may be above it now. An item that had to join
        # below the cut ends it.
        if has_all or not new or count >= size or (level <= cut and count >= min_size):
            return picks, scores


def choose_apart(
    choose: Callable[..., Any],
    bound: BoundSetFunction,
    *,
    sizes: Tensor,
    cuts: Tensor,
    min_size: int,
    start: Tensor,
    excluded: Tensor,
    first: Tensor | None,
    margin: float,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return what `choose_item_by_item` does, from each large set by itself and from the others together.

    Args:
        choose: Chooses item by item.
        bound: F, bound to sets in memory, some of which are large.
        sizes: Largest number of items of each subset, `(b,)`.
        cuts: The cut of each set, `(b,)`.
        min_size: Number of items that join also below the cut.
        start: Items that are in the subset from the beginning.
        excluded: Items that never join.
        first: The gains at the start, if they are known already.
        margin: As in `choose_item_by_item`; of a large set nothing is sure with it.

    Returns:
        The chosen items and their scores, `(total,)` each, and which sets are sure, `(b,)`; None if F cannot be
        restricted to some items.
    """
    sets, device = bound.sets, bound.sets.device
    lengths = sets.layout.host_lengths
    places = sets.with_values(torch.arange(sets.layout.total, device=device))
    picks, scores = start.clone(), torch.zeros(sets.layout.total, dtype=torch.float64, device=device)
    is_sure = torch.ones(len(sets), dtype=torch.bool, device=device)
    small = np.flatnonzero(lengths <= LARGEST_WHOLE)
    for rows in [*([small] if len(small) else []), *np.flatnonzero(lengths > LARGEST_WHOLE)[:, None]]:
        items, numbers = places.take(rows), torch.as_tensor(rows, device=device)
        part = bound if len(sets) == 1 else bound.restrict(numbers, items)
        if part is None or part.restrict(numbers[:0], items[:0]) is None:
            return None
        its = items.values
        start_of, excluded_of, first_of = start[its], excluded[its], None if first is None else first[its]
        if len(rows) == 1 and lengths[rows[0]] > LARGEST_WHOLE:
            size, cut = int(sizes[rows[0]]), float(cuts[rows[0]])
            picks[its], scores[its] = choose_in_rounds(
                choose,
                part,
                size=size,
                cut=cut,
                min_size=min_size,
                start=start_of,
                excluded=excluded_of,
                first=first_of,
            )
            is_sure[numbers] = margin == 0
            continue
        path = choose(
            part,
            sizes=sizes[numbers],
            cut=cuts[numbers],
            min_size=min_size,
            start=start_of,
            excluded=excluded_of,
            first=first_of,
            margin=margin,
        )
        picks[its], scores[its], is_sure[numbers] = path.subsets.values, path.scores, path.is_sure
    return picks, scores, is_sure


def _largest(gains: Tensor, count: int, *, stable: bool) -> Tensor:
    """Return the items with the largest gains; of equal ones the first, if the order is stable."""
    if stable:
        return gains.sort(descending=True, stable=True).indices[:count]
    return gains.topk(min(count, len(gains))).indices


def _among(bound: BoundSetFunction, items: Tensor, chosen: Tensor) -> BoundSetFunction:
    """Return the function of subsets of some items of its one set."""
    if bound.in_chunks:
        return bound.among(items, chosen).prepared()
    part = bound.restrict(torch.zeros(1, dtype=torch.long, device=items.device), Sets.from_lengths(items, [len(items)]))
    assert part is not None
    return part


def _below(scores: Tensor, level: float) -> Tensor:
    """Return scores that are all below a level, in the same order."""
    if level == torch.inf or not len(scores):
        return scores
    rank = torch.empty_like(scores).scatter(
        0, scores.argsort(descending=True, stable=True), torch.arange(1.0, len(scores) + 1).to(scores)
    )
    return torch.minimum(scores, level - rank * STEP * max(1.0, abs(level)))
