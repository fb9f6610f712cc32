"""Values of a column as numbers, truth values, keys or days, whatever type they are stored in.

Gaps are values too: a missing value, NaN, and the usual spellings of them in text. The same values in another type, as
a CSV file has them, give the same result. Imported only when a table is read, so PyArrow may be imported at the top.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from setgrad.errors import DataError
from setgrad.sets._columns import Column

# Spellings of a missing value in lower case, as pandas and spreadsheets write them.
_MISSING = ("", "na", "n/a", "#n/a", "nan", "-nan", "null", "none", "<na>", "nat", "-", "?")
_TRUE, _FALSE = ("true", "t", "yes", "y", "1", "on"), ("false", "f", "no", "n", "0", "off")
# Whole numbers beyond this are not exact as floating-point numbers.
_EXACT = 2**53
_MICROSECONDS_A_DAY = 86_400_000_000
# Ways to write a day that can be told from each other, beside the standard one.
DAY_FORMATS = ("%d.%m.%Y", "%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y")


def is_text(dtype: pa.DataType) -> bool:
    """Return whether values of this type are texts."""
    return bool(types.is_string(dtype) or types.is_large_string(dtype) or types.is_string_view(dtype))


def as_texts(column: Column) -> pa.Array:
    """Return the values as texts without spaces around them; gaps are null."""
    array, dtype = column.array, column.array.type
    if types.is_boolean(dtype):
        return array.cast(pa.large_string())
    if types.is_floating(dtype) or types.is_decimal(dtype):
        # 3.0 is the 3 of another file.
        values = read_quantities(column)
        texts = np.where(values == np.trunc(values), np.char.mod("%.0f", values), np.char.mod("%.17g", values))
        return pa.array(texts, pa.large_string(), mask=np.isnan(values))
    try:
        texts = pc.utf8_trim_whitespace(array.cast(pa.large_string()))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise column.error(0, f"{dtype} cannot be read as text; leave the column out") from None
    return pc.if_else(_is_gap(texts), pa.scalar(None, pa.large_string()), texts)


def _is_gap(texts: pa.Array) -> pa.Array:
    lowered = pc.utf8_lower(texts)
    return pc.fill_null(pc.is_in(lowered, value_set=pa.array(_MISSING, pa.large_string())), True)


def read_quantities(column: Column) -> np.ndarray:
    """Return the values as float64; gaps are NaN.

    Raises:
        DataError: If a value is not a finite number, or a whole number that float64 does not hold exactly.
    """
    array, dtype = column.array, column.array.type
    if types.is_boolean(dtype):
        array = array.cast(pa.int8())
    elif is_text(dtype):
        array = _parse_numbers(column)
    elif types.is_duration(dtype) or types.is_time(dtype):
        array = array.cast(pa.int64() if dtype.bit_width == 64 else pa.int32())
    elif types.is_decimal(dtype):
        array = array.cast(pa.float64())
    elif not (types.is_integer(dtype) or types.is_floating(dtype) or types.is_null(dtype)):
        raise column.error(
            0, f"{column.value(0)!r} is not a number but {dtype}; leave the column out, or name its kind"
        )
    if types.is_integer(array.type):
        whole = array.fill_null(0).to_numpy(zero_copy_only=False)
        large = (whole > _EXACT) | (whole < -_EXACT) if whole.dtype.itemsize == 8 else np.zeros(len(whole), bool)
        if large.any():
            first = int(large.argmax())
            raise column.error(
                first, f"{whole[first]} has more digits than a number keeps; use it as an id or category"
            )
    values = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    infinite = np.isinf(values)
    if infinite.any():
        first = int(infinite.argmax())
        raise column.error(first, f"{values[first]} is not finite; correct it, or leave the value out")
    return values


def _parse_numbers(column: Column) -> pa.Array:
    texts = as_texts(column)
    try:
        return texts.cast(pa.float64())
    except pa.ArrowInvalid:
        position = _first_invalid(texts)
        raise column.error(
            position, f"{column.value(position)!r} is not a number; correct it, or name another kind of column"
        ) from None


def _first_invalid(texts: pa.Array) -> int:
    # PyArrow does not say which value fails; bisection finds the first one with few casts.
    low, high = 0, len(texts)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            texts.slice(low, middle - low).cast(pa.float64())
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


def read_truth(column: Column) -> np.ndarray:
    """Return truth values as 1 and 0, NaN for gaps: booleans, 0 / 1, or yes / no, true / false, on / off as text.

    Raises:
        DataError: If a value is neither true nor false.
    """
    if types.is_boolean(column.array.type):
        return read_quantities(column)
    texts = pc.utf8_lower(as_texts(column))
    known = pa.array(_FALSE + _TRUE, pa.large_string())
    codes = pc.fill_null(pc.index_in(texts, value_set=known), -1).to_numpy(zero_copy_only=False)
    missing = texts.is_null().to_numpy(zero_copy_only=False)
    wrong = (codes < 0) & ~missing
    if wrong.any():
        first = int(wrong.argmax())
        raise column.error(first, f"{column.value(first)!r} is neither true nor false; name another kind of column")
    return np.where(missing, np.nan, codes >= len(_FALSE))


def read_days(column: Column, day_format: str) -> np.ndarray:
    """Return dates and times as days since 1970, local time where there is a time zone; gaps are NaN.

    Args:
        column: Dates, times stamps, or texts.
        day_format: How texts write a day, one of `DAY_FORMATS`; empty for the standard way, 2024-12-31 with or without
            a time.

    Raises:
        DataError: If a value is not a date.
    """
    array, dtype = column.array, column.array.type
    if is_text(dtype):
        array = _parse_days(column, day_format)
    elif types.is_timestamp(dtype):
        array = (pc.local_timestamp(array) if dtype.tz else array).cast(pa.timestamp("us"), safe=False)
    elif types.is_date(dtype):
        array = array.cast(pa.timestamp("us"))
    else:
        raise column.error(0, f"{column.value(0)!r} is not a date but {dtype}; name another kind of column")
    missing = array.is_null().to_numpy(zero_copy_only=False)
    microseconds = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return np.where(missing, np.nan, microseconds / _MICROSECONDS_A_DAY)


def _parse_days(column: Column, day_format: str) -> pa.Array:
    texts = as_texts(column)
    # In this order: without and with digits below a microsecond, without and with a time zone.
    kinds = [pa.timestamp(unit, zone) for zone in (None, "UTC") for unit in ("us", "ns")]
    error: pa.ArrowInvalid | None = None
    for kind in kinds[: 1 if day_format else None]:
        try:
            if day_format:
                return pc.strptime(texts.cast(pa.string()), format=day_format, unit="us")
            return texts.cast(kind).cast(pa.timestamp("us"), safe=False)
        except pa.ArrowInvalid as caught:
            error = caught
    raise DataError(f"{column.table}: column {column.name!r}: {error}; write dates as 2024-12-31, or name another kind")


def find_day_format(column: Column) -> str | None:
    """Return how the texts of a column write days, empty for the standard way; None if they are no dates."""
    for day_format in ("", *DAY_FORMATS):
        try:
            read_days(column, day_format)
        except DataError:
            continue
        return day_format
    return None
