"""Tiny fitted selectors and their results, for pages to be about: of points, of a table, and of images."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import setgrad as sg
from setgrad import Choices, SubsetSelector, datasets
from setgrad.columns._describe import TableDescription
from setgrad.report import Evaluation, evaluate
from setgrad.selector._fitted_table import FittedTable

TINY: dict[str, Any] = {"dim": 8, "heads": 1, "max_epochs": 3, "random_state": 0, "verbose": 0, "device": "cpu"}
# Names that markup, an attribute, a template, a formula, or the direction of a text could take for its own.
HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src='http://evil.example/x'>",
    "{{7*7}} {% raw %}",
    "$x$ & &amp; </table>",
    "\u202egnp.exe \ud800 \x00\x1b",
    "javascript:alert('x')",
)


@pytest.fixture(scope="session")
def selector() -> SubsetSelector:
    task = datasets.load_task("moons", n_train=24, n_validation=8, n_test=0)
    return SubsetSelector(**TINY).fit(*task.train, validation=task.validation)


@pytest.fixture(scope="session")
def test_sets() -> Choices:
    return datasets.load_task("moons", n_train=0, n_validation=0, n_test=12).test


@pytest.fixture(scope="session")
def evaluation(selector: SubsetSelector, test_sets: Choices) -> Evaluation:
    return evaluate(selector, test_sets)


@dataclass(frozen=True, eq=False)
class Shop:
    """A selector fitted on a table, the sets of its fit, an evaluation on others, and what their table is like."""

    selector: SubsetSelector
    training: Choices
    evaluation: Evaluation
    table: TableDescription


ROLES: dict[str, Any] = {"set_id": "visit", "chosen": "bought", "item_id": "product"}


def shop_table(seed: int, sets: int) -> pa.Table:
    """Return sets of six of 12 products; those with a low price are mostly bought, and some weights are missing."""
    rng = np.random.default_rng(seed)
    product = np.concatenate([rng.permutation(12)[:6] for _ in range(sets)])
    price, weight = rng.uniform(1, 9, (2, 6 * sets))
    weight[rng.random(6 * sets) < 0.1] = np.nan
    return pa.table(
        {
            "visit": np.repeat([f"v{number} {HOSTILE[0]}" for number in range(sets)], 6),
            # Arrow holds no half of a pair.
            "product": [f"{HOSTILE[number % 4]} {number}" for number in product],
            "price": price,
            f"weight {HOSTILE[1]}": pa.array(weight, from_pandas=True),
            f"brand {HOSTILE[2]}": rng.choice([HOSTILE[3], "plain"], 6 * sets),
            "bought": price + rng.normal(0, 1, 6 * sets) < 4,
        }
    )


@pytest.fixture(scope="session")
def shop() -> Shop:
    train, test = shop_table(0, 40), shop_table(1, 20)
    # Trees alone may be used, and know nothing of pairs.
    selector = SubsetSelector(**TINY | {"dim": 16, "max_epochs": 8}, trees=False).fit(train, **ROLES)
    training = FittedTable.of(train, selector.table_, chosen=True).read_choices()
    return Shop(selector, training, evaluate(selector, test), sg.describe(test, **ROLES))


@pytest.fixture(scope="session")
def digits() -> tuple[SubsetSelector, Evaluation]:
    """Sets of images of 8 by 8 pixels, three of which are dark."""
    rng = np.random.default_rng(0)
    images = rng.uniform(0, 1, (28, 5, 64)) * np.array([1.0, 1.0, 1.0, 0.2, 0.2])[:, None]
    choices = Choices.of([*images], [[0, 1, 2]] * 28)
    selector = SubsetSelector(**TINY | {"max_epochs": 1}).fit(choices.sets[:16], choices.subsets[:16])
    test = Choices(choices.sets[16:], choices.subsets[16:], item_ids=np.arange(60))
    return selector, evaluate(selector, test)
