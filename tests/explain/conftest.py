"""Sets, a table of which a rule is known, and models that learned them."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from setgrad.selector import SubsetSelector
from tests.explain.oracles import draw_sets

COLUMNS: dict[str, Any] = {"set_id": "visit", "chosen": "bought", "item_id": "product"}
# Names that a terminal or a page might take for something else.
BRANDS = ["Acme", "<b>Nord</b>", "x\x1b[31m\nred", "[bold]"]

TINY: dict[str, Any] = {
    "dim": 8,
    "hidden": (8,),
    "layers": 1,
    "max_epochs": 3,
    "random_state": 0,
    "verbose": 0,
    "device": "cpu",
}


def make_choices():
    sets = draw_sets([4, 7, 1, 5, 6, 3, 8] * 6, features=2)
    return sets, sets.with_values(sets.values[:, 0] > 0.2)


@pytest.fixture(scope="session", params=["conditional", "direct", "unrolled", "two members"])
def plain(request):
    members = {"members": 2, "method": "conditional"} if request.param == "two members" else {"method": request.param}
    return SubsetSelector(**TINY, **members).fit(*make_choices())


def make_shop(seed=0, visits=150, items=8):
    """Return a table in which cheap products that are not of one brand are bought; prices and brands have gaps."""
    rng = np.random.default_rng(seed)
    rows = visits * items
    shop = pd.DataFrame(
        {
            "visit": np.repeat([f"v{number}" for number in range(visits)], items),
            "product": [f"p{number}" for number in range(rows)],
            "brand": rng.choice(BRANDS, rows),
            "price": rng.integers(5, 90, rows) + 0.5,
            "noise": rng.normal(size=rows),
            "member": np.repeat(rng.choice(["yes", "no"], visits), items),
        }
    )
    shop["bought"] = shop["price"].lt(35) & shop["brand"].ne("Acme")
    shop.loc[rng.random(rows) < 0.03, "price"] = np.nan
    shop.loc[rng.random(rows) < 0.03, "brand"] = None
    return shop


@pytest.fixture(scope="session")
def shop():
    return make_shop(1, visits=40)


@pytest.fixture(scope="session")
def fitted(few_trees):
    selector = SubsetSelector(dim=16, hidden=(32,), layers=1, max_epochs=40, random_state=0, verbose=0, device="cpu")
    with few_trees(20):
        return selector.fit(make_shop(), **COLUMNS)
