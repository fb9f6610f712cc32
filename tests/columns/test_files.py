"""Columns as JSON: there and back, and damaged."""

import copy
import json
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from setgrad.columns._columns import Columns
from setgrad.columns._kinds import KINDS
from setgrad.errors import FileFormatError
from tests.columns.tables import fit_table, read_items

KIND_OF = {"brand": "category", "product": "id", "title": "text", "seen": "date", "sale": "boolean", "price": "number"}


def table_of_all_kinds() -> pa.Table:
    rng = np.random.default_rng(0)
    rows = 60
    return pa.table(
        {
            "s": np.repeat(np.arange(rows // 3), 3),
            "brand": rng.choice(["a", "b", "ü"], rows),
            "product": rng.integers(0, 9, rows),
            "title": rng.choice(["Blue lamp", "oak table", "lamp"], rows),
            "seen": pa.array([f"2024-{month:02}-01" for month in rng.integers(1, 13, rows)]),
            "sale": rng.random(rows) < 0.5,
            "price": pa.array(np.where(rng.random(rows) < 0.2, np.nan, rng.normal(size=rows))),
            "vector": rng.normal(size=(rows, 3)).tolist(),
            **{f"x{number}": rng.normal(size=rows) for number in range(8)},
        }
    )


@pytest.fixture(scope="module")
def fitted() -> Columns:
    columns, _ = fit_table(table_of_all_kinds(), columns=KIND_OF)
    assert {type(column) for column in columns.columns} == set(KINDS.values())
    return columns


def test_columns_come_back_from_json(fitted):
    back = Columns.from_json(json.loads(json.dumps(fitted.to_json())), "model")
    assert back == fitted and back.to_json() == fitted.to_json()
    assert (back.names, back.width) == (fitted.names, fitted.width)
    assert read_items(table_of_all_kinds(), back).equal(read_items(table_of_all_kinds(), fitted))


def test_renamed_columns_read_a_table_with_other_names(fitted):
    names = {name: f"their {name}" for name in fitted.names}
    table = table_of_all_kinds()
    renamed = table.rename_columns([names.get(name, name) for name in table.column_names])
    assert fitted.renamed(names).names == tuple(names.values())
    assert read_items(renamed, fitted.renamed(names)).equal(read_items(table, fitted))


JUNK: list[Any] = [None, True, -1, 0, 2**24, 1e308, float("inf"), float("nan"), "x", "", [], {}, [1], [["a"]], 0.5]


def test_damaged_columns_are_refused_or_still_read_tables(fitted):
    entries, table = json.loads(json.dumps(fitted.to_json())), table_of_all_kinds()
    refused = 0
    for number, entry in enumerate(entries):
        for field in entry:
            damaged = [*JUNK, "MISSING"]
            for value in damaged:
                broken = copy.deepcopy(entries)
                if value == "MISSING":
                    del broken[number][field]
                else:
                    broken[number][field] = value
                try:
                    columns = Columns.from_json(broken, "model")
                except FileFormatError as error:
                    assert str(error) == "model is damaged: it does not describe the columns of a table"
                    refused += 1
                    continue
                assert value != "MISSING"
                # Sizes are bounded, so that no table asks for much memory.
                assert columns.width < 10_000 or field == "length"
                assert all(0 <= part.codes < 2**25 for part in columns.parts)
    assert refused > 400
    assert Columns.from_json(entries, "model") == fitted
    assert len(read_items(table, fitted)) == 60


@pytest.mark.parametrize("data", [None, {}, [], "x", 3, [None], [[]], [{}], [{"kind": "unheard of"}], [{"kind": 3}]])
def test_other_values_are_refused(data):
    with pytest.raises(FileFormatError, match="model is damaged: it does not describe the columns of a table"):
        Columns.from_json(data, "model")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(list(KINDS)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "name", "fill"]), inner),
    max_leaves=6,
)


@given(JSON)
def test_any_json_is_read_or_refused(data):
    with suppress(FileFormatError):
        assert Columns.from_json(data, "model").names
