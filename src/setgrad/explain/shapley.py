"""Shapley values: how the items of a subset share its value.

The Shapley value of an item is its mean gain, over all orders in which the items can join. The values of all items add
up to the value of all minus that of none. Up to 12 items are enumerated. For more, orders are drawn in pairs: an order
and its reverse, whose errors partly cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from setgrad.errors import OptionError, parameter
from setgrad.explain._batches import parts_of, sets_at_once, value_of_rows
from setgrad.explain.gains import rank_within
from setgrad.functions import BoundSetFunction, ItemNoise
from setgrad.functions._set_function import AnySetFunction, as_set_function
from setgrad.sets import Sets, as_sets, as_subsets, segment_sum
from setgrad.sets._sets import pad

# Enumerating one more item doubles the work; 12 take less than a second.
EXACT = 12
PAIRS = 64
# Ways to bind F: a function from sets to bound functions.
Bind = Callable[[Sets], BoundSetFunction]


@final
@dataclass(frozen=True, eq=False)
class ShapleyValues:
    """Shapley values of items.

    Attributes:
        values: The value of each item; NaN for items that do not take part.
        errors: The standard error of each value; 0 where all orders were counted.
    """

    values: Sets
    errors: Sets


def shapley_values(
    function: AnySetFunction,
    sets: Any,
    players: Any = None,
    *,
    exact: int = EXACT,
    pairs: int = PAIRS,
    random_state: int = 0,
) -> ShapleyValues:
    """Return the Shapley value of each item under a set function.

    Args:
        function: F, such as `SubsetSelector.function_`.
        sets: The sets.
        players: The items that take part, masks or index lists; the other items are in no subset. None for all items.
        exact: Largest number of items of a set whose subsets are all valued. Each more doubles the work.
        pairs: Pairs of an order and its reverse that are drawn for larger sets.
        random_state: Seed of the draws. They follow from the items, so the other sets make no difference.

    Raises:
        DataError: If sets or players cannot be read.
        OptionError: If a number is out of its range.
        ShapeError: If the players do not fit the sets.

    Examples:
        >>> import setgrad as sg
        >>> F = sg.functions.FromCallable(lambda items, masks: (masks * items[:, 0]).sum(1).sqrt())
        >>> found = shapley_values(F, [[[4.0], [4.0], [8.0]]])
        >>> round(float(found.values.values.sum()), 4), bool(found.values.values[0] == found.values.values[1])
        (4.0, True)
    """
    sets = as_sets(sets)
    bound = as_set_function(function).bind
    return shapley_of(bound, sets, read_players(players, sets), exact=exact, pairs=pairs, random_state=random_state)


def read_players(players: Any, sets: Sets) -> Tensor:
    """Return whether each item takes part, `(total,)`; None for all."""
    if players is None:
        return torch.ones(sets.layout.total, dtype=torch.bool, device=sets.device)
    return as_subsets(players, sets).values


@torch.no_grad()
def shapley_of(
    bind: Bind, sets: Sets, players: Tensor, *, exact: int = EXACT, pairs: int = PAIRS, random_state: int = 0
) -> ShapleyValues:
    """Return the Shapley values of the players `(total,)`; arguments and errors are those of `shapley_values`."""
    _check_count("exact", exact, 0)
    _check_count("pairs", pairs, 2)
    values = torch.full((sets.layout.total,), torch.nan, dtype=torch.float64, device=sets.device)
    errors = values.clone()
    counts = segment_sum(players, sets).cpu()
    for count in counts.unique().tolist():
        alike = (counts == count).nonzero()[:, 0].numpy()
        is_exact = count <= exact
        subsets = 2**count if is_exact else 2 * (count + 1)
        at_once = sets_at_once(subsets, sets.layout.longest)
        for rows in parts_of(torch.ones(len(alike), dtype=torch.long).numpy(), at_once):
            part = sets.take(alike[rows])
            items = sets.with_values(torch.arange(len(players), device=sets.device)).take(alike[rows]).values
            bound = bind(part)
            if is_exact:
                found, error = _enumerate(bound, players[items], count), None
            else:
                found, error = _draw(bound, players[items], count, part, pairs, random_state)
            values[items] = found.to(values.device)
            errors[items] = (found * 0 if error is None else error).to(values.device)
    return ShapleyValues(sets.with_values(values), sets.with_values(errors))


def subset_rows(bound: BoundSetFunction, players: Tensor, count: int) -> Tensor:
    """Return all subsets of the players as masks `(2 ** count, total)`; bit k of a row number is the k-th player."""
    numbers = torch.arange(2**count, device=bound.sets.device)
    rank = rank_within(players, bound.sets).clamp(max=max(0, count - 1))
    return ((numbers[:, None] >> rank) & 1).bool() & players


def _enumerate(bound: BoundSetFunction, players: Tensor, count: int) -> Tensor:
    players = players.to(bound.sets.device)
    if not count:
        return torch.full(players.shape, torch.nan, dtype=torch.float64)
    values = value_of_rows(bound, subset_rows(bound, players, count))
    shares = _weights(count).to(values.device) @ values
    rank = rank_within(players, bound.sets).clamp(max=count - 1)
    return torch.where(players, shares[rank, bound.sets.layout.ids], torch.nan).cpu()


def _weights(count: int) -> Tensor:
    """Return the weight of each subset in the Shapley value of each item, `(count, 2 ** count)`."""
    numbers = torch.arange(2**count)
    inside = ((numbers >> torch.arange(count)[:, None]) & 1).bool()
    sizes = inside.sum(0)
    # The share of the orders in which a subset of this size, without the item, comes just before it.
    shares = torch.tensor([1 / (count * math.comb(count - 1, size)) for size in range(count)], dtype=torch.float64)
    return torch.where(inside, shares[(sizes - 1).clamp(min=0)], -shares[sizes.clamp(max=count - 1)])


def _draw(
    bound: BoundSetFunction, players: Tensor, count: int, sets: Sets, pairs: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Return the mean gains over drawn orders, and their standard errors."""
    layout = bound.sets.layout
    players = players.to(bound.sets.device)
    noise = ItemNoise(sets.to(bound.sets.device), seed)
    keys = torch.where(players, noise.uniform(layout, pairs).double(), torch.inf)
    order = pad(keys.T, bound.sets).masked_fill(~layout.mask[..., None], torch.inf).argsort(dim=1, stable=True)
    ranks = order.argsort(dim=1).flatten(0, 1)[layout.padded_rows].T
    sums, squares = (torch.zeros(layout.total, dtype=torch.float64, device=players.device) for _ in range(2))
    for rank in ranks:
        both = torch.stack([rank, count - 1 - rank])
        # Row t of an order holds its first t items.
        masks = (both[:, None] < torch.arange(count + 1, device=rank.device)[:, None]) & players
        values = value_of_rows(bound, masks.flatten(0, 1)).view(2, count + 1, -1)
        place = both.clamp(0, count - 1)
        which = torch.arange(2, device=rank.device)[:, None]
        gains = values[which, place + 1, layout.ids] - values[which, place, layout.ids]
        mean = gains.mean(0)
        sums, squares = sums + mean, squares + mean.square()
    mean = sums / pairs
    variance = (squares / pairs - mean.square()).clamp(min=0) * pairs / (pairs - 1)
    error = (variance / pairs).sqrt()
    missing = ~players
    # Equal items have equal values.
    mean = noise.symmetrise(mean)
    return mean.masked_fill(missing, torch.nan).cpu(), error.masked_fill(missing, torch.nan).cpu()


def _check_count(name: str, number: Any, least: int) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise OptionError(f"{parameter(name)} must be a whole number of at least {least}, not {number!r}")
