"""Complete begun baskets, from a data frame to a data frame.

Each visit to a shop shows twelve products, four in each of three styles. A style is a point, different in every visit,
and its products lie around it. The customer buys the products of one style. Before anything is in the cart, nobody can
know which style it will be; the first product tells.
"""

import numpy as np
import pandas as pd

import setgrad as sg

STYLES, PRODUCTS, BUDGET = 3, 4, 15


def visits(count: int, seed: int) -> pd.DataFrame:
    """Return one row for each product that a visit shows."""
    rng = np.random.default_rng(seed)
    rows = count * STYLES * PRODUCTS
    points = rng.normal(size=(count, STYLES, 1, 2)) + 0.2 * rng.normal(size=(count, STYLES, PRODUCTS, 2))
    style = np.tile(np.repeat(np.arange(STYLES), PRODUCTS), count)
    bought = style == np.repeat(rng.integers(STYLES, size=count), STYLES * PRODUCTS)
    frame = pd.DataFrame(
        {
            "visit": np.repeat([f"v{number}" for number in range(count)], STYLES * PRODUCTS),
            "product": rng.permutation(rows),
            "colour": points[..., 0].ravel(),
            "cut": points[..., 1].ravel(),
            "price": rng.integers(1, 10, size=rows),
            "bought": bought,
        }
    )
    # The first product that was bought is in the cart already.
    first = frame[bought].groupby("visit", sort=False).head(1).index
    return frame.assign(in_cart=frame.index.isin(first))


def main() -> None:
    """Fit, complete begun baskets, and print how many products are right."""
    train, test = visits(250, seed=0), visits(100, seed=1)
    selector = sg.SubsetSelector(dim=16, hidden=(32,), max_epochs=20, random_state=0, verbose=0, device="cpu")
    selector.fit(train, set_id="visit", item_id="product", chosen="bought", features=["colour", "cut"])

    picks = selector.predict(test, given="in_cart", carry=["price", "bought", "in_cart"])
    others = picks[picks["bought"] & ~picks["in_cart"]]
    prices = [rows["price"].tolist() for _, rows in test.groupby("visit", sort=False)]
    cheap = selector.predict(test, given="in_cart", constraint=sg.Budget(prices, BUDGET), carry=["price"])
    cheap = cheap[cheap["chosen"]]

    print(f"score from nothing: {selector.score(test):.3f}")
    print(f"score with one product in the cart: {selector.score(test, given='in_cart'):.3f}")
    print(f"share of the other products that is found: {others['chosen'].mean():.3f}")
    print(f"products of a basket within the budget: {cheap.groupby('visit').size().mean():.2f}")
    print(f"largest sum within the budget: {cheap.groupby('visit')['price'].sum().max()}")


if __name__ == "__main__":
    main()
