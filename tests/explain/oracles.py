"""Set functions with known interactions, and explanations of them by enumeration."""

import functools
import itertools
import math

import torch

from setgrad.functions import FromCallable
from setgrad.sets import Sets


def curved(items, masks):
    """Return a value with interactions of all orders; it depends on every feature of the items."""
    taken = masks.double()
    weights = items.double() @ torch.linspace(1, 2, items.shape[1], dtype=torch.float64)
    pairs = torch.sin(weights[:, None] * weights)
    return (taken @ weights).tanh() + torch.einsum("mi,ij,mj->m", taken, pairs, taken) + (taken.sum(1) * 0.7).sin()


CURVED = FromCallable(curved)


def draw_sets(sizes, seed=0, features=3):
    """Return sets of these sizes in double precision."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(sum(sizes), features, generator=generator, dtype=torch.float64)
    return Sets.from_lengths(values, sizes)


def value(function, items, subset):
    """Return F of one subset, a list of positions, of one set."""
    mask = torch.zeros(1, len(items), dtype=torch.bool)
    mask[0, list(subset)] = True
    return float(function.value(Sets.from_list([items]), mask)[0, 0].detach())


def shapley_by_orders(function, items, players):
    """Return the mean gain of each player over all orders."""
    shares = dict.fromkeys(players, 0.0)
    # The orders share their subsets.
    worth = functools.cache(lambda subset: value(function, items, subset))
    for order in itertools.permutations(players):
        for place, player in enumerate(order):
            shares[player] += worth(frozenset(order[: place + 1])) - worth(frozenset(order[:place]))
    return {player: share / math.factorial(len(players)) for player, share in shares.items()}


def second_difference(function, items, subset, one, other):
    """Return F(S, i, j) - F(S, i) - F(S, j) + F(S), with S the subset without both."""
    rest = [item for item in subset if item not in (one, other)]
    parts = [rest, [*rest, one], [*rest, other], [*rest, one, other]]
    none, first, second, both = (value(function, items, part) for part in parts)
    return both - first - second + none


def index_by_orders(function, items, players, one, other):
    """Return the mean interaction of two players over the orders in which they join together, as one."""
    others = [player for player in players if player not in (one, other)]
    total, count = 0.0, 0
    for order in itertools.permutations([*others, "pair"]):
        before = order[: order.index("pair")]
        total += second_difference(function, items, before, one, other)
        count += 1
    return total / count
