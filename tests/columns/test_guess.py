"""Which kind a column is found to be."""

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from setgrad.columns._guess import guess_kind, look_at
from tests.columns.tables import column_of, fit_table

ROWS = 400
RNG = np.random.default_rng(0)
NUMBERS = RNG.normal(size=ROWS)
WHOLE = RNG.integers(0, 300, ROWS)
WORDS = ["lamp", "chair", "blue", "oak", "small", "with", "for", "garden"]
TITLES = [" ".join(RNG.choice(WORDS, 5)) for _ in range(ROWS)]
DAYS = [dt.date(2024, 1, 1) + dt.timedelta(int(day)) for day in WHOLE]


def few(*values: Any) -> list[Any]:
    return list(RNG.permutation(np.array((values * ROWS)[:ROWS], dtype=object)))


# The values, and the kind, or why the column is not used.
CASES: dict[str, tuple[Any, str]] = {
    "fractions": (NUMBERS, "number"),
    "fractions in text": ([f"{number:.3f}" for number in NUMBERS], "number"),
    "decimals": ([Decimal(f"{number:.2f}") for number in NUMBERS], "number"),
    "whole": (WHOLE, "number"),
    "whole with gaps, as pandas has them": (pd.Series(WHOLE).where(WHOLE > 9), "number"),
    "numbers with few errors": ([*(f"{number}" for number in NUMBERS[:-3]), "n.b.", "?", "??"], "number"),
    "durations": (pd.to_timedelta(WHOLE, unit="s"), "number"),
    "times": ([dt.time(int(number) % 24) for number in WHOLE], "number"),
    "booleans": (few(True, False), "boolean"),
    "zero and one": (few(0, 1), "boolean"),
    "zero and one with gaps": (few(0.0, 1.0, None), "boolean"),
    "zero and one in text, as pandas writes gaps": (few("0.0", "1.0", ""), "boolean"),
    "one or nothing": (few(1, None), "boolean"),
    "yes and no": (few("yes", "no", ""), "boolean"),
    "categories": (few("red", "green", "blue"), "category"),
    "dictionary of numbers": (pd.Categorical(few(17, 23, 42)), "category"),
    "versions": (few("1.2.3", "1.10.0", "2.0.1"), "category"),
    "mixed": (few("a", "1", "2.5"), "category"),
    "decimal commas": ([f"{number:.1f}".replace(".", ",") for number in NUMBERS], "numbers with a comma"),
    "thousands": ([f"{number:,}" for number in range(900, 900 + ROWS)], "numbers with a comma"),
    "few codes with commas": (few("1,2", "1,3", "2"), "category"),
    "titles": (TITLES, "text"),
    "days": (DAYS, "date"),
    "days in text": ([day.strftime("%d.%m.%Y") for day in DAYS], "date"),
    "days of the month last": ([day.strftime("%d/%m/%Y") for day in DAYS], "date"),
    "times of days": (pd.to_datetime(DAYS), "date"),
    "times with a zone": ([f"{day}T10:00:00+02:00" for day in DAYS], "date"),
    "lists": ([[1.0, 2.0]] * ROWS, "vector"),
    "fixed lists": (pa.array([[1, 2]] * ROWS, pa.list_(pa.int8(), 2)), "vector"),
    "lists of texts": ([["a"]] * ROWS, "is not a vector of numbers"),
    "structures": ([{"a": 1}] * ROWS, "has no kind"),
    "bytes": (few(b"a", b"b"), "has no kind"),
    "intervals": (pa.array([(1, 2, 3), (3, 2, 1)] * (ROWS // 2), pa.month_day_nano_interval()), "has no kind"),
    "maps": (pa.array([[("a", 1)]] * ROWS, pa.map_(pa.string(), pa.int8())), "has no kind"),
    "nothing": ([None] * ROWS, "has no values"),
    "only spellings of gaps": (few("", "NA", "-"), "has no values"),
    "one value": (["x"] * ROWS, "has one value only"),
    "counter": (np.arange(ROWS) + 17, "counts the rows"),
    "counter in text": ([str(number) for number in range(ROWS)], "counts the rows"),
    "long numbers": (RNG.integers(2**60, 2**61, ROWS), "more digits than a number keeps"),
    "long numbers in text": ([str(number) for number in RNG.integers(2**60, 2**61, ROWS)], "more digits than"),
    "uuids": ([str(uuid.UUID(int=number)) for number in range(ROWS)], "nearly every row has its own value"),
}
NAMED: dict[str, tuple[str, Any, str]] = {
    "number of a product": ("product_id", WHOLE, "looks like an id"),
    "number of a product with gaps": ("productId", pd.Series(WHOLE).where(WHOLE > 9), "looks like an id"),
    "number of a product in text": ("EAN", [str(number) for number in WHOLE], "looks like an id"),
    "number of a brand": ("brand_id", WHOLE % 9, "category"),
    "word with the ending": ("paid", WHOLE, "number"),
    "index": ("__index_level_0__", NUMBERS, "looks like the index"),
}


def check(name: str, values: Any, expected: str) -> None:
    column = column_of(values, name=name)
    guess = guess_kind(column, look_at(column))
    assert expected in (guess.reason if guess.kind == "ignore" else guess.kind)


@pytest.mark.parametrize("case", [name for name in CASES if "dictionary" not in name])
def test_kinds_are_found_from_values(case):
    check("x", *CASES[case])


@pytest.mark.parametrize("case", NAMED)
def test_kinds_are_found_from_names(case):
    check(*NAMED[case])


def test_all_kinds_are_found_in_one_table():
    sets = np.repeat(np.arange(ROWS // 4), 4)
    arrays = {name: values if isinstance(values, pa.Array) else pa.array(values) for name, (values, _) in CASES.items()}
    del arrays["numbers with few errors"]
    _, description = fit_table(pa.table({"s": sets, **arrays}))
    for summary in description.columns[1:]:
        expected = CASES[summary.name][1]
        assert expected in (summary.kind if summary.used else summary.use), summary.name


def test_gaps_and_different_values_are_counted():
    values = pd.Series(["a", None, "b", " a", "NA", ""])
    assert look_at(column_of(values)) == (3, 2, ("NA",))
    assert look_at(column_of([1.0, None, float("nan"), 2.0, 1.0])) == (2, 2, ())
    assert look_at(column_of([[1.0], None, [1.0]])) == (1, 2, ())


def test_what_the_user_says_is_done():
    table = pa.table({"s": np.repeat(np.arange(100), 4), "product_id": WHOLE, "brand": few("a", "b"), "size": WHOLE})
    kinds = {"size": "category", "brand": "text"}
    columns, description = fit_table(table, columns=kinds, embed=["product_id"])
    assert [type(column).__name__ for column in columns.columns] == ["IdColumn", "TextColumn", "CategoryColumn"]
    assert all(summary.use.startswith("as asked") for summary in description.columns[1:])
    columns, description = fit_table(table, columns={"brand": "ignore"})
    assert columns.names == ("size",)
    assert {summary.name: summary.use for summary in description.columns}["brand"] == "left out, as asked"
    assert [summary.name for summary in description.unused] == ["product_id"]
    # A column that is named as a feature is one.
    columns, _ = fit_table(table, features=["product_id"])
    assert [type(column).__name__ for column in columns.columns] == ["NumberColumn"]
