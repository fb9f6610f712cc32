"""Everything at once: sets in a file, an encoder that reads them in chunks, implicit inference, a budget in the loss.

Customers look at 24 items and take those close to the middle of all that is on offer, as many as their budget allows.
The budget is no feature, and an item is good or bad only beside the other items. So the model must look at the whole
set, and must not learn that what was too dear is bad.

- The items lie in one `.npy` file, written in pieces; `chunk_size=8` items of a set are encoded at a time.
- `phi="umbc"` gathers a context of the set from its chunks, with the gradient of the whole set.
- `method="implicit"` infers until the probabilities of the items agree, and differentiates the solution.
- The loss goes through the solver of the budget: first the Fenchel-Young loss, a good start, then `gradient="aimle"`
  for the Jaccard score of the basket that was chosen.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import setgrad as sg
from setgrad.selector import jaccard
from setgrad.sets import Sets, write_npy

CUSTOMERS, ITEMS, CHUNK = 60, 24, 8


@dataclass
class Market:
    """Sets of items in a file, their worth, the budget of each customer, and the best basket within it."""

    sets: Sets
    worth: Tensor
    budget: sg.Budget
    best: Tensor


def open_market(path: Path, seed: int) -> Market:
    """Write items, place and price, piece by piece, and return their sets, which stay in the file."""
    rng = np.random.default_rng(seed)
    place = 3 * rng.normal(size=(CUSTOMERS, 1)) + rng.normal(size=(CUSTOMERS, ITEMS))
    price = rng.integers(1, 6, (CUSTOMERS, ITEMS))
    items = np.stack([place, price], -1).astype(np.float32)
    write_npy(iter(items.reshape(-1, CHUNK, 2)), path)
    sets = Sets.from_npy(path, [ITEMS] * CUSTOMERS)
    budget = sg.Budget(price.tolist(), rng.integers(4, 12, CUSTOMERS))
    worth = torch.tensor(1.5 - np.abs(place - place.mean(1, keepdims=True)))
    # The exact solver that `fit` and `predict` use too.
    return Market(sets, worth, budget, budget.solver(np.arange(CUSTOMERS), ITEMS)(worth).bool())


def share_of_worth(market: Market, picks: Sets) -> float:
    """Return the worth of the picks over that of the best baskets."""
    return float((market.worth * picks.values.view(-1, ITEMS)).sum() / (market.worth * market.best).sum())


def selector(**options: Any) -> sg.SubsetSelector:
    """Return the untrained system."""
    usual: dict[str, Any] = {
        "phi": "umbc",
        "chunk_size": CHUNK,
        "method": "implicit",
        "dim": 16,
        "layers": 1,
        "hidden": (32,),
    }
    training: dict[str, Any] = {"max_epochs": 5, "learning_rate": 1e-2, "batch_size": 2, "random_state": 0}
    return sg.SubsetSelector(**usual | training | options, verbose=0, device="cpu")


def main() -> dict[str, float]:
    """Fit to some customers, and choose for others; the last row is a model that was never told of the budget."""
    with tempfile.TemporaryDirectory() as folder:
        train, test = (open_market(Path(folder) / f"{seed}.npy", seed) for seed in (0, 1))
        bought = train.sets.with_values(train.best.flatten())
        first = selector().fit(train.sets, bought, constraint=train.budget)
        system = selector(learning_rate=1e-3, max_epochs=1).fit(
            train.sets, bought, start=first, constraint=train.budget, gradient="aimle", choice_loss="jaccard"
        )
        unaware = selector(max_epochs=6).fit(train.sets, bought)
        picks, others = (one.predict(test.sets, constraint=test.budget) for one in (system, unaware))
        spent = (picks.values * test.sets.values[:, 1]).view(-1, ITEMS).sum(1) / torch.tensor(test.budget.budget)
    return {
        "Jaccard score with the best baskets": float(jaccard(picks, test.sets.with_values(test.best.flatten())).mean()),
        "worth of the picks, of the best": share_of_worth(test, picks),
        "worth, budget in predict alone": share_of_worth(test, others),
        "largest share of a budget that was spent": float(spent.max()),
        "sets whose inference converged": system.history_[-1]["converged"],
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:<42} {number:.4g}")
