"""Ask a model why: which columns drive its picks, and what would change them. The rule behind the data is known.

In each visit ten products are shown. People like those that cost less than 60, of any brand but one. Of the liked
products of one kind they buy one, whichever: products of one kind are substitutes. The weight of a product decides
nothing. The model sees the purchases alone; the explanations are compared with the rule.
"""

import numpy as np
import pandas as pd

import setgrad as sg

VISITS, SHOWN, DEAREST, UNLIKED = 600, 10, 60, "Acme"


def make_visits(count: int, seed: int) -> pd.DataFrame:
    """Return visits with what was bought."""
    rng = np.random.default_rng(seed)
    rows = count * SHOWN
    shop = pd.DataFrame(
        {
            "visit": np.repeat([f"v{number}" for number in range(count)], SHOWN),
            "product": [f"p{number}" for number in range(rows)],
            "brand": rng.choice([UNLIKED, "Nord", "Orla"], rows),
            "kind": rng.choice(["tea", "coffee", "cocoa"], rows),
            "price": rng.integers(5, 90, rows) + rng.random(rows).round(2),
            "weight": rng.normal(2, 0.5, rows).round(2),
        }
    )
    liked = shop["price"].lt(DEAREST) & shop["brand"].ne(UNLIKED)
    turn = pd.Series(rng.random(rows)).where(liked)
    return shop.assign(bought=liked & turn.eq(turn.groupby([shop["visit"], shop["kind"]]).transform("min")))


def same_kind(pairs: pd.DataFrame, shop: pd.DataFrame) -> pd.Series:
    """Return whether the two items of each pair are of one kind."""
    kinds = shop.set_index("product")["kind"]
    return kinds[pairs["product"]].to_numpy() == kinds[pairs["other"]].to_numpy()


def main() -> dict[str, float]:
    """Fit, explain new visits, and compare with the rule."""
    train, test = make_visits(VISITS, seed=1), make_visits(60, seed=2)
    # Boosted trees may predict as well alone, and then nothing is learned of substitutes.
    selector = sg.SubsetSelector(
        dim=32, hidden=(64,), max_epochs=40, trees=False, random_state=0, device="cpu", verbose=0
    )
    selector.fit(train, set_id="visit", item_id="product", chosen="bought")
    important = selector.importance(test, repeats=3)
    lost = dict(zip(important.columns, important.drops, strict=True))

    why = selector.explain(test, vary=["price"])
    items, pairs, changes = (why.to_frame(name) for name in ("items", "pairs", "changes"))
    chosen = set(items[items["chosen"]]["product"])
    fallen = changes[changes["product"].isin(chosen)]
    both = pairs[pairs["product"].isin(chosen) ^ pairs["other"].isin(chosen)]
    is_same = same_kind(both, test)
    return {
        "score": selector.score(test),
        **{f"score lost without {name}": lost[name] for name in ("price", "brand", "kind", "weight")},
        "mean effect of the price on chosen items": items[items["chosen"]]["effect of price"].mean(),
        "mean effect of the weight on chosen items": items[items["chosen"]]["effect of weight"].mean(),
        "interaction of a chosen item and another of its kind": both[is_same]["interaction"].mean(),
        "interaction of a chosen item and another of another kind": both[~is_same]["interaction"].mean(),
        "chosen items that a price would take out": len(fallen) / len(chosen),
        "median price at which they would not be chosen": fallen["new_value"].median(),
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:<60} {number:.4g}")
