"""Numbers and truth values against pandas and plain Python."""

import datetime as dt
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from setgrad.columns._values import read_quantities, read_truth
from setgrad.errors import DataError
from tests.columns.tables import column_of, fit_kind, numbers_of

SPELLINGS = ["", " ", "NA", "n/a", "N/A", "#N/A", "nan", "NaN", "-nan", "null", "NULL", "None", "<NA>", "NaT", "-", "?"]


@pytest.mark.parametrize("gap", SPELLINGS)
def test_every_spelling_of_a_gap_is_one(gap):
    assert np.isnan(read_quantities(column_of(["1", gap, "2.5"]))).tolist() == [False, True, False]
    assert np.isnan(read_truth(column_of(["yes", gap, "no"]))).tolist() == [False, True, False]


TYPES: dict[str, tuple[Any, list[float]]] = {
    "int8": (pa.array([1, None, -3], pa.int8()), [1, np.nan, -3]),
    "uint64": (pa.array([1, None, 2**53], pa.uint64()), [1, np.nan, 2.0**53]),
    "half": (pa.array(np.array([1, np.nan, 0.5], np.float16)), [1, np.nan, 0.5]),
    "single": (pa.array([0.5, None, float("nan")], pa.float32()), [0.5, np.nan, np.nan]),
    "boolean": (pa.array([True, None, False]), [1, np.nan, 0]),
    "null": (pa.array([None, None, None]), [np.nan, np.nan, np.nan]),
    "text": (pa.array([" 1 ", "1e3", "-.5"]), [1, 1000, -0.5]),
    "text view": (pa.array(["1", None, "2"], pa.string_view()), [1, np.nan, 2]),
    "dictionary": (pa.array([1.5, None, 2.5]).dictionary_encode(), [1.5, np.nan, 2.5]),
    "runs": (pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([1.5, 2.5])), [1.5, 1.5, 2.5]),
    "duration": (pa.array([dt.timedelta(hours=1), None, dt.timedelta(milliseconds=1)]), [3600, np.nan, 0.001]),
    "time": (pa.array([dt.time(0, 1), None, dt.time(23, 59, 59, 500_000)]), [60, np.nan, 86399.5]),
}


@pytest.mark.parametrize("name", TYPES)
def test_quantities_of_every_type(name):
    array, expected = TYPES[name]
    np.testing.assert_array_equal(read_quantities(column_of(array)), expected)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_durations_are_seconds_in_every_unit(unit):
    days = pa.array([0, 1, 90], pa.int64()).cast(pa.duration("s"))
    values = read_quantities(column_of(pa.compute.multiply(days, 86_400).cast(pa.duration(unit))))
    assert values.tolist() == [0.0, 86_400.0, 90 * 86_400.0]


@given(st.lists(st.integers(-(10**12), 10**12), min_size=1), st.integers(0, 9))
def test_decimals_are_the_nearest_numbers(digits, scale):
    values = [Decimal(number).scaleb(-scale) for number in digits]
    read = read_quantities(column_of(pa.array(values, pa.decimal128(30, scale))))
    # Python rounds a fraction to the nearest number.
    assert read.tolist() == [float(Fraction(value)) for value in values]
    assert read.tolist() == read_quantities(column_of([str(value) for value in values])).tolist()


@pytest.mark.parametrize("whole", [2**53 + 1, -(2**53) - 1, 10**17])
@pytest.mark.parametrize("dtype", [pa.int64(), pa.string(), pa.decimal128(38, 0)])
def test_whole_numbers_that_would_lose_digits_are_refused(whole, dtype):
    values = [1, 2, whole]
    column = column_of([str(value) for value in values] if dtype == pa.string() else values, dtype)
    with pytest.raises(DataError, match=rf"column 'x', row 3 .*: {whole} has more digits than a number keeps; use it"):
        read_quantities(column)
    assert read_quantities(column_of([2**53, -(2**53)])).tolist() == [2.0**53, -(2.0**53)]
    assert read_quantities(column_of([str(2**53), "1e300"])).tolist() == [2.0**53, 1e300]


WRONG: dict[str, tuple[Any, str]] = {
    "text": (["1", "2", "many", "3"], r"row 3 .*'many' is not a number; correct it, or name another kind"),
    "infinite": ([1.0, float("inf")], r"row 2 .*inf is not finite"),
    "infinite text": (["1", "-inf"], r"row 2 .*-inf is not finite"),
    "list": ([[1.0], [2.0]], r"row 1 .*\[1.0\] is not a number but list"),
    "date": ([dt.date(2024, 1, 1)], r"row 1 .*is not a number but date32"),
}


@pytest.mark.parametrize("name", WRONG)
def test_values_that_are_no_numbers_are_named(name):
    values, message = WRONG[name]
    with pytest.raises(DataError, match=message):
        read_quantities(column_of(values))


@given(st.lists(st.one_of(st.none(), st.floats(-1e9, 1e9)), min_size=1))
def test_gaps_become_the_median_and_a_flag(values):
    known = pd.Series(values, dtype=float)
    expected = known.fillna(known.median() if known.notna().any() else 0.0)
    block = numbers_of("number", values, pa.float64())
    np.testing.assert_array_equal(block[:, 0], expected)
    assert block.shape[1] == 1 + known.isna().any()
    if known.isna().any():
        assert block[:, 1].tolist() == known.isna().tolist()


def test_a_gap_that_training_did_not_have_is_the_median():
    fitted = fit_kind("number", column_of([1.0, 2.0, 4.0]))
    new = column_of([5.0, None, float("nan")])
    assert fitted.encode([new]).tolist() == [[5.0], [2.0], [2.0]]
    assert fitted.count_new_gaps([new]) == 2
    assert fitted.count_new_gaps([column_of(["5", "n/a", ""])]) == 2
    assert fit_kind("number", new).count_new_gaps([new]) == 0


TRUTHS: list[list[Any]] = [
    [True, False, None],
    ["yes", "No", ""],
    ["TRUE", "false", "NA"],
    ["on", "off", None],
    ["t", "F", "?"],
    ["1", "0", ""],
    ["1.0", "0.0", ""],
    [1, 0, None],
    [1.0, -0.0, float("nan")],
]


@pytest.mark.parametrize("values", TRUTHS, ids=str)
def test_truth_values_in_every_spelling(values):
    assert numbers_of("boolean", values).tolist() == [[1.0, 0.0], [0.0, 0.0], [0.5, 1.0]]


def test_other_values_are_no_truth_values():
    fitted = fit_kind("boolean", column_of([True, False]))
    for values, row in ((["yes", "maybe"], 2), ([1, 0, 2], 3), ([0.5], 1)):
        with pytest.raises(DataError, match=rf"row {row} .* is neither true nor false"):
            fitted.encode([column_of(values)])
    assert fitted.encode([column_of([None, "yes"])]).tolist() == [[0.5], [1.0]]
    assert fitted.count_new_gaps([column_of([None, "yes"])]) == 1
