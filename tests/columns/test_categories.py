"""Categories and ids against a dictionary in plain Python."""

import contextlib
import io
import os
import subprocess
import sys
import uuid
import zlib
from collections import defaultdict
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import setgrad.columns.category
from setgrad.errors import DataError
from tests.columns.tables import column_of, fit_kind

NAMES = st.sampled_from(["a", "b", "c", "Ü", "007", "7", "x y", None])


def codes_by_hand(values: list[Any], sets: list[int], new: list[Any]) -> list[int]:
    """Codes: 0 for a gap, 1 for all values of fewer than two sets, then by number of sets."""
    seen = defaultdict(set)
    for value, number in zip(values, sets, strict=True):
        if value is not None:
            seen[value].add(number)
    frequent = sorted((value for value in seen if len(seen[value]) >= 2), key=lambda value: (-len(seen[value]), value))
    return [0 if value is None else 2 + frequent.index(value) if value in frequent else 1 for value in new]


@given(st.lists(st.tuples(NAMES, st.integers(0, 5)), min_size=1), st.lists(NAMES, min_size=1))
@pytest.mark.parametrize("kind", ["category", "id"])
def test_codes_are_those_of_a_dictionary(kind, rows, new):
    values, sets = map(list, zip(*rows, strict=True))
    column = column_of(values, pa.string())
    fitted = fit_kind(kind, column, sets=sets)
    assert fitted.encode([column])[:, 0].tolist() == codes_by_hand(values, sets, values)
    assert fitted.encode([column_of(new, pa.string())])[:, 0].tolist() == codes_by_hand(values, sets, new)
    known = [value for value in values if value is not None]
    rare = np.mean([code == 1 for code in codes_by_hand(values, sets, known)]) if known else 0.0
    assert fitted.unknown_share == pytest.approx(rare)


SAME: dict[str, list[Any]] = {
    "whole numbers": [[3, 12, None], [3.0, 12.0, float("nan")], ["3", " 12", "NA"], ["3.0", "12.0", ""]],
    "fractions": [[0.1, -2.5, None], ["0.1", "-2.5", "null"]],
    "negative zero": [[-0.0, 1.0, None], [0, 1, None], ["0", "1", ""], ["-0.0", "1.0", ""]],
    "truth": [[True, False, None], ["True", "False", ""], ["true", "false", None]],
    "long ids": [[2**53 + 1, 2**53 + 2, None], [str(2**53 + 1), str(2**53 + 2), ""]],
    "days": [pd.to_datetime(["2024-01-01", "2024-12-31", None]), ["2024-01-01", "2024-12-31", ""]],
}


@pytest.mark.parametrize("name", SAME)
def test_equal_values_of_several_types_have_one_code(name):
    first, *others = SAME[name]
    column = column_of([*first, *first])
    fitted = fit_kind("category", column)
    assert fitted.encode([column])[:, 0].tolist()[:3] in ([2, 3, 0], [3, 2, 0])
    for values in others:
        assert fitted.encode([column_of(values)]).tolist() == fitted.encode([column])[:3].tolist()


def test_texts_that_look_like_numbers_stay_texts():
    fitted = fit_kind("category", column_of(["007", "7", "1.10", "1.1"] * 2))
    assert len(set(fitted.encode([column_of(["007", "7", "1.10", "1.1"])])[:, 0])) == 4


def test_dictionaries_enums_and_uuids_are_their_texts():
    plain = column_of(["a", "b", None, "a", "b"])
    fitted = fit_kind("category", plain)
    expected = fitted.encode([plain]).tolist()
    values = ["a", "b", None, "a", "b"]
    kinds = [
        pa.array(values).dictionary_encode(),
        pa.array(values, pa.string_view()),
        pa.array(pd.Categorical(values, categories=["b", "unused", "a"])),
        pl.Series(values, dtype=pl.Categorical).to_arrow(),
        pl.Series(values, dtype=pl.Enum(["b", "a"])).to_arrow(),
    ]
    for array in kinds:
        assert fitted.encode([column_of(array)]).tolist() == expected
    ids = [uuid.UUID(int=number) for number in (1, 2, 1, 2)]
    fitted = fit_kind("id", column_of([str(value) for value in ids]))
    coded = fitted.encode([column_of(pa.array([value.bytes for value in ids], pa.uuid()))])
    assert coded[:, 0].tolist() == [2, 3, 2, 3]


def test_decimals_keep_all_digits():
    wide = pa.array(["12345678901234567890", "12345678901234567891"] * 2).cast(pa.decimal128(38, 2))
    fitted = fit_kind("id", column_of(wide))
    assert fitted.encode([column_of(wide)])[:, 0].tolist() == [2, 3, 2, 3]
    assert fitted.encode([column_of(["12345678901234567891"])])[:, 0].tolist() == [3]


def test_beyond_the_largest_vocabulary_values_share_codes_by_their_hash(monkeypatch):
    monkeypatch.setattr(setgrad.columns.category, "_MOST_VALUES", 3)
    values = [f"v{number}" for number in range(10)]
    fitted = fit_kind("id", column_of([*values, *values, "v7"]))
    assert fitted.parts[0].codes == 1 + 2**12 + 3
    # The most frequent first, then by name.
    own = {"v7": 2**12 + 1, "v0": 2**12 + 2, "v1": 2**12 + 3}
    expected = [own.get(value, 1 + zlib.crc32(value.encode()) % 2**12) for value in [*values, "new"]]
    assert fitted.encode([column_of([*values, "new"])])[:, 0].tolist() == expected


def test_many_values():
    values = [str(number) for number in range(40_000)]
    fitted = fit_kind("id", column_of([*values, *values]))
    codes = fitted.encode([column_of(values)])[:, 0]
    assert (codes > 2**12).sum() == 2**15 and codes.min() >= 1 and codes.max() == 2**12 + 2**15
    assert len(np.unique(codes[codes > 2**12])) == 2**15


def test_codes_of_unknown_values_are_the_same_in_every_process():
    code = (
        "import pyarrow as pa\n"
        "from tests.columns.tables import column_of\n"
        "from setgrad.columns.category import IdColumn\n"
        "from setgrad.columns.text import TextColumn\n"
        "ids = IdColumn(name='x', context=False, values=(), buckets=4096, rare=0.0)\n"
        "texts = TextColumn(name='x', context=False, words=4, groups=8, codes=2**14)\n"
        "column = column_of(['new', 'Blue lamp', 'ü'])\n"
        "print(ids.encode([column]).tolist(), texts.encode([column]).tolist())\n"
    )
    # The two processes hash strings differently.
    other = {**_environment(), "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=other)
    with contextlib.redirect_stdout(io.StringIO()) as here:
        exec(code, {})
    assert done.stdout == here.getvalue()
    assert str([[1 + zlib.crc32(text.encode()) % 4096] for text in ("new", "Blue lamp", "ü")]) in done.stdout


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@pytest.mark.parametrize("kind", ["category", "id", "text"])
def test_lists_are_no_categories(kind):
    with pytest.raises(DataError, match=r"row 1 .*cannot be read as text; leave the column out"):
        fit_kind(kind, column_of([[1.0], [2.0]]))
