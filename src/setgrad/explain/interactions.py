"""Which items go together: how much more two items are worth together than one by one.

A positive interaction means complements: each makes the other more welcome. A negative one means substitutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import OptionError, parameter
from setgrad.explain._batches import parts_of, sets_at_once, value_of_rows
from setgrad.explain.gains import one_row_each, rank_within
from setgrad.explain.shapley import EXACT, Bind, read_players, subset_rows
from setgrad.functions import BoundSetFunction
from setgrad.functions._set_function import AnySetFunction, as_set_function
from setgrad.sets import Sets, as_sets, as_subsets, segment_sum

# Entries of the masks, one for each item that is asked about, that a batch of sets builds.
_ENTRIES = 2**22


@final
@dataclass(frozen=True, eq=False)
class PairValues:
    """A number for each pair of items of a set.

    Attributes:
        first: Row of one item among all items of the sets, `(pairs,)`.
        second: Row of the other, which comes later in the set.
        values: The numbers, in float64.
    """

    first: Tensor
    second: Tensor
    values: Tensor


def second_differences(function: AnySetFunction, sets: Any, subsets: Any, items: Any = None) -> PairValues:
    """Return the interaction of pairs of items at one subset of each set.

    It is F(S, i, j) - F(S, i) - F(S, j) + F(S), where S is the subset without both items: by how much the gain of one
    rises when the other joins.

    Args:
        function: F, such as `SubsetSelector.function_`.
        sets: The sets.
        subsets: The subsets.
        items: The items whose pairs are wanted, masks or index lists; None for all.

    Raises:
        DataError: If sets or subsets cannot be read.
        ShapeError: If they do not fit together.

    Examples:
        >>> import setgrad as sg
        >>> F = sg.functions.FromCallable(lambda items, masks: masks.sum(1).square())
        >>> second_differences(F, [[[1.0], [2.0], [3.0]]], [[0]]).values.tolist()
        [2.0, 2.0, 2.0]
    """
    sets = as_sets(sets)
    return differences_of(
        as_set_function(function).bind, sets, as_subsets(subsets, sets).values, read_players(items, sets)
    )


@torch.no_grad()
def differences_of(bind: Bind, sets: Sets, subsets: Tensor, items: Tensor) -> PairValues:
    """Return the interactions of the pairs of `items` at the subsets, `(total,)` each."""

    def measure(bound: BoundSetFunction, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inside, wanted = subsets[rows].to(bound.sets.device), items[rows].to(bound.sets.device)
        each = one_row_each(wanted, bound.sets)
        places = wanted.nonzero()[:, 0]
        added, taken = inside | each, inside & ~each
        # The generic gains of a function need masks that are not too many at once.
        step = max(1, _ENTRIES // max(1, each.shape[1]))
        table = torch.cat(
            [
                bound.gains(more, places).double() - bound.gains(less, places).double()
                for more, less in zip(added.split(step), taken.split(step), strict=True)
            ]
        )
        return _pairs_of(table, wanted, bound.sets)

    lengths = segment_sum(items, sets).cpu().numpy() * sets.layout.host_lengths
    return _collect(bind, sets, parts_of(np.maximum(lengths, 1), _ENTRIES), measure)


def shapley_interactions(function: AnySetFunction, sets: Any, players: Any = None, *, exact: int = EXACT) -> PairValues:
    """Return the Shapley interaction index of each pair of items: their mean interaction over all subsets.

    A subset counts as often as it comes just before the two in an order in which they join together. All subsets are
    valued, so sets must be small; for larger ones see `second_differences`.

    Args:
        function: F, such as `SubsetSelector.function_`.
        sets: The sets.
        players: The items that take part, masks or index lists; the other items are in no subset. None for all items.
        exact: Largest number of items of a set. Each more doubles the work.

    Raises:
        DataError: If sets or players cannot be read.
        OptionError: If more items of a set take part.
        ShapeError: If the players do not fit the sets.

    Examples:
        >>> import setgrad as sg
        >>> F = sg.functions.FromCallable(lambda items, masks: masks.sum(1).square())
        >>> shapley_interactions(F, [[[1.0], [2.0], [3.0]]]).values.tolist()
        [2.0, 2.0, 2.0]
    """
    sets = as_sets(sets)
    return indices_of(as_set_function(function).bind, sets, read_players(players, sets), exact=exact)


@torch.no_grad()
def indices_of(bind: Bind, sets: Sets, players: Tensor, *, exact: int = EXACT) -> PairValues:
    """Return the Shapley interaction indices of the players `(total,)`; see `shapley_interactions`."""
    counts = segment_sum(players, sets).cpu().numpy()
    if len(counts) and counts.max() > exact:
        number = int(counts.argmax())
        raise OptionError(
            f"set {number} has {counts[number]} items, whose {2 ** int(counts[number])} subsets are too many to value "
            f"them all; name at most {exact} of them as players, raise {parameter('exact')}, or use second_differences"
        )
    parts = []
    for count in np.unique(counts[counts > 1]).tolist():
        alike = np.flatnonzero(counts == count)
        weights = _weights(count)

        def measure(
            bound: BoundSetFunction, rows: Tensor, count: int = count, weights: Tensor = weights
        ) -> tuple[Tensor, Tensor, Tensor]:
            wanted = players[rows].to(bound.sets.device)
            values = value_of_rows(bound, subset_rows(bound, wanted, count))
            table = (weights.to(values.device) @ values).view(count, count, -1)
            rank = rank_within(wanted, bound.sets)[wanted]
            return _pairs_of(table[:, rank, bound.sets.layout.ids[wanted]], wanted, bound.sets)

        at_once = sets_at_once(2**count, sets.layout.longest)
        runs = (alike[part] for part in parts_of(np.ones(len(alike), dtype=np.int64), at_once))
        parts.append(_collect(bind, sets, runs, measure))
    if not parts:
        return _collect(bind, sets, iter(()), lambda bound, rows: (rows, rows, rows))
    joined = PairValues(*(torch.cat([getattr(part, name) for part in parts]) for name in ("first", "second", "values")))
    order = np.lexsort((joined.second.numpy(), joined.first.numpy()))
    return PairValues(joined.first[order], joined.second[order], joined.values[order])


def _weights(count: int) -> Tensor:
    """Return the weight of each subset in the index of each pair, `(count * count, 2 ** count)`."""
    numbers, sign = torch.arange(2**count), torch.tensor([-1.0, 1.0], dtype=torch.float64)
    inside = (numbers >> torch.arange(count)[:, None]) & 1
    both = inside[:, None] + inside
    # Of a subset of `size` others, with none, one or both of the pair.
    others = (inside.sum(0) - both).clamp(max=count - 2)
    listed = [1 / ((count - 1) * math.comb(count - 2, size)) for size in range(count - 1)]
    shares = torch.tensor(listed, dtype=torch.float64)
    weights = shares[others.clamp(min=0)] * sign[inside][:, None] * sign[inside]
    return weights.flatten(0, 1)


def _pairs_of(table: Tensor, wanted: Tensor, sets: Sets) -> tuple[Tensor, Tensor, Tensor]:
    """Return the pairs of a table `(most, items)` of the wanted items: the first by its rank, the second by its place.

    Returns:
        First and second item as rows of the sets, and the entries of the table.
    """
    places = wanted.nonzero()[:, 0]
    rank, ids = rank_within(wanted, sets)[places], sets.layout.ids[places]
    counts = segment_sum(wanted, sets)
    starts = counts.cumsum(0) - counts
    row, column = (torch.arange(len(table), device=table.device)[:, None] < rank).nonzero().unbind(1)
    first = places[starts[ids[column]] + row]
    return first, places[column], table[row, column]


def _collect(
    bind: Bind,
    sets: Sets,
    runs: Any,
    measure: Callable[[BoundSetFunction, Tensor], tuple[Tensor, Tensor, Tensor]],
) -> PairValues:
    """Return the pairs of runs of sets, with their items as rows of all sets, in their order."""
    found = [(torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.float64))]
    every = sets.with_values(torch.arange(sets.layout.total, device=sets.device))
    for numbers in runs:
        rows = every.take(numbers).values
        first, second, values = measure(bind(sets.take(numbers)), rows)
        found.append((rows.cpu()[first.cpu()], rows.cpu()[second.cpu()], values.cpu()))
    first, second, values = (torch.cat(part) for part in zip(*found, strict=True))
    order = np.lexsort((second.numpy(), first.numpy()))
    return PairValues(first[order], second[order], values[order])
