"""Customers fill a basket as well as their money allows; what they like is learnt from what they took.

A table has a row for each item that a customer looked at: price, quality, weight, and whether it was bought. Each
customer bought the items with the highest sum of likings among those that 15 coins can pay. So a good item is often
left because another was better value, and a model that does not know of the budget takes it for bad.
`fit(constraint=...)` asks only that the best *affordable* basket be the one that was bought.
"""

import csv
import itertools
import tempfile
from pathlib import Path

import numpy as np
import torch

import setgrad as sg
from setgrad.selector import Budget

CUSTOMERS, ITEMS, COINS = 500, 8, 15
COLUMNS = ("price", "quality", "weight")


def liking(items: np.ndarray) -> np.ndarray:
    """How much customers like items `(..., 3)`: dear or not is all the same to them, as long as they can pay."""
    return 1.5 + items[..., 1] - 0.8 * items[..., 2]


def best_basket(worth: np.ndarray, price: np.ndarray) -> np.ndarray:
    """The affordable basket with the highest worth, by trying all of them; `(customers, items)` each."""
    baskets = np.array(list(itertools.product([False, True], repeat=worth.shape[1])))
    total = worth @ baskets.T
    total[price @ baskets.T > COINS] = -np.inf
    return baskets[total.argmax(1)]


def write_table(path: Path, seed: int) -> None:
    """One row for each item."""
    draw = np.random.default_rng(seed)
    price = draw.integers(1, 10, size=(CUSTOMERS, ITEMS))
    items = np.stack([price, *draw.normal(size=(2, CUSTOMERS, ITEMS))], -1)
    bought = best_basket(liking(items), price)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["customer", *COLUMNS, "bought"])
        for customer, number in itertools.product(range(CUSTOMERS), range(ITEMS)):
            table.writerow([customer, *items[customer, number], bool(bought[customer, number])])


def read(path: Path) -> tuple[sg.Sets, sg.Sets, Budget]:
    """Sets, what was bought of each, and what can be bought of them."""
    sets, subsets = sg.read_table(path, set_id="customer", features=COLUMNS, chosen="bought")
    return sets, subsets, Budget(sets.with_values(sets.values[:, 0]), budget=COINS)


def share(picks: sg.Sets, subsets: sg.Sets) -> float:
    """Share of the customers whose basket is found to the last item."""
    return float(np.mean([bool((p == s).all()) for p, s in zip(picks, subsets, strict=True)]))


def over(picks: sg.Sets, sets: sg.Sets) -> float:
    """Share of the baskets that cost too much."""
    paid = torch.stack([(x[:, 0] * p).sum() for x, p in zip(sets, picks, strict=True)])
    return float((paid > COINS).double().mean())


def agreement(selector: sg.SubsetSelector, sets: sg.Sets) -> float:
    """Correlation of the logits of items with how much they are liked."""
    logits = selector.decision_function(sets).values.double().numpy()
    return float(np.corrcoef(logits, liking(sets.values.double().numpy()))[0, 1])


def main() -> dict[str, float]:
    """Fit with and without the budget, and choose for new customers."""
    with tempfile.TemporaryDirectory() as folder:
        old, new = Path(folder) / "old.csv", Path(folder) / "new.csv"
        write_table(old, 0)
        write_table(new, 1)
        sets, subsets, budget = read(old)
        fresh, wanted, limit = read(new)
    options = {"width": 32, "hidden": (32,), "max_epochs": 40, "random_state": 0, "verbose": 0, "device": "cpu"}
    plain = sg.SubsetSelector(**options).fit(sets, subsets)
    aware = sg.SubsetSelector(**options).fit(sets, subsets, constraint=budget)
    free, held = plain.predict(fresh), plain.predict(fresh, constraint=limit)
    best = aware.predict(fresh, constraint=limit)
    return {
        "too dear, no budget anywhere": over(free, fresh),
        "found, no budget anywhere": share(free, wanted),
        "found, budget when choosing": share(held, wanted),
        "found, budget when learning and choosing": share(best, wanted),
        "too dear, budget when choosing": over(best, fresh),
        "logits and likings, no budget": agreement(plain, fresh),
        "logits and likings, budget when learning": agreement(aware, fresh),
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:<42} {number:.4g}")
