"""The value of a subset as a sum of gains: the items join one by one, each time the one with the largest gain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from setgrad.explain._batches import parts_of
from setgrad.explain.shapley import Bind
from setgrad.functions._set_function import AnySetFunction, as_set_function
from setgrad.sets import Sets, as_sets, as_subsets, segment_rank, segment_sum

# Items of the sets that are evaluated at once.
_ITEMS = 2**14


@final
@dataclass(frozen=True, eq=False)
class GainSteps:
    """The steps from the empty subset to a subset.

    Attributes:
        steps: For each item the step in which it joins, counted from 1; 0 for items that are not in the subset.
        gains: Its gain in this step, in float64; NaN for items that are not in the subset.
    """

    steps: Sets
    gains: Sets


def gain_steps(function: AnySetFunction, sets: Any, subsets: Any) -> GainSteps:
    """Return the steps from the empty subset to a subset of each set: the bars of a waterfall.

    In each step the item of the subset with the largest gain joins. The gains add up to F of the subset minus F of the
    empty one.

    Args:
        function: F, such as `SubsetSelector.function_`.
        sets: The sets.
        subsets: The subsets.

    Raises:
        DataError: If sets or subsets cannot be read.
        ShapeError: If they do not fit together.

    Examples:
        >>> import setgrad as sg
        >>> F = sg.functions.FromCallable(lambda items, masks: (masks * items[:, 0]).sum(1).sqrt())
        >>> found = gain_steps(F, [[[7.0], [9.0], [5.0]]], [[0, 1]])
        >>> found.steps.values.tolist(), found.gains.values.tolist()
        ([2, 1, 0], [1.0, 3.0, nan])
    """
    sets = as_sets(sets)
    return steps_of(as_set_function(function).bind, sets, as_subsets(subsets, sets).values)


@torch.no_grad()
def steps_of(bind: Bind, sets: Sets, subsets: Tensor) -> GainSteps:
    """Return the steps to the subsets `(total,)`; see `gain_steps`."""
    steps = torch.zeros(sets.layout.total, dtype=torch.long, device=sets.device)
    gains = torch.full((sets.layout.total,), torch.nan, dtype=torch.float64, device=sets.device)
    offsets = sets.layout.host_offsets
    for rows in parts_of(sets.layout.host_lengths, _ITEMS):
        bound = bind(sets.take(rows))
        items = slice(offsets[rows[0]], offsets[rows[-1] + 1])
        wanted = subsets[items].to(bound.sets.device)
        inside = torch.zeros_like(wanted)
        for step in range(1, int(segment_sum(wanted, bound.sets).max()) + 1):
            found = bound.gains(inside[None])[0].double()
            waiting = wanted & ~inside
            joins = waiting & (segment_rank(torch.where(waiting, found, -torch.inf), bound.sets) == 0)
            places = joins.nonzero()[:, 0]
            steps[items.start + places.to(steps.device)] = step
            gains[items.start + places.to(steps.device)] = found[places].to(steps.device)
            inside = inside | joins
    return GainSteps(sets.with_values(steps), sets.with_values(gains))
