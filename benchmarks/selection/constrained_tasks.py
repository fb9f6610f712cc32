"""The tasks of `constrained-training`: subsets that are the best ones within a budget, and what every item is worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from benchmarks.discrete.knapsack import SLOTS, read_days
from benchmarks.selection.tasks import load_split
from setgrad.discrete import Knapsack
from setgrad.selector import Budget
from setgrad.sets import Choices, Sets

_CATEGORY = "amazon:media:farthest"
_PRICES, _COINS = (1, 9), 12
# A product of the registry is worth 1, less a little for its price: of as many products the cheapest are best.
_PRICE_WEIGHT = 0.01
_ENERGY_BUDGET = 60
_QUICK_SETS = 24


@final
@dataclass(frozen=True, eq=False)
class Part:
    """Sets with their best subsets, the budget, and the worth of every item."""

    choices: Choices
    budget: Budget
    worth: Sets

    def take(self, indices: np.ndarray) -> Part:
        """Return the sets with these indices."""
        choices = Choices(self.choices.sets.take(indices), self.choices.subsets.take(indices))
        costs = Budget(self.budget.costs.take(indices), self.budget.budget[indices])
        return Part(choices, costs, self.worth.take(indices))


@final
@dataclass(frozen=True, eq=False)
class BudgetTask:
    """The parts of one split."""

    train: Part
    validation: Part
    test: Part


def baskets(number: int, data_dir: str | None, quick: bool) -> BudgetTask:
    """Return a fold of Amazon registries with prices: S* has as many products of the registry as 12 coins buy."""
    task = load_split(_CATEGORY, splits="folds", number=number, data_dir=data_dir, quick=quick)
    parts = []
    for index, part in enumerate((task.train, task.validation, task.test)):
        chance = torch.Generator().manual_seed(3 * number + index)
        prices = torch.randint(_PRICES[0], _PRICES[1] + 1, (part.sets.layout.total,), generator=chance)
        worth = torch.where(part.subsets.values, 1.0 - _PRICE_WEIGHT * prices, -1.0)
        items = torch.cat([part.sets.values.float(), prices[:, None].float()], 1)
        parts.append(make_part(part.sets.with_values(items), prices, worth, _COINS))
    return BudgetTask(*parts)


def energy(number: int, data_dir: str | None, quick: bool) -> BudgetTask:
    """Return half-hours of energy: the last days for the test, a random fifth of the others for validation."""
    days = read_days(data_dir, "weights")
    learnt, test = (_energy_part(*part, days.weights) for part in (days.learnt, days.tested))
    order = np.random.default_rng(number).permutation(len(learnt.choices))[: 2 * _QUICK_SETS if quick else None]
    held = len(order) // 5
    return BudgetTask(learnt.take(np.sort(order[held:])), learnt.take(np.sort(order[:held])), test)


# Tasks by name, from the number of the split, the folder of the data, and whether to load a few sets only.
TASKS: dict[str, Callable[[int, str | None, bool], BudgetTask]] = {"baskets": baskets, "energy": energy}


def make_part(sets: Sets, costs: Tensor, worth: Tensor, budget: int) -> Part:
    """Return sets of equal size with their best subsets within the budget."""
    shape = (len(sets), -1)
    best = Knapsack(costs.reshape(shape), budget)(worth.reshape(shape)).bool()
    choices = Choices(sets, sets.with_values(best.flatten()))
    return Part(choices, Budget(sets.with_values(costs), budget), sets.with_values(worth))


def _energy_part(features: Tensor, values: Tensor, weights: Tensor) -> Part:
    sets = Sets.from_lengths(features.flatten(0, 1), [SLOTS] * len(features))
    return make_part(sets, weights.repeat(len(features)), values.flatten(), _ENERGY_BUDGET)
