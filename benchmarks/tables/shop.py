"""Generated tables of a shop: what each session offered and what was bought, in columns of every kind.

A session has a hidden intent. It shows in what the shop offered, because products that fit are offered more often than
others, and in what was bought together. Every seed draws its own catalogue, sessions and noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from benchmarks.tables.catalogue import BRANDS, CATEGORIES, COLOURS, Catalogue, draw_catalogue

# A pandas data frame; pandas is imported only where a frame is made.
Frame = Any
SESSION, OFFER, PRODUCT, BOUGHT = "session", "offer", "product_id", "bought"
DEVICES = ("desktop", "mobile", "tablet")
_FEWEST, _MOST, _MOST_BOUGHT = 10, 60, 6
_SHARE_BOUGHT = 0.7
_FIRST_VISIT, _MINUTES = np.datetime64("2026-01-05T00:00"), 90 * 24 * 60
_KINDS = (CATEGORIES, COLOURS, BRANDS)


@final
@dataclass(frozen=True)
class Variant:
    """What decides in a table.

    Attributes:
        kinds: Which columns an intent may be about: 0 category, 1 colour, 2 brand.
        match: Worth of a product that fits the intent.
        price: Worth lost from the preferred price to the farthest one, by rank within category and session.
        stars: Worth of one star more than the mean of the session.
        gap: Worth of having no stars, in place of that.
        sale: Worth of being on sale.
        style: Worth of a brand of the style that the session's facts suggest.
        new: Worth of the newest product over the oldest one, for visitors with a mobile device.
        cheap: Whether all want the cheapest, instead of a price level of their own, at which the budget hints.
        decoy: Largest share of offered products that fit another intent, relative to those that fit the true one.
    """

    kinds: tuple[int, ...]
    match: float
    price: float
    stars: float
    gap: float
    sale: float
    style: float
    new: float
    cheap: bool
    decoy: float


VARIANTS: dict[str, Variant] = {
    # A category, colour or brand, in a price level: gaps of stars mean nothing.
    "intent": Variant((0, 1, 2), 5.0, 4.0, 0.4, 0.0, 0.0, 0.0, 0.0, False, 0.8),
    # Cheap for its category and good for this session: products without stars are avoided.
    "bargain": Variant((0,), 2.5, 6.0, 2.0, -2.0, 0.8, 0.0, 0.0, True, 0.6),
    # Brands of a style, in a colour; who visits when tells the style.
    "taste": Variant((1,), 3.0, 1.0, 0.4, 0.0, 0.0, 3.5, 2.5, False, 0.6),
}


@final
@dataclass(frozen=True, eq=False)
class Shop:
    """A table to learn from and one to test on, with one row for each offer, sessions adjacent.

    Attributes:
        train: Sessions to learn from and to validate on.
        test: Other sessions with products of the same catalogue.
        worth: The hidden worth of each offer in both, without the noise of the choice.
        fits: Whether each offer in both fits the hidden intent.
    """

    train: Frame
    test: Frame
    worth: tuple[np.ndarray, np.ndarray]
    fits: tuple[np.ndarray, np.ndarray]


def draw_shop(variant: str, *, seed: int, n_train: int = 240, n_test: int = 200) -> Shop:
    """Return the tables of a seed."""
    import pandas

    rng = np.random.default_rng([seed, list(VARIANTS).index(variant)])
    catalogue, count = draw_catalogue(rng), n_train + n_test
    kind = VARIANTS[variant]
    visit = _draw_visits(rng, count, catalogue.n_styles)
    fits, offered = _draw_offers(rng, catalogue, kind, visit.style if kind.style else None, count)
    session, product = np.nonzero(offered)
    # Products of a session in random order.
    order = np.lexsort((rng.random(len(session)), session))
    session, product = session[order], product[order]
    frame = pandas.DataFrame(
        {
            SESSION: [f"s{number:04d}" for number in session],
            OFFER: [f"o{number:06d}" for number in rng.permutation(len(session))],
            **{name: column[product] for name, column in catalogue.columns().items()},
            "stock": rng.integers(0, 500, len(session)),
            "device": np.array(DEVICES)[visit.device[session]],
            "visited": visit.time[session].astype("datetime64[s]"),
            "budget": visit.budget[session].round(),
        }
    )
    match = fits[session, product]
    worth = _worth(frame, kind, match, catalogue.style[product] == visit.style[session], visit.level[session])
    frame[BOUGHT] = _choose(rng, worth, session)
    known = session < n_train
    train, test = (frame[rows].reset_index(drop=True) for rows in (known, ~known))
    return Shop(train, test, (worth[known], worth[~known]), (match[known], match[~known]))


def session_sizes(frame: Frame) -> np.ndarray:
    """Return the number of items of each session, in the order of the table."""
    return frame.groupby(SESSION, sort=False).size().to_numpy()


def split_sessions(frame: Frame, share: float, seed: int) -> tuple[Frame, Frame]:
    """Return the rows to learn from, and a random share of the sessions to validate on."""
    names = np.random.default_rng([seed, 1]).permutation(frame[SESSION].unique())
    held_out = frame[SESSION].isin(names[: round(share * len(names))])
    return frame[~held_out].reset_index(drop=True), frame[held_out].reset_index(drop=True)


@final
@dataclass(frozen=True, eq=False)
class _Visits:
    """Facts of each session, and what is hidden: the style and the price level it wants."""

    device: np.ndarray
    time: np.ndarray
    budget: np.ndarray
    style: np.ndarray
    level: np.ndarray


def _draw_visits(rng: np.random.Generator, count: int, n_styles: int) -> _Visits:
    device = rng.integers(0, len(DEVICES), count)
    time = _FIRST_VISIT + rng.integers(0, _MINUTES, count).astype("timedelta64[m]")
    is_weekend = (time.astype("datetime64[D]").astype(np.int64) + 3) % 7 >= 5
    # Three of four sessions follow the style that their device and day suggest.
    usual = rng.permutation(2 * len(DEVICES))[2 * device + is_weekend] % n_styles
    style = np.where(rng.random(count) < 0.75, usual, rng.integers(0, n_styles, count))
    level = rng.random(count)
    budget = np.exp(3.5 + 2 * level + 0.2 * rng.normal(size=count))
    return _Visits(device, time, budget, style, level)


def _draw_offers(
    rng: np.random.Generator, catalogue: Catalogue, variant: Variant, style: np.ndarray | None, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return which products fit the intent of each session, and which are offered: both `(sessions, products)`."""
    attributes = np.stack([catalogue.category, catalogue.colour, catalogue.brand])

    def draw_intents(kinds: tuple[int, ...]) -> np.ndarray:
        kind = rng.choice(kinds, count)
        values = rng.integers(0, np.array([len(names) for names in _KINDS])[kind])
        return attributes[kind] == values[:, None]

    fits, decoys = draw_intents(variant.kinds), draw_intents((0, 1, 2))
    share = rng.uniform(0.25, 0.45, count)
    wrong = share * rng.uniform(0, variant.decoy, count)
    weights = np.where(fits, 0.0, 1.0)
    weights /= weights.sum(1, keepdims=True)
    for part, wanted in ((decoys & ~fits, wrong), (fits, share)):
        weights = (1 - wanted[:, None]) * weights + wanted[:, None] * part / np.maximum(part.sum(1, keepdims=True), 1)
    if style is not None:
        weights = weights * np.where(catalogue.style == style[:, None], 1.5, 1.0)
    # The largest of these keys are a draw without replacement by the weights.
    keys = np.log(np.maximum(weights, 1e-9)) + rng.gumbel(size=weights.shape)
    places = (-keys).argsort(1).argsort(1)
    return fits, places < rng.integers(_FEWEST, _MOST + 1, count)[:, None]


