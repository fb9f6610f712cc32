"""Choosing item by item from a set that does not fit into memory.

A look at all items costs a pass over the set, and a path has hundreds of steps. So a round looks at all items once, and
its path goes over those with the largest gains, which are held in memory. After a number of steps their order may be
out of date, and the next round looks at all items again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from setgrad.functions import BoundSetFunction

# Items that a round holds in memory: so many for each item that is still wanted, within limits. It adds at most half of
# them, unless it holds all.
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
    steps: int | None,
) -> tuple[Tensor, Tensor]:
    """Return the chosen items and the scores of a path, `(total,)` each; see `choose_item_by_item`.

    With at most 4,096 items it is the path over all items.

    Args:
        choose: Chooses item by item from items in memory.
        bound: F, bound to one set.
        size: Largest number of items of the subset, with those it starts from.
        cut: Items join while the largest gain exceeds this.
        min_size: Number of items that join also below the cut.
        start: Items that are in the subset from the beginning.
        excluded: Items that never join.
        first: The gains at the start, if they are known already.
        steps: Largest number of steps of a round.
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
        wanted = min(_MOST, max(_FEWEST, _SHARE * (size - count)))
        candidates = gains.topk(min(wanted, len(gains))).indices
        candidates = candidates[gains[candidates] > -torch.inf]
        has_all = len(candidates) == len(closed) - int(closed.sum())
        # Chosen items are among those in memory too, as long as they are few.
        inside = picks.nonzero()[:, 0] if count <= _MOST else candidates[:0]
        # In the order of the set, which decides between equal gains.
        items = torch.cat([inside, candidates]).sort().values
        most, before = size if has_all else min(size, count + wanted // 2), count - len(inside)
        path = choose(
            bound.among(items, picks).prepared(),
            sizes=torch.tensor([most - before], device=picks.device),
            cut=cut,
            min_size=max(0, min_size - before),
            start=picks[items],
            first=gains[items],
            steps=steps,
        )
        is_open = ~picks[items]
        found = _below(path.scores[is_open], level)
        joined = path.subsets.values[is_open]
        # What was not looked at closely is at most as good as what was.
        scores = torch.where(closed, scores, gains.double().clamp(max=float(found.min()) if len(found) else level))
        scores[items[is_open]] = found
        picks[items[is_open]] = joined
        added = int(joined.sum())
        count, level = count + added, float(found[joined].min()) if added else level
        # A path that ended at the cut is looked at again: other items may be above it now.
        if has_all or not added or count >= size:
            return picks, scores


def _below(scores: Tensor, level: float) -> Tensor:
    """Return scores that are all below a level, in the same order."""
    if level == torch.inf or not len(scores):
        return scores
    rank = torch.empty_like(scores).scatter(
        0, scores.argsort(descending=True, stable=True), torch.arange(1.0, len(scores) + 1).to(scores)
    )
    return torch.minimum(scores, level - rank * STEP * max(1.0, abs(level)))
