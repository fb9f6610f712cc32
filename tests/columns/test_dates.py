"""Dates and times against Python's own."""

import datetime as dt
import math
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from setgrad.columns._column import TrainingColumn
from setgrad.columns._kinds import KINDS
from setgrad.columns._values import DAY_FORMATS, find_day_format, read_days
from setgrad.errors import DataError
from setgrad.sets._ids import read_ids
from tests.columns.tables import column_of, fit_kind, numbers_of

EPOCH = dt.datetime(1970, 1, 1)
TIMES = st.datetimes(dt.datetime(1800, 1, 1), dt.datetime(2200, 1, 1))


def days_by_hand(time: dt.datetime | None) -> float:
    return math.nan if time is None else (time - EPOCH) // dt.timedelta(microseconds=1) / 86_400_000_000


@given(st.lists(st.one_of(st.none(), TIMES), min_size=1))
def test_times_are_days_since_1970(times):
    expected = [days_by_hand(time) for time in times]
    texts = [None if time is None else time.isoformat(" ") for time in times]
    for column in (
        column_of(pa.array(times, pa.timestamp("us"))),
        column_of(pa.array(times, pa.timestamp("ns"))),
        column_of(pa.array(texts, pa.string())),
        column_of(pa.array([text and text.replace(" ", "T") for text in texts], pa.string())),
    ):
        np.testing.assert_array_equal(read_days(column, ""), expected)


@given(st.lists(st.dates(dt.date(1000, 1, 1), dt.date(9000, 1, 1)), min_size=1))
def test_days_are_read_in_each_format(days):
    expected = [(day - EPOCH.date()).days for day in days]
    assert read_days(column_of(days), "").tolist() == expected
    assert read_days(column_of([str(day) for day in days]), "").tolist() == expected
    for day_format in DAY_FORMATS:
        texts = column_of([day.strftime(day_format) for day in days])
        assert read_days(texts, day_format).tolist() == expected
        found = find_day_format(texts)
        # 03/04/2024 is read as the third of April only if another day of the column says so.
        assert found == day_format or (day_format == "%d/%m/%Y" and all(day.day <= 12 for day in days))


def test_days_of_one_digit_and_times_are_read_in_each_format():
    texts = {
        "%d.%m.%Y": ["1.2.2024", "01.02.2024 06:00", "1.2.2024 06:00:00.5"],
        "%Y/%m/%d": ["2024/2/1", "2024/02/01 06:00", "2024/2/1 06:00:00.5"],
        "%m/%d/%Y": ["2/1/2024", "02/01/2024 06:00", "2/1/2024 06:00:00.5"],
        "%d/%m/%Y": ["1/2/2024", "01/02/2024 06:00", "1/2/2024 06:00:00.5"],
        "": ["2024-02-01", "2024-02-01 06:00", "2024-02-01T06:00:00.5"],
    }
    day = dt.datetime(2024, 2, 1)
    times = [day, day + dt.timedelta(hours=6), day + dt.timedelta(hours=6, milliseconds=500)]
    for day_format, written in texts.items():
        assert read_days(column_of(written), day_format).tolist() == [days_by_hand(time) for time in times]
        # The standard way is understood beside each other one.
        assert read_days(column_of(texts[""]), day_format).tolist() == [days_by_hand(time) for time in times]


def test_a_time_zone_gives_the_local_time():
    local = [dt.datetime(2024, 1, 1, 10), dt.datetime(2024, 7, 1, 10), None]
    zoned = pd.Series(local).dt.tz_localize("Europe/Berlin")
    expected = [days_by_hand(time) for time in local]
    texts = ["2024-01-01 10:00:00+01:00", "2024-07-01T10:00:00+0200", ""]
    utc = ["2024-01-01T10:00Z", "2024-07-01 10:00:00.000000Z", ""]
    for column in (column_of(pa.array(zoned)), column_of(texts), column_of(utc)):
        np.testing.assert_array_equal(read_days(column, ""), expected)


def test_nanoseconds_are_cut_to_microseconds():
    nanoseconds = pa.array([1_700_000_000_123_456_789], pa.int64()).cast(pa.timestamp("ns"))
    expected = [1_700_000_000_123_456 / 86_400_000_000]
    assert read_days(column_of(nanoseconds), "").tolist() == expected
    assert read_days(column_of(nanoseconds.cast(pa.string())), "").tolist() == expected


