"""Baskets of which only the ids of the products are known.

A shop sells 60 products. Some sell well, others hardly; and each belongs to one of ten recipes, which nobody wrote
down. A visit shows twelve products: all six of one recipe, and six others. The customer cooks that recipe, and buys
those of its products that sell well. `embed` learns a vector of each id, so both can be learned from baskets alone.
"""

import numpy as np
import pandas as pd

import setgrad as sg

PRODUCTS, RECIPES, SHOWN = 60, 10, 12
SIZE = PRODUCTS // RECIPES


def visits(count: int, seed: int) -> pd.DataFrame:
    """Return one row for each product that a visit shows."""
    shop, rng = np.random.default_rng(0), np.random.default_rng(seed)
    products = shop.permutation(PRODUCTS).reshape(RECIPES, SIZE)
    sells = np.zeros(PRODUCTS, dtype=bool)
    sells[products[:, : SIZE // 2]] = True
    rows = []
    for visit in range(count):
        recipe = products[rng.integers(RECIPES)]
        others = rng.choice(np.setdiff1d(np.arange(PRODUCTS), recipe), SHOWN - SIZE, replace=False)
        shown = rng.permutation(np.concatenate([recipe, others]))
        rows += [(f"v{visit}", 1000 + product, product in recipe and sells[product]) for product in shown]
    return pd.DataFrame(rows, columns=["visit", "product", "bought"])


def main() -> None:
    """Fit on ids, and print how well it picks, beside the products that sell best."""
    train, test = visits(400, seed=1), visits(100, seed=2)
    found = sg.describe(train, set_id="visit", item_id="product", chosen="bought", embed=["product"])
    print(f"columns that are read as ids: {sum(column.kind == 'id' for column in found.columns)}")

    selector = sg.SubsetSelector(dim=32, hidden=(32,), max_epochs=20, random_state=0, verbose=0, device="cpu")
    selector.fit(train, set_id="visit", item_id="product", chosen="bought", embed=["product"])
    picks = selector.predict(test, carry=["bought"])
    popular = train.groupby("product")["bought"].mean()
    best = test.assign(score=test["product"].map(popular)).sort_values("score", ascending=False)
    best = best.groupby("visit").head(SIZE // 2)

    right = picks[picks["chosen"]]["bought"].mean()
    print(f"score: {selector.score(test):.3f}")
    print(f"share of the picks that was bought: {right:.3f}")
    print(f"share of the three most popular that was bought: {best['bought'].mean():.3f}")
    print(f"probability of a product that no basket had: {new_product(selector, test):.3f}")


def new_product(selector: sg.SubsetSelector, table: pd.DataFrame) -> float:
    """Return the probability of a product that no basket had, in place of the first one of the first visit."""
    changed = table.head(SHOWN).copy()
    changed.loc[changed.index[0], "product"] = 5000
    picks = selector.predict(changed)
    return float(picks["probability"].iloc[0])


if __name__ == "__main__":
    main()
