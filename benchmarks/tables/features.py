"""What an expert makes of a shop's table by hand: columns for trees, and one-hot arrays.

`raw` is the table with dates as numbers. `in_context` adds what an item is relative to its session. `one_hot` is what a
model of numbers alone needs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.tables.catalogue import BRANDS, CATEGORIES, COLOURS
from benchmarks.tables.shop import DEVICES, SESSION, Frame, ranks

# Columns of names, and the names in each.
CATEGORICAL: dict[str, Sequence[str]] = {"brand": BRANDS, "category": CATEGORIES, "colour": COLOURS, "device": DEVICES}
_NUMBERS = ("price", "stars", "stock", "age")
_FACTS = ("budget", "weekday", "hour")
_DAY = np.timedelta64(1, "D")


def raw(frame: Frame) -> Frame:
    """Return the columns with a meaning: numbers, dates as days, and texts as they are; no ids."""
    dates = {name: (frame[name] - np.datetime64("2024-01-01")) / _DAY for name in ("listed", "visited")}
    names = ["title", "brand", "category", "device", "price", "stars", "stock", "sale", "budget"]
    return frame[names].assign(**dates)


def as_categories(frame: Frame) -> Frame:
    """Return a frame with its texts as pandas categories; a title is none, and is left out."""
    names = {name: values for name, values in CATEGORICAL.items() if name in frame}
    codes = {name: frame[name].astype(_category_type(values)) for name, values in names.items()}
    return frame.drop(columns="title", errors="ignore").assign(**codes)


def parsed(frame: Frame) -> Frame:
    """Return the table with the colour of the title, the age of the offer, and weekday and hour of the visit."""
    colour = frame.title.str.lower().str.extract(rf"\b({'|'.join(COLOURS)})\b")[0]
    visited = frame.visited.dt
    age = (frame.visited - frame.listed) / _DAY
    return raw(frame).assign(colour=colour, age=age, weekday=visited.day_of_week, hour=visited.hour)


def in_context(frame: Frame) -> Frame:
    """Return the parsed columns, and what each item is among those offered in its session."""
    items = parsed(frame)
    items[SESSION] = frame[SESSION]
    grouped = items.groupby(SESSION)
    columns = {"size": grouped.price.transform("size")}
    for name in _NUMBERS:
        mean, deviation = grouped[name].transform("mean"), grouped[name].transform("std")
        columns[f"{name}_rank"] = ranks(items, name, [SESSION])
        columns[f"{name}_z"] = (items[name] - mean) / deviation.where(deviation > 0)
        columns[f"{name}_below_best"] = grouped[name].transform("max") - items[name]
        columns[f"{name}_above_least"] = items[name] - grouped[name].transform("min")
    for name in ("category", "brand", "colour"):
        count = items.groupby([SESSION, name]).price.transform("size")
        columns[f"{name}_share"] = count / columns["size"]
        columns[f"{name}_of_largest"] = count / count.groupby(items[SESSION]).transform("max")
        columns[f"price_rank_in_{name}"] = ranks(items, "price", [SESSION, name])
        columns[f"stars_rank_in_{name}"] = ranks(items, "stars", [SESSION, name])
    return items.drop(columns=SESSION).assign(**columns)


def numbers(frame: Frame) -> np.ndarray:
    """Return price, stars, stock and the session's budget, with the mean in the gaps."""
    columns = frame[["price", "stars", "stock", "budget"]]
    return columns.fillna(columns.mean()).to_numpy(np.float64)


def one_hot(frame: Frame) -> np.ndarray:
    """Return the parsed columns as numbers: texts as one column for each value, gaps as a column of their own."""
    items = parsed(frame)
    flags = [items[name].to_numpy()[:, None] == np.array(values) for name, values in CATEGORICAL.items()]
    missing = items.stars.isna().to_numpy()[:, None]
    # The logarithm, because prices and budgets are ratios.
    logs = np.log(items[["price", "budget"]].to_numpy() + 1)
    others = items[["stars", "stock", "age", "sale", "weekday", "hour"]].astype(np.float64)
    others = others.fillna({"stars": items.stars.mean()}).to_numpy()
    return np.concatenate([*flags, missing, logs, others], 1).astype(np.float64)


def with_set_means(columns: np.ndarray, sessions: np.ndarray) -> np.ndarray:
    """Return columns, their means over the session, and their products with these.

    The product of a flag with its mean is the share of offered items that are alike.
    """
    _, ids = np.unique(sessions, return_inverse=True)
    sums = np.zeros((ids.max() + 1, columns.shape[1]))
    np.add.at(sums, ids, columns)
    means = (sums / np.bincount(ids)[:, None])[ids]
    return np.concatenate([columns, means, columns * means], 1)


def _category_type(values: Sequence[str]) -> object:
    import pandas

    return pandas.CategoricalDtype(list(values))
