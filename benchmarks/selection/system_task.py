"""Customers who buy the items closest to the middle of what they are shown, within their budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

import setgrad as sg
from setgrad.sets import Choices, Sets

ITEMS, DEAREST, BUDGETS = 24, 5, (4, 11)


@final
@dataclass(frozen=True, eq=False)
class Customers:
    """Sets of items, the best basket of each, and what decides about them.

    Attributes:
        choices: The items, by place and price, and the best baskets.
        budget: The budget of each customer.
        worth: What each item is worth, `(customers, items)`.
    """

    choices: Choices
    budget: sg.Budget
    worth: Tensor

    def worth_of(self, picks: Sets) -> float:
        """Return the mean over customers of the worth of a basket over that of the best one."""
        got, most = (
            (self.worth * sets.values.view_as(self.worth)).sum(1, dtype=torch.float64)
            for sets in (picks, self.choices.subsets)
        )
        return float((got / most).mean())


def draw(count: int, seed: int) -> Customers:
    """Return customers; an item is worth more the closer it is to the middle of its set."""
    rng = np.random.default_rng(seed)
    places = 3 * rng.normal(size=(count, 1)) + rng.normal(size=(count, ITEMS))
    prices = rng.integers(1, DEAREST + 1, (count, ITEMS))
    budget = sg.Budget(prices.tolist(), rng.integers(BUDGETS[0], BUDGETS[1] + 1, count))
    worth = torch.tensor(1.5 - np.abs(places - places.mean(1, keepdims=True)))
    best = budget.solver(np.arange(count), ITEMS)(worth).bool()
    items = torch.tensor(np.stack([places, prices], -1), dtype=torch.float32)
    sets = Sets.from_lengths(items.flatten(0, 1), [ITEMS] * count)
    return Customers(Choices(sets, sets.with_values(best.flatten())), budget, worth)