WRONG: dict[str, tuple[Any, str, str]] = {
    "number": ([7], "", r"row 1 .*: 7 is not a date but int64"),
    "text": (["2024-01-01", "soon"], "", r"row 2 .*'soon' is not a date as 2024-12-31; write it so"),
    "other format": (["31.12.2024", "2024/12/30"], "%d.%m.%Y", r"row 2 .* is not a date as 31.12.2024"),
    "no day": (["12/31/2024", "31/12/2024"], "%m/%d/%Y", r"row 2 .*'31/12/2024' is not a date as 12/31/2024"),
    "no such day": (["30.02.2024"], "%d.%m.%Y", r"row 1 .*'30.02.2024' is not a date"),
    "two digits": (["31.12.2024", "31.12.24"], "%d.%m.%Y", r"row 2 .*'31.12.24' is not a date"),
}


@pytest.mark.parametrize("name", WRONG)
def test_values_that_are_no_dates_are_named(name):
    values, day_format, message = WRONG[name]
    with pytest.raises(DataError, match=message):
        read_days(column_of(values), day_format)


def test_times_that_python_does_not_have_are_named():
    lost = column_of([2**62, 0], pa.timestamp("s"))
    with pytest.raises(DataError, match=r"row 1 .*'4611686018427387904 in timestamp\[s\]' is not a number but"):
        fit_kind("number", lost)
    zoned = column_of([0, 1], pa.timestamp("s", "Nowhere/X"))
    with pytest.raises(DataError, match="the time zone 'Nowhere/X' is not known here; write times of UTC"):
        fit_kind("date", zoned)
    with pytest.raises(DataError, match="cannot be read as text; leave the column out"):
        fit_kind("category", zoned)
    for ids in (lost, zoned):
        with pytest.raises(DataError, match=r"Python has no such timestamp.*; an id must be a number or a text"):
            read_ids(ids)


def test_numbers_of_a_date_are_days_and_cycles():
    times = [dt.datetime(2024, 1, 1), dt.datetime(2024, 6, 5, 18), None, dt.datetime(2025, 3, 1, 6)]
    block = numbers_of("date", times)
    assert block.shape == (4, 2 + 6 + 1)
    expected = [0.0, (times[1] - times[0]) / dt.timedelta(1), None, (times[3] - times[0]) / dt.timedelta(1)]
    expected[2] = expected[1]  # the median of the others
    assert block[:, 0] == pytest.approx(expected)
    assert block[:, 1].tolist() == [0, 0, 1, 0]
    for row, time in enumerate(times):
        turns = [0.0] * 6
        if time is not None:
            # 1970-01-01 was a Thursday, the fourth day of a week.
            days = days_by_hand(time) + 3
            angles = [2 * math.pi * days / period for period in (365.2425, 7.0, 1.0)]
            turns = [*map(math.sin, angles), *map(math.cos, angles)]
        assert block[row, 2:-1] == pytest.approx(turns, abs=1e-9)
        assert block[row, -1] == (0 if time is None else time.isoweekday())


@pytest.mark.parametrize("context", [True, False])
def test_the_weekday_of_a_set_is_a_code_and_that_of_an_item_a_number(context):
    times = [dt.datetime(1969, 12, 29), dt.datetime(2024, 1, 7, 23), None, dt.datetime(2024, 1, 8)]
    column = column_of(times, pa.timestamp("us"))
    fitted = KINDS["date"].fit("x", TrainingColumn([column], np.arange(4), context))
    numbers, weekday = fitted.parts
    assert numbers.width == 2 + 6 and (weekday.width, weekday.codes) == (1, 8 if context else 0)
    assert numbers.context == weekday.context == context
    # Monday, Sunday, none, Monday.
    assert fitted.encode([column])[:, -1].tolist() == [1, 7, 0, 1]


def test_only_cycles_that_training_tells_apart_are_used():
    day = dt.datetime(2024, 1, 1)
    periods = {
        "one day": ([day, day], ()),
        "a week": ([day, day + dt.timedelta(3)], (7.0,)),
        "hours": ([day, day + dt.timedelta(hours=3)], (1.0,)),
        "a year": ([day, day + dt.timedelta(200)], (365.2425, 7.0)),
        "none": ([None, None], ()),
    }
    for values, expected in periods.values():
        fitted: Any = fit_kind("date", column_of(values, pa.timestamp("us")))
        assert fitted.periods == expected and fitted.width == 1 + fitted.flag + 2 * len(expected) + (7.0 in expected)


def test_a_gap_that_training_did_not_have_is_the_median():
    fitted = fit_kind("date", column_of(["2024-01-01", "2024-01-11", "2024-01-03"]))
    for new in (column_of(["", "2024-01-02"]), column_of([None, dt.date(2024, 1, 2)])):
        assert fitted.encode([new])[:, 0].tolist() == [2.0, 1.0]
        assert fitted.count_new_gaps([new]) == 1
    assert fitted.encode([column_of([None, None])])[:, 0].tolist() == [2.0, 2.0]
