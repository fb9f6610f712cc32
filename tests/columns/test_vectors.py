"""Vectors: lists, fixed-size lists, and numbered columns."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from setgrad.errors import DataError
from tests.columns.tables import column_of, fit_kind, fit_table, numbers_of, read_items

ROWS = [[1.0, 2.5], None, [-3.0, 0.25], [0.0, 4.0]]
FILLED = [[1.0, 2.5], [0.0, 0.0], [-3.0, 0.25], [0.0, 4.0]]


@pytest.mark.parametrize(
    "dtype",
    [
        pa.list_(pa.float64()),
        pa.large_list(pa.float32()),
        pa.list_(pa.float32(), 2),
        pa.list_(pa.float16()),
        pa.list_(pa.decimal128(6, 2)),
    ],
    ids=str,
)
def test_lists_of_every_type(dtype):
    values: Any = ROWS
    if pa.types.is_decimal(dtype.value_type):
        values = pa.array([None if row is None else [str(part) for part in row] for row in ROWS])
        values = values.cast(dtype)
    array = values if isinstance(values, pa.Array) else pa.array(values, dtype)
    assert numbers_of("vector", array).tolist() == FILLED
    # A slice has an offset.
    assert fit_kind("vector", column_of(array)).encode([column_of(array[2:])]).tolist() == FILLED[2:]


def test_missing_and_empty_lists_are_zero():
    fitted = fit_kind("vector", column_of(ROWS))
    assert fitted.encode([column_of([[], None], pa.list_(pa.float64()))]).tolist() == [[0.0, 0.0]] * 2
    assert fitted.encode([column_of([None, None])]).tolist() == [[0.0, 0.0]] * 2
    assert fit_kind("vector", column_of([None], pa.list_(pa.float64()))).width == 1


WRONG: dict[str, tuple[Any, str]] = {
    "length": ([[1.0, 2.0], [1.0]], r"row 2 .*the list has 1 numbers, others have 2; make them equal"),
    "gap inside": ([[1.0, 2.0], None, [1.0, None]], r"row 3 .*holds a number that is missing or not finite"),
    "infinite": ([[1.0, float("inf")]], r"row 1 .*not finite"),
    "texts": ([["a", "b"]], r"row 1 .*the lists hold string, not numbers"),
    "numbers": ([1.0], r"row 1 .*1.0 is not a list of numbers but double"),
}


@pytest.mark.parametrize("name", WRONG)
def test_lists_that_are_no_vectors_are_named(name):
    values, message = WRONG[name]
    with pytest.raises(DataError, match=message):
        fit_kind("vector", column_of(ROWS)).encode([column_of(values)])


def test_numbered_columns_are_one_vector():
    numbers = np.random.default_rng(0).normal(size=(12, 9))
    table = {"s": np.repeat([0, 1, 2], 4), **{f"x{column}": numbers[:, column] for column in range(9)}}
    columns, description = fit_table(pa.table({**table, "other": np.arange(12.0) ** 2}))
    assert [type(column).__name__ for column in columns.columns] == ["VectorColumn", "NumberColumn"]
    assert columns.names == (*(f"x{column}" for column in range(9)), "other")
    assert [summary.name for summary in description.columns][1:] == ["x0 ... x8", "other"]
    assert read_items(pa.table({**table, "other": np.arange(12.0)}), columns)[:, :9].tolist() == numbers.tolist()
    # Columns with a kind of their own, and few columns, are numbers.
    columns, _ = fit_table(pa.table(table), columns={"x4": "number"})
    assert [type(column).__name__ for column in columns.columns] == ["NumberColumn"] * 9


def test_a_gap_in_a_numbered_column_is_zero():
    numbers = np.random.default_rng(0).normal(size=(6, 8))
    numbers[2, 3] = np.nan
    table = pa.table({"s": [0, 0, 0, 1, 1, 1], **{f"x{column}": numbers[:, column] for column in range(8)}})
    columns, _ = fit_table(table)
    assert read_items(table, columns).tolist() == np.nan_to_num(numbers).tolist()
