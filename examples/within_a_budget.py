"""Learn what customers like from baskets that they bought within a budget.

A table has one row for each item that a customer looked at: price, quality, weight, and whether it was bought. Each
customer bought the items with the highest total utility that cost at most 15 coins together. So a good item is often
left out because another one was better value for money, and a model that ignores the budget takes it for a bad item.
`fit(constraint=...)` only asks that the best *affordable* basket is the one that was bought.
"""

import csv
import itertools
import tempfile
from pathlib import Path

import numpy as np
import torch

import setgrad as sg

CUSTOMERS, ITEMS, COINS = 500, 8, 15
FEATURES = ("price", "quality", "weight")


def utility(items: np.ndarray) -> np.ndarray:
    """Return how much customers like items `(..., 3)`. The price does not matter to them, as long as they can pay."""
    return 1.5 + items[..., 1] - 0.8 * items[..., 2]


def best_basket(utilities: np.ndarray, prices: np.ndarray) -> np.ndarray:
    """Return the affordable basket with the highest utility, by trying all of them; `(customers, items)` each."""
    baskets = np.array(list(itertools.product([False, True], repeat=utilities.shape[1])))
    total = utilities @ baskets.T
    total[prices @ baskets.T > COINS] = -np.inf
    return baskets[total.argmax(1)]


def write_table(path: Path, seed: int) -> None:
    """Write one row for each item of each customer."""
    rng = np.random.default_rng(seed)
    price = rng.integers(1, 10, size=(CUSTOMERS, ITEMS))
    items = np.stack([price, *rng.normal(size=(2, CUSTOMERS, ITEMS))], -1)
    bought = best_basket(utility(items), price)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["customer", *FEATURES, "bought"])
        for customer, item in itertools.product(range(CUSTOMERS), range(ITEMS)):
            table.writerow([customer, *items[customer, item], bool(bought[customer, item])])


def read(path: Path) -> tuple[sg.Sets, sg.Sets, sg.Budget]:
    """Return the sets, the bought items, and the budget as a constraint."""
    sets, bought = sg.read_table(path, set_id="customer", features=FEATURES, chosen="bought")
    return sets, bought, sg.Budget(sets.with_values(sets.values[:, 0]), COINS)


def exact_share(picks: sg.Sets, bought: sg.Sets) -> float:
    """Return the share of customers whose whole basket was predicted."""
    return float(np.mean([bool((p == b).all()) for p, b in zip(picks, bought, strict=True)]))


def too_expensive_share(picks: sg.Sets, sets: sg.Sets) -> float:
    """Return the share of baskets that cost more than the budget."""
    paid = torch.stack([(x[:, 0] * p).sum() for x, p in zip(sets, picks, strict=True)])
    return float((paid > COINS).double().mean())


def correlation(selector: sg.SubsetSelector, sets: sg.Sets) -> float:
    """Return the correlation of the logits of items with their utility."""
    logits = selector.decision_function(sets).values.double().numpy()
    return float(np.corrcoef(logits, utility(sets.values.double().numpy()))[0, 1])


def main() -> dict[str, float]:
    """Fit with and without the budget, and choose for new customers."""
    with tempfile.TemporaryDirectory() as folder:
        train, test = Path(folder) / "train.csv", Path(folder) / "test.csv"
        write_table(train, 0)
        write_table(test, 1)
        sets, bought, budget = read(train)
        test_sets, test_bought, test_budget = read(test)
    plain = sg.SubsetSelector(dim=32, hidden=(32,), max_epochs=40, random_state=0, verbose=0, device="cpu")
    aware = sg.SubsetSelector(**plain.get_params())
    plain.fit(sets, bought)
    aware.fit(sets, bought, constraint=budget)
    free, limited = plain.predict(test_sets), plain.predict(test_sets, constraint=test_budget)
    best = aware.predict(test_sets, constraint=test_budget)
    return {
        "too expensive, no budget": too_expensive_share(free, test_sets),
        "exact baskets, no budget": exact_share(free, test_bought),
        "exact baskets, budget in predict": exact_share(limited, test_bought),
        "exact baskets, budget in fit and predict": exact_share(best, test_bought),
        "too expensive, budget in fit and predict": too_expensive_share(best, test_sets),
        "correlation with utility, no budget": correlation(plain, test_sets),
        "correlation with utility, budget in fit": correlation(aware, test_sets),
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:<42} {number:.4g}")
