"""The products of a generated shop: brands, categories, titles with colours, prices, stars with gaps, dates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

BRANDS = [
    "Alder",
    "Birch",
    "Cedar",
    "Dune",
    "Ember",
    "Fjord",
    "Grove",
    "Heath",
    "Isle",
    "Juniper",
    "Kelp",
    "Larch",
    "Maple",
    "Nook",
    "Opal",
    "Pine",
    "Quill",
    "Reed",
    "Sable",
    "Thorn",
]
COLOURS = ["red", "blue", "green", "black", "white", "yellow", "grey", "pink", "brown", "purple"]
# What the products of a category are called.
_NOUNS = {
    "lamps": ("desk lamp", "floor lamp", "lantern"),
    "chairs": ("armchair", "stool", "dining chair"),
    "mugs": ("coffee mug", "tea cup", "travel mug"),
    "rugs": ("rug", "runner", "door mat"),
    "shelves": ("bookcase", "wall shelf", "rack"),
    "clocks": ("wall clock", "alarm clock", "timer"),
    "vases": ("vase", "flower pot", "bowl"),
    "blankets": ("throw", "blanket", "quilt"),
}
CATEGORIES = tuple(_NOUNS)
_ADJECTIVES = ["classic", "compact", "soft", "sturdy", "modern", "light", "handmade", "small", "large", "simple"]
_TITLES = ("{adjective} {noun} in {colour}", "{colour} {noun}, {adjective}", "{noun} {adjective} {colour}, boxed")
_STYLES = 4
_LAST_LISTED = np.datetime64("2026-01-04")


@final
@dataclass(frozen=True, eq=False)
class Catalogue:
    """Products as indices of `CATEGORIES`, `COLOURS` and `BRANDS`, the hidden style of their brand, and the rest."""

    category: np.ndarray
    colour: np.ndarray
    brand: np.ndarray
    style: np.ndarray
    others: dict[str, Any]
    n_styles: int = _STYLES

    def columns(self) -> dict[str, np.ndarray]:
        """Return the columns of the products, in the order of the table."""
        names = {"brand": np.array(BRANDS)[self.brand], "category": np.array(CATEGORIES)[self.category]}
        return {"product_id": self.others["product_id"], "title": self.others["title"], **names, **self.others}


def draw_catalogue(rng: np.random.Generator, count: int = 400) -> Catalogue:
    """Return the products of a shop. Numbers of products say nothing about them."""
    category, colour = rng.integers(0, len(CATEGORIES), count), rng.integers(0, len(COLOURS), count)
    # Each brand sells in three categories, and has a level of prices.
    sold = rng.permuted(np.tile(np.arange(len(CATEGORIES)), (len(BRANDS), 1)), axis=1)[:, :3]
    sells = (sold[:, :, None] == np.arange(len(CATEGORIES))).any(1)
    brand = (rng.random((count, len(BRANDS))) * (0.01 + sells[:, category].T)).argmax(1)
    typical = np.linspace(np.log(8), np.log(250), len(CATEGORIES))[category]
    price = np.exp(typical + 0.2 * rng.normal(size=len(BRANDS))[brand] + 0.4 * rng.normal(size=count))
    stars = (4 + 0.6 * rng.normal(size=count)).clip(1, 5).round(1)
    stars[rng.random(count) < 0.15] = np.nan
    words = zip(
        *(rng.integers(0, n, count) for n in (len(_TITLES), len(_ADJECTIVES), 3)), category, colour, strict=True
    )
    titles = [
        _TITLES[form].format(adjective=_ADJECTIVES[a], noun=_NOUNS[CATEGORIES[c]][n], colour=COLOURS[shade])
        for form, a, n, c, shade in words
    ]
    others = {
        "product_id": rng.choice(900_000, count, replace=False) + 100_000,
        "title": np.array([title.capitalize() for title in titles]),
        "price": price.round(2),
        "stars": stars,
        "sale": rng.random(count) < 0.25,
        "listed": (_LAST_LISTED - rng.integers(0, 730, count).astype("timedelta64[D]")).astype("datetime64[s]"),
    }
    return Catalogue(category, colour, brand, rng.permutation(len(BRANDS))[brand] % _STYLES, others)
