"""Values of a column as numbers, truth values, keys or days, whatever type they are stored in.

Gaps are values too: a missing value, NaN, and the usual spellings of them in text. The same values in another type, as
a CSV file has them, give the same result. Imported only when a table is read, so PyArrow may be imported at the top.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from setgrad.sets._columns import Column, check_exact, check_exact_texts, find_invalid, is_text

# Spellings of a missing value in lower case, as pandas and spreadsheets write them.
_MISSING = ("", "na", "n/a", "#n/a", "nan", "-nan", "null", "none", "<na>", "nat", "-", "?")
_TRUE, _FALSE = ("true", "t", "yes", "y", "1", "on"), ("false", "f", "no", "n", "0", "off")
_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
# The zone after a time of day.
_ZONE = r"(\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?)\s*(?:Z|[-+]\d{2}(?::?\d{2})?)$"
_MICROSECONDS_A_DAY = 86_400_000_000
# So many texts tell whether it is worth to try all.
_FEW_TEXTS = 10
# Ways to write a day that can be told from each other, beside the standard one.
_STANDARD = {
    "%d.%m.%Y": (r"^(\d{2})\.(\d{2})\.(\d{4})", r"\3-\2-\1"),
    "%Y/%m/%d": (r"^(\d{4})/(\d{2})/(\d{2})", r"\1-\2-\3"),
    "%m/%d/%Y": (r"^(\d{2})/(\d{2})/(\d{4})", r"\3-\1-\2"),
    "%d/%m/%Y": (r"^(\d{2})/(\d{2})/(\d{4})", r"\3-\2-\1"),
}
DAY_FORMATS = tuple(_STANDARD)
# A day or a month of one digit.
_SHORT, _SHORT_LAST = r"\b(\d)([./])", r"^(\d{4}/\d{2}/)(\d)\b"


def as_texts(column: Column) -> pa.Array:
    """Return the values as texts without spaces around them; gaps are null."""
    try:
        return _as_texts(column.array)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise column.error(0, f"{column.array.type} cannot be read as text; leave the column out") from None


def _as_texts(array: pa.Array) -> pa.Array:
    dtype = array.type
    if types.is_boolean(dtype):
        return array.cast(pa.large_string())
    if types.is_floating(dtype):
        # 3.0 is the 3 of another file, and -0.0 is 0.
        values = array.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0
        return pa.array(values, mask=np.isnan(values)).cast(pa.large_string())
    if types.is_decimal(dtype):
        # Without trailing zeros; through text, because decimals have more digits than a number.
        return pc.replace_substring_regex(array.cast(pa.large_string()), r"(\.\d*?)0+$", r"\1").cast(pa.large_string())
    if types.is_timestamp(dtype):
        # The same text for a day, whatever the unit.
        return pc.replace_substring_regex(array.cast(pa.large_string()), r"( 00:00:00)?(\.0+)?$", "")
    texts = pc.utf8_trim_whitespace(array.cast(pa.large_string()))
    return pc.if_else(_is_gap(texts), pa.scalar(None, pa.large_string()), texts)


def encode_keys(column: Column) -> tuple[np.ndarray, pa.Array]:
    """Return for each row the number of its key, -1 for a gap, and the keys: texts by which equal values are found.

    A number is the same key as its text: 3.0, "3" and "3.0" are one, and so are true and "True".
    """
    try:
        encoded = column.array.dictionary_encode()
    except pa.ArrowNotImplementedError:
        raise column.error(0, f"{column.array.type} cannot be read as text; leave the column out") from None
    texts = as_texts(replace(column, array=encoded.dictionary))
    for pattern, replacement in ((r"^(-?\d+)\.0?$", r"\1"), ("^-0$", "0"), ("^True$", "true"), ("^False$", "false")):
        texts = pc.replace_substring_regex(texts, pattern, replacement)
    keys = texts.dictionary_encode()
    numbers = keys.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    rows = encoded.indices.fill_null(len(numbers)).to_numpy(zero_copy_only=False)
    return np.append(numbers, -1)[rows], keys.dictionary


def _is_gap(texts: pa.Array) -> pa.Array:
    lowered = pc.utf8_lower(texts)
    return pc.fill_null(pc.is_in(lowered, value_set=pa.array(_MISSING, pa.large_string())), True)


def count_gaps(column: Column) -> int:
    """Return the number of missing values."""
    array = column.array
    if is_text(array.type):
        array = as_texts(column)
    nan = pc.sum(pc.is_nan(array)).as_py() or 0 if types.is_floating(array.type) else 0
    return int(array.null_count + nan)


def read_quantities(column: Column) -> np.ndarray:
    """Return the values as float64, durations and times of day in seconds; gaps are NaN.

    Raises:
        DataError: If a value is not a finite number, or a whole number that float64 does not hold exactly.
    """
    array, dtype = column.array, column.array.type
    if types.is_boolean(dtype):
        array = array.cast(pa.int8())
    elif is_text(dtype):
        array = _parse_numbers(column)
    elif types.is_duration(dtype) or types.is_time(dtype):
        # In seconds, because libraries and files have different units.
        ticks = array.cast(pa.int64() if dtype.bit_width == 64 else pa.int32()).cast(pa.float64(), safe=False)
        array = pc.divide(ticks, _PER_SECOND[dtype.unit])
    elif types.is_decimal(dtype):
        # Through text: a direct cast does not give the nearest number, which a CSV file gives.
        array = _parse_numbers(replace(column, array=as_texts(column)))
    elif not (types.is_integer(dtype) or types.is_floating(dtype) or types.is_null(dtype)):
        raise column.error(
            0, f"{column.value(0)!r} is not a number but {dtype}; leave the column out, or name its kind"
        )
    if types.is_integer(array.type):
        check_exact(column, array.fill_null(0).to_numpy(zero_copy_only=False))
    values = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    infinite = np.isinf(values)
    if infinite.any():
        first = int(infinite.argmax())
        raise column.error(first, f"{values[first]} is not finite; correct it, or leave the value out")
    return values


def _parse_numbers(column: Column) -> pa.Array:
    texts = as_texts(column)
    try:
        numbers = texts.cast(pa.float64())
    except pa.ArrowInvalid:
        position = find_invalid(texts, lambda part: part.cast(pa.float64()))
        has_comma = pc.match_substring_regex(texts[position : position + 1], r"^[-+]?\d+(,\d+)+$")[0].as_py()
        remedy = 'write it without a comma (pandas: decimal="," or thousands=",")' if has_comma else "correct it"
        raise column.error(
            position, f"{column.value(position)!r} is not a number; {remedy}, or name another kind of column"
        ) from None
    return check_exact_texts(column, texts, numbers)


def read_truth(column: Column) -> np.ndarray:
    """Return truth values as 1 and 0, NaN for gaps: booleans, 0 / 1, or yes / no, true / false, on / off as text.

    Raises:
        DataError: If a value is neither true nor false.
    """
    rows, keys = encode_keys(column)
    known = pa.array(_FALSE + _TRUE, pa.large_string())
    codes = pc.fill_null(pc.index_in(pc.utf8_lower(keys), value_set=known), -1).to_numpy(zero_copy_only=False)
    if (codes < 0).any():
        first = int((rows == int((codes < 0).argmax())).argmax())
        raise column.error(first, f"{column.value(first)!r} is neither true nor false; name another kind of column")
    truth: np.ndarray = np.append(np.where(codes >= len(_FALSE), 1.0, 0.0), np.nan)[rows]
    return truth


def read_days(column: Column, day_format: str) -> np.ndarray:
    """Return dates and times as days since 1970, local time where there is a time zone; gaps are NaN.

    Texts may also write a day in the standard way, 2024-12-31, and a time after it.

    Args:
        column: Dates, times stamps, or texts.
        day_format: How texts write a day, one of `DAY_FORMATS`; empty for the standard way alone.

    Raises:
        DataError: If a value is not a date.
    """
    array, dtype = column.array, column.array.type
    if is_text(dtype):
        array = _parse_days(column, day_format)
    elif types.is_timestamp(dtype):
        try:
            array = (pc.local_timestamp(array) if dtype.tz else array).cast(pa.timestamp("us"), safe=False)
        except pa.ArrowInvalid:
            raise column.error(0, f"the time zone {dtype.tz!r} is not known here; write times of UTC") from None
    elif types.is_date(dtype) or types.is_null(dtype):
        array = array.cast(pa.timestamp("us"))
    else:
        raise column.error(0, f"{column.value(0)!r} is not a date but {dtype}; name another kind of column")
    missing = array.is_null().to_numpy(zero_copy_only=False)
    microseconds = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return np.where(missing, np.nan, microseconds / _MICROSECONDS_A_DAY)


def _parse_days(column: Column, day_format: str) -> pa.Array:
    texts = as_texts(column)
    try:
        return _days_of_texts(texts, day_format)
    except pa.ArrowInvalid:
        position = find_invalid(texts, lambda part: _days_of_texts(part, day_format))
        example = datetime(2024, 12, 31).strftime(day_format) if day_format else "2024-12-31"
        raise column.error(
            position, f"{column.value(position)!r} is not a date as {example}; write it so, or name another kind"
        ) from None


def _days_of_texts(texts: pa.Array, day_format: str) -> pa.Array:
    if day_format:
        # Rewritten in the standard way, whose parser knows how many days a month has.
        pattern, standard = _STANDARD[day_format]
        for before, after in ((_SHORT, r"0\1\2"), (_SHORT_LAST, r"\10\2"), (pattern, standard)):
            texts = pc.replace_substring_regex(texts, before, after)
    local = pc.replace_substring_regex(texts, _ZONE, r"\1")
    try:
        return local.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        # With digits below a microsecond.
        return local.cast(pa.timestamp("ns")).cast(pa.timestamp("us"), safe=False)


def find_day_format(column: Column) -> str | None:
    """Return how the texts of a column write days, empty for the standard way; None if they are no dates."""
    texts = as_texts(column)
    for day_format in ("", *DAY_FORMATS):
        try:
            # A few first, which tells most texts from dates.
            _days_of_texts(texts[:_FEW_TEXTS], day_format)
            _days_of_texts(texts, day_format)
        except pa.ArrowInvalid:
            continue
        return day_format
    return None