def _worth(frame: Frame, variant: Variant, match: np.ndarray, in_style: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Return the worth of each offer, up to the noise."""
    place = ranks(frame, "price", [SESSION, "category"])
    stars = (frame.stars - frame.groupby(SESSION).stars.transform("mean")).fillna(variant.gap / variant.stars)
    newness = ranks(frame, "listed", [SESSION]) * (frame.device == DEVICES[1])
    far = (place - (0.0 if variant.cheap else level)).abs()
    return (
        variant.match * match
        - variant.price * far.to_numpy()
        + variant.stars * stars.to_numpy()
        + variant.sale * frame.sale.to_numpy()
        + variant.style * in_style
        + variant.new * newness.to_numpy()
    )


def ranks(frame: Frame, column: str, groups: list[str]) -> Frame:
    """Return the rank of each row within its group, from 0 to 1; 1/2 where it is alone, missing where the value is."""
    grouped = frame.groupby(groups)[column]
    others = grouped.transform("count") - 1
    # A group of one has rank 0 of 0 others.
    return ((grouped.rank() - 1) / others.where(others > 0)).where((others > 0) | frame[column].isna(), 0.5)


def _choose(rng: np.random.Generator, worth: np.ndarray, session: np.ndarray) -> np.ndarray:
    """Return what was bought: the best by worth and noise, more where more offers are nearly the best."""
    starts = np.flatnonzero(np.r_[True, session[1:] != session[:-1]])
    lengths = np.diff(np.r_[starts, len(session)])
    best = np.repeat(np.maximum.reduceat(worth, starts), lengths)
    good = np.add.reduceat((worth > best - 1.5).astype(np.int64), starts)
    counts = rng.binomial(good, _SHARE_BOUGHT).clip(1, _MOST_BOUGHT)
    noisy = worth + 0.35 * rng.gumbel(size=len(worth))
    order = np.lexsort((-noisy, session))
    place = np.empty(len(worth), np.int64)
    place[order] = np.arange(len(worth)) - np.repeat(starts, lengths)
    return place < np.repeat(counts, lengths)
