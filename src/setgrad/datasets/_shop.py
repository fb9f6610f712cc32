"""A generated shop: what each visit was shown, and what was bought, in columns of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from setgrad.datasets._table_task import TableTask, resolve_two, stack_sets
from setgrad.datasets._task import spawn_generators

_NOUNS = {
    "lamp": ("desk lamp", "floor lamp", "lantern"),
    "chair": ("armchair", "stool", "rocking chair"),
    "rug": ("rug", "runner", "door mat"),
    "shelf": ("bookcase", "wall shelf", "rack"),
    "clock": ("wall clock", "alarm clock", "timer"),
    "vase": ("vase", "flower pot", "bowl"),
}
_TYPICAL_PRICES = (25, 80, 60, 90, 30, 18)
_COLOURS = ("red", "blue", "green", "black", "white", "grey")
_BRANDS = ("Alder", "Birch", "Cedar", "Dune", "Ember", "Fjord", "Grove", "Heath", "Isle")
_ROOMS = ("kitchen", "office", "bedroom")
_LOOKS, _PRODUCTS_OF_A_LOOK, _PICTURE = 40, 8, 8
_DEFAULT_COUNTS = (600, 100)
_DESCRIPTION = (
    "One row for each product that a visit to a shop was shown, 10 to 16 in a visit, and whether it was bought. The "
    "products of a visit are of three looks, which the vector in picture shows, and the visitor wants one of them, "
    "most often that with most products. Of these, products with many stars and a low price for their category are "
    "bought. in_cart marks one of the bought products, as if it was in the cart already."
)


def make_shop(*, random_state: int = 0, n_train: int | None = None, n_test: int | None = None) -> TableTask:
    """Return the tables of the shop: 600 visits to learn from and 100 to test on by default."""
    import pyarrow as pa

    counts = resolve_two(n_train, n_test, _DEFAULT_COUNTS)
    products, *visits = spawn_generators(random_state, 3)
    catalogue, worth = _draw_catalogue(products)
    types = {
        "visit": pa.string(),
        "room": pa.string(),
        "day": pa.timestamp("ms"),
        "product": pa.string(),
        "title": pa.string(),
        "category": pa.string(),
        "brand": pa.string(),
        "price": pa.float64(),
        "stars": pa.float64(),
        "listed": pa.timestamp("ms"),
        "picture": pa.list_(pa.float32()),
        "bought": pa.bool_(),
        "in_cart": pa.bool_(),
    }
    train, test = (
        stack_sets(_draw_visits(rng, catalogue, worth, count, first), types)
        for rng, count, first in zip(visits, counts, (1, counts[0] + 1), strict=True)
    )
    return TableTask("shop", _DESCRIPTION, train, test, "visit", "product", "bought")


def _draw_catalogue(rng: np.random.Generator) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the columns of the products, those of a look together, and the worth of each."""
    count = _LOOKS * _PRODUCTS_OF_A_LOOK
    category, brand, colour, noun = (rng.integers(0, n, count) for n in (len(_NOUNS), len(_BRANDS), len(_COLOURS), 3))
    names = list(_NOUNS)
    relative_price = np.exp(0.4 * rng.standard_normal(count))
    stars = (4 + 0.6 * rng.standard_normal(count)).clip(1, 5).round(1)
    stars[rng.random(count) < 0.15] = np.nan
    worth = np.nan_to_num(stars - 4, nan=-0.3) - (relative_price - 1)
    titles = [
        f"{_COLOURS[c]} {_NOUNS[names[k]][n]}".capitalize() for k, c, n in zip(category, colour, noun, strict=True)
    ]
    looks = np.repeat(rng.standard_normal((_LOOKS, _PICTURE)), _PRODUCTS_OF_A_LOOK, 0)
    columns = {
        "product": np.array([f"P{1000 + number}" for number in rng.permutation(count)]),
        "title": np.array(titles),
        "category": np.array(names)[category],
        "brand": np.array(_BRANDS)[brand],
        "price": (np.array(_TYPICAL_PRICES)[category] * relative_price).round(2),
        "stars": stars,
        "listed": np.datetime64("2026-01-01", "ms") - rng.integers(0, 700, count).astype("timedelta64[D]"),
        "picture": (looks + 0.15 * rng.standard_normal((count, _PICTURE))).round(2).astype(np.float32),
    }
    return columns, worth


def _draw_visits(
    rng: np.random.Generator, catalogue: dict[str, np.ndarray], worth: np.ndarray, count: int, first: int
) -> Iterator[dict[str, Any]]:
    """Yield the columns of each visit."""
    for number in range(first, first + count):
        looks = rng.choice(_LOOKS, 3, replace=False)
        counts = (rng.integers(4, 7), *rng.integers(3, 6, 2))
        shown = rng.permutation(
            np.concatenate(
                [
                    look * _PRODUCTS_OF_A_LOOK + rng.choice(_PRODUCTS_OF_A_LOOK, n, replace=False)
                    for look, n in zip(looks, counts, strict=True)
                ]
            )
        )
        wanted = shown // _PRODUCTS_OF_A_LOOK == looks[0]
        liking = np.where(wanted, worth[shown] + 0.1 * rng.gumbel(size=len(shown)), -np.inf)
        bought = (liking > -0.8) | (liking == liking.max())
        yield {
            "visit": f"v{number:04d}",
            "room": str(rng.choice(_ROOMS)),
            "day": np.datetime64("2026-03-01", "ms") + rng.integers(0, 90).astype("timedelta64[D]"),
            **{name: values[shown] for name, values in catalogue.items()},
            "bought": bought,
            "in_cart": np.arange(len(shown)) == bought.argmax(),
        }
