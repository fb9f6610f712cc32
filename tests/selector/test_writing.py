"""Picks that are written while a table is read: those of `predict`, bit for bit, and a whole file or none."""

from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from setgrad.errors import DataError, NotFittedError, OptionError
from setgrad.selector import SubsetSelector
from tests.selector.conftest import make_choices
from tests.selector.streams import OPTIONS, ROLES, make_rows, shrink, write_parts


@pytest.fixture(scope="module")
def fitted():
    return SubsetSelector(**OPTIONS).fit(make_rows(seed=3), **ROLES)


@pytest.fixture
def folder(tmp_path):
    rows = make_rows(seed=4)
    marks = pa.array([number % 11 == 0 for number in range(rows.num_rows)])
    others = pa.array([number % 7 == 1 and number % 11 != 0 for number in range(rows.num_rows)])
    return write_parts(tmp_path / "data", rows.append_column("in", marks).append_column("out", others), (333, 334))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"size": 2, "carry": ["brand", "price"]},
        {"threshold": 0.4},
        {"search": "local"},
        {"recall": 0.5},
        {"given": "in", "excluded": "out"},
    ],
)
def test_written_picks_are_those_of_predict(fitted, folder, tmp_path, monkeypatch, arguments):
    shrink(monkeypatch)
    path = tmp_path / "picks.parquet"
    summary = fitted.write_picks(folder, path, **arguments)
    expected = fitted.predict(folder, **arguments)
    written = parquet.read_table(path)
    assert written.equals(expected)
    assert summary.items == expected.num_rows and summary.sizes.sum() == sum(expected["chosen"].to_pylist())
    assert len(summary.sizes) == len(set(expected["set"].to_pylist()))
    assert summary.first.num_rows < expected.num_rows, "several blocks"


def test_an_old_file_stays_if_something_goes_wrong(fitted, folder, tmp_path, monkeypatch):
    shrink(monkeypatch)
    path = tmp_path / "picks.parquet"
    path.write_bytes(b"old")
    rows = parquet.read_table(folder)
    price = pa.array([*rows["price"].to_pylist()[:-1], float("inf")])
    broken = write_parts(tmp_path / "broken", rows.set_column(1, "price", price))
    with pytest.raises(DataError, match=rf"column 'price', row {rows.num_rows} .*not finite"):
        fitted.write_picks(broken, path)
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir() if "picks" in one.name and one.suffix == ".part"] == []


def test_what_is_new_in_a_table_is_warned_of_once(fitted, tmp_path, monkeypatch):
    shrink(monkeypatch)
    rows = make_rows(seed=5)
    brands = pa.array(["unseen"] * rows.num_rows)
    folder = write_parts(tmp_path / "data", rows.set_column(3, "brand", brands))
    with pytest.warns(UserWarning, match=rf"brand \({rows.num_rows} of {rows.num_rows}\)") as caught:
        fitted.write_picks(folder, tmp_path / "picks.parquet")
    assert len(caught) == 1


def test_what_cannot_be_written_says_so(fitted, folder, tmp_path):
    with pytest.raises(OptionError, match="picks that are streamed are written to Parquet"):
        fitted.write_picks(folder, tmp_path / "picks.csv")
    with pytest.raises(OptionError, match="given must name a column of the table that is streamed"):
        fitted.write_picks(folder, tmp_path / "picks.parquet", given=[[0]])
    with pytest.raises(DataError, match="there is no column 'im'"):
        fitted.write_picks(folder, tmp_path / "picks.parquet", given="im")
    with pytest.raises(NotFittedError):
        SubsetSelector().write_picks(folder, tmp_path / "picks.parquet")
    of_sets = SubsetSelector(**{**OPTIONS, "max_epochs": 1}).fit(*make_choices(20))
    with pytest.raises(OptionError, match="was not fitted on a table"):
        of_sets.write_picks(folder, tmp_path / "picks.parquet")
    parquet.write_table(pa.concat_tables([parquet.read_table(folder / "0.parquet")] * 2), folder / "0.parquet")
    with pytest.raises(DataError, match="appears again after other sets"):
        fitted.write_picks(folder, tmp_path / "picks.parquet")


@pytest.mark.parametrize("count", [1, 3, 7, 40])
def test_parts_are_together_the_picks_of_the_table(fitted, tmp_path, monkeypatch, count):
    shrink(monkeypatch)
    # The second set has half of all rows.
    rows = pa.concat_tables([make_rows(1, seed=1, largest=9), make_rows(39, seed=5, largest=9)])
    sizes = np.repeat(np.arange(40), [2, 300, *[5] * 38])
    rows = rows.take(pa.array(np.arange(len(sizes)) % rows.num_rows))
    rows = rows.set_column(0, "set", pa.array([f"set {number}" for number in sizes]))
    folder = write_parts(tmp_path / "data", rows, (100, 333))
    summaries = [fitted.write_picks(folder, tmp_path / "picks", part=(number + 1, count)) for number in range(count)]
    assert parquet.read_table(tmp_path / "picks").equals(fitted.predict(folder))
    assert sum(one.items for one in summaries) == rows.num_rows and min(len(one.sizes) for one in summaries) > 0
    assert max(one.items for one in summaries) <= rows.num_rows / count + 300


def test_parts_that_cannot_be_are_errors(fitted, folder, tmp_path):
    write = partial(fitted.write_picks, folder)
    with pytest.raises(OptionError, match=r"there is no part 4 of 3; .* numbered from 1 on"):
        write(tmp_path / "picks", part=(4, 3))
    with pytest.raises(OptionError, match=r"must be two whole numbers, such as \(3, 16\)"):
        write(tmp_path / "picks", part=3)
    with pytest.raises(OptionError, match="the table has 120 sets, fewer than 121 parts"):
        write(tmp_path / "picks", part=(1, 121))
    with pytest.raises(OptionError, match="is a file; name a folder"):
        write(tmp_path / "picks.parquet", part=(1, 2))
    write(tmp_path / "picks", part=(1, 3))
    with pytest.raises(DataError, match="holds picks in 3 parts"):
        write(tmp_path / "picks", part=(1, 2))
