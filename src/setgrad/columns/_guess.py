"""Which kind a column is, if the user does not say it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from setgrad.columns._kinds import IGNORE
from setgrad.columns._values import as_texts, find_day_format, read_quantities, read_truth
from setgrad.errors import DataError
from setgrad.sets._columns import TOO_LONG, Column, is_index, is_text

# Last word of the name of an id.
_ID_NAME = re.compile(
    r"(?:^|[\W_])(?:ids?|uid|uuid|guid|key|pk|sku|ean|gtin|upc|asin|isbn|index|idx|nr|code)$", re.IGNORECASE
)
_CAMEL_ID_NAME = re.compile(r"[a-z](?:Id|ID)$")
# An id with few values that occur often, such as the number of a brand, is a category.
_FEW_VALUES, _OFTEN = 100, 20
# From so many different values of two words each, or of three, a column holds texts and not categories.
_TEXTS_OF_TWO, _TEXTS_OF_THREE = 200, 20
# Values of which nearly every row has its own describe nothing.
_NEARLY_ALL = 0.8
_LOOKS_LIKE_ID = "looks like an id"
_LONG_ID = f"{_LOOKS_LIKE_ID}: more digits than a number keeps"
_NUMBER = r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$"
# What other countries write. Whether the comma stands before decimals or thousands, only the whole file tells.
_COMMA_NUMBER = r"^[-+]?\d+(,\d+)*$"
_COMMAS = 'numbers with a comma, as text: convert them first, in pandas by decimal="," or thousands=","'
# A column of so many numbers holds numbers, and the others are errors.
_NEARLY_NUMBERS = 0.95


@final
class Guess(NamedTuple):
    """The kind of a column, and why it is that one or is not used."""

    kind: str
    reason: str = ""


@final
class Look(NamedTuple):
    """What was counted in a column: missing values, different ones, and how gaps are spelled."""

    missing: int
    distinct: int
    spelled: tuple[str, ...] = ()


def look_at(column: Column) -> Look:
    """Count the gaps and the different values of a column; lists count as different."""
    array = column.array
    if is_text(array.type):
        # Of the different texts, because many rows have the same.
        counted = array.value_counts()
        texts = as_texts(replace(column, array=counted.field(0)))
        gaps = pc.sum(counted.field(1).filter(texts.is_null())).as_py() or 0
        spelled = {text.strip() for text in counted.field(0).filter(texts.is_null()).to_pylist() if text}
        return Look(gaps, pc.count_distinct(texts).as_py(), tuple(sorted(spelled - {""})))
    if types.is_floating(array.type):
        array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    try:
        distinct = pc.count_distinct(array).as_py()
    except pa.ArrowNotImplementedError:
        distinct = len(array) - array.null_count
    return Look(array.null_count, distinct)


def guess_kind(column: Column, look: Look) -> Guess:
    """Return the kind of a column from its name, its type and its values."""
    dtype = column.array.type
    if is_index(column.name):
        return Guess(IGNORE, "looks like the index of a data frame")
    if types.is_list(dtype) or types.is_large_list(dtype) or types.is_fixed_size_list(dtype):
        return Guess("vector") if _is_number(dtype.value_type) else Guess(IGNORE, f"{dtype} is not a vector of numbers")
    if not look.distinct:
        return Guess(IGNORE, "has no values")
    if look.distinct == 1 and not look.missing:
        return Guess(IGNORE, "has one value only")
    if types.is_boolean(dtype):
        return Guess("boolean")
    if types.is_timestamp(dtype) or types.is_date(dtype):
        return Guess("date")
    if types.is_duration(dtype) or types.is_time(dtype):
        return Guess("number")
    if _is_number(dtype):
        return _guess_number(column, look)
    return _guess_text(column, look) if is_text(dtype) else Guess(IGNORE, f"{dtype} has no kind")


def _is_number(dtype: pa.DataType) -> bool:
    return bool(types.is_integer(dtype) or types.is_floating(dtype) or types.is_decimal(dtype))


def _guess_number(column: Column, look: Look) -> Guess:
    """Return the kind of numbers; whole numbers with a decimal point, as beside gaps, are whole numbers."""
    if types.is_integer(column.array.type):
        return _guess_whole(column, column.array.drop_null().to_numpy(zero_copy_only=False), look)
    try:
        values = read_quantities(column)
    except DataError as error:
        # Reading it as a number names what is wrong.
        return Guess(IGNORE, _LONG_ID) if TOO_LONG in str(error) else Guess("number")
    values = values[~np.isnan(values)]
    return _guess_whole(column, values, look) if (values == np.trunc(values)).all() else Guess("number")


def _guess_whole(column: Column, values: np.ndarray, look: Look) -> Guess:
    """Return the kind of whole numbers, `values` without gaps."""
    if has_id_name(column.name):
        return _id_or_category(column, look)
    low, high = values.min().item(), values.max().item()
    if low >= 0 and high <= 1:
        return Guess("boolean")
    if len(values) > 2 and high - low + 1 == len(values) and (values[1:] > values[:-1]).all():
        return Guess(IGNORE, "counts the rows")
    if types.is_integer(column.array.type) and max(abs(low), abs(high)) > 2**53:
        return Guess(IGNORE, _LONG_ID)
    return Guess("number")


def has_id_name(name: str) -> bool:
    """Return whether a column has the name of an id."""
    return bool(_ID_NAME.search(name) or _CAMEL_ID_NAME.search(name))


def _id_or_category(column: Column, look: Look) -> Guess:
    is_category = look.distinct <= _FEW_VALUES and len(column.array) >= _OFTEN * look.distinct
    return Guess("category") if is_category else Guess(IGNORE, _LOOKS_LIKE_ID)


def _guess_text(column: Column, look: Look) -> Guess:
    values, counts = column.array.value_counts().flatten()
    # The different texts stand for all, because many rows have the same.
    texts = as_texts(replace(column, array=values))
    texts, counts = texts.drop_null(), counts.filter(texts.is_valid())
    different = replace(column, array=texts)
    if look.distinct <= 2 and _reads(read_truth, different):
        return Guess("boolean")
    if has_id_name(column.name):
        return _id_or_category(column, look)
    is_number = pc.match_substring_regex(texts, _NUMBER).to_numpy(zero_copy_only=False)
    if is_number.all():
        return _guess_number(column, look)
    if find_day_format(different) is not None:
        return Guess("date")
    rows = counts.to_numpy()
    if rows[is_number].sum() >= _NEARLY_NUMBERS * rows.sum():
        # Reading it names the values that are none.
        return Guess("number")
    if look.distinct > _TEXTS_OF_THREE and pc.all(pc.match_substring_regex(texts, _COMMA_NUMBER)).as_py():
        return Guess(IGNORE, _COMMAS)
    words = pc.mean(pc.add(pc.count_substring_regex(texts, r"\s+"), 1)).as_py()
    if (words >= 3 and look.distinct > _TEXTS_OF_THREE) or (words >= 2 and look.distinct > _TEXTS_OF_TWO):
        return Guess("text")
    if look.distinct > _NEARLY_ALL * rows.sum() and look.distinct > _FEW_VALUES:
        return Guess(IGNORE, f"{_LOOKS_LIKE_ID}: nearly every row has its own value")
    return Guess("category")


def _reads(reader: Callable[[Column], np.ndarray], column: Column) -> bool:
    try:
        reader(column)
    except DataError:
        return False
    return True
