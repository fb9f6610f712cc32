"""Customers who want one good item of each kind for their budget, and the best basket of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch

import setgrad as sg
from setgrad.sets import Choices, Sets

KINDS, ITEMS, BUDGETS = 3, 32, (3, 9)
# Features of an item: its kind, its place and its price.
FEATURES = KINDS + 2


@final
@dataclass(frozen=True, eq=False)
class Customers:
    """Sets of items, the best basket of each, and what decides about them.

    Attributes:
        choices: The items and the best baskets.
        budget: The budget of each customer.
        worth: What each item is worth, `(total,)`.
        kinds: The kind of each item.
    """

    choices: Choices
    budget: sg.Budget
    worth: np.ndarray
    kinds: np.ndarray

    def worth_of(self, picks: Sets) -> float:
        """Return the mean worth of baskets over that of the best; of items of one kind only the best counts."""
        shares = []
        for number, (pick, best) in enumerate(zip(picks, self.choices.subsets, strict=True)):
            rows = slice(number * ITEMS, (number + 1) * ITEMS)
            got, most = (basket_worth(mask.numpy(), self.kinds[rows], self.worth[rows]) for mask in (pick, best))
            shares.append(got / most)
        return float(np.mean(shares))


def draw(count: int, seed: int) -> Customers:
    """Return customers; an item is worth more the closer it is to the middle of its set."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, KINDS, (count, ITEMS))
    prices = rng.integers(1, 6, (count, ITEMS))
    budgets = rng.integers(BUDGETS[0], BUDGETS[1] + 1, count)
    places = 3 * rng.normal(size=(count, 1)) + rng.normal(size=(count, ITEMS))
    distance = np.abs(places - places.mean(1, keepdims=True))
    worth = np.maximum(0.1, 2.5 - 1.5 * distance)
    baskets = [best_basket(*row) for row in zip(kinds, prices, worth, budgets, strict=True)]
    items = np.concatenate([np.eye(KINDS)[kinds], places[..., None], prices[..., None]], -1)
    sets = Sets.from_lengths(torch.tensor(items.reshape(-1, FEATURES), dtype=torch.float32), [ITEMS] * count)
    costs = sets.with_values(torch.tensor(prices.reshape(-1), dtype=torch.float64))
    subsets = sets.with_values(torch.tensor(np.concatenate(baskets)))
    return Customers(Choices(sets, subsets), sg.Budget(costs, budgets), worth.reshape(-1), kinds.reshape(-1))


def best_basket(kinds: np.ndarray, prices: np.ndarray, worth: np.ndarray, budget: int) -> np.ndarray:
    """Return the basket of the highest worth, with at most one item of each kind, by dynamic programming."""
    # The best worth for each amount, and the basket that has it.
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())] * (budget + 1)
    for kind in range(KINDS):
        extended = list(best)
        for i in np.flatnonzero(kinds == kind):
            for amount in range(prices[i], budget + 1):
                value, items = best[amount - prices[i]]
                extended[amount] = max(extended[amount], (value + worth[i], (*items, int(i))))
        best = extended
    mask = np.zeros(len(kinds), dtype=bool)
    mask[list(best[budget][1])] = True
    return mask


def basket_worth(mask: np.ndarray, kinds: np.ndarray, worth: np.ndarray) -> float:
    """Return the worth of a basket: the best item of each kind."""
    return sum(max(worth[mask & (kinds == kind)], default=0.0) for kind in range(KINDS))
