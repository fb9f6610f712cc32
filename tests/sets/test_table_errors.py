"""Errors of tables: each names the column and the row, in every format."""

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from setgrad.errors import DataError, OptionError
from setgrad.sets import Sets, read_table, write_table
from tests.sets.tables import ROLES, VALID, save


def edited(column: str, row: int, value: Any) -> dict[str, Any]:
    """Return the valid table with one value changed; rows count from 1."""
    values = list(VALID[column])
    values[row - 1] = value
    return {**VALID, column: values}


def as_text(column: str, row: int, value: str) -> dict[str, Any]:
    values = [str(v) for v in VALID[column]]
    values[row - 1] = value
    return {**VALID, column: values}


ERRORS: list[tuple[str, dict[str, Any], str]] = [
    ("null feature", edited("price", 4, None), r"column 'price', row 4 .*missing; fill"),
    ("nan feature", edited("price", 2, float("nan")), r"column 'price', row 2 .*nan is not finite"),
    ("infinite feature", edited("price", 5, float("-inf")), r"column 'price', row 5 .*-inf is not finite"),
    (
        "nan after a large feature",
        {**edited("price", 3, 1e300), "stock": [1.0, 2.0, 3.0, float("nan"), 5.0]},
        r"column 'stock', row 4 .*nan is not finite",
    ),
    ("text feature", as_text("price", 3, "cheap"), r"column 'price', row 3 .*'cheap' is not a number"),
    ("null set id", edited("basket", 2, None), r"column 'basket', row 2 .*missing; every row needs an id"),
    (
        "not adjacent",
        edited("basket", 5, 10),
        r"column 'basket', row 5 .*set '?10'? appears again .*rows 1 to 3.*sort .*'basket'",
    ),
    ("not adjacent twice", {**VALID, "basket": [7, 8, 7, 8, 7]}, r"column 'basket', row 3 .*set '?7'? .*rows 1 to 1"),
    ("null item id", edited("sku", 1, None), r"column 'sku', row 1 .*every row needs an id"),
    ("duplicate", edited("sku", 3, "a"), r"column 'sku', row 3 .*item 'a' is in set '?10'? already \(row 1\)"),
    (
        "duplicate twice",
        {**VALID, "sku": ["b", "c", "c", "a", "a"], "basket": [1, 1, 1, 1, 1]},
        r"'sku', row 3 .*row 2",
    ),
    ("null chosen", edited("bought", 4, None), r"column 'bought', row 4 .*missing; write true or false"),
    ("chosen 2", {**VALID, "bought": [0, 1, 2, 1, 0]}, r"column 'bought', row 3 .*'?2'? is neither true nor false"),
    ("chosen word", {**VALID, "bought": ["1", "oui", "0", "0", "0"]}, r"column 'bought', row 2 .*'oui' is neither"),
    ("chosen real", {**VALID, "bought": [0.5, 1.0, 0.0, 0.0, 0.0]}, r"column 'bought', row 1 .*0.5'? is neither"),
    ("null weight", edited("load", 3, None), r"column 'load', row 3 .*missing"),
    ("nan weight", edited("load", 3, float("nan")), r"column 'load', row 3 .*nan is not finite"),
    ("negative weight", edited("load", 2, -1.0), r"column 'load', row 2 .*weight -1 is negative"),
    ("text weight", as_text("load", 2, "much"), r"column 'load', row 2 .*'much' is not a number"),
]


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize(("columns", "message"), [pytest.param(c, m, id=name) for name, c, m in ERRORS])
def test_errors_name_the_column_and_the_row(
    tmp_path: Path,
    ending: str,
    columns: dict[str, Any],
    message: str,
    small: bool,
    request: pytest.FixtureRequest,
) -> None:
    if small:
        request.getfixturevalue("small_chunks")
    path = save(tmp_path / f"t{ending}", columns, rows=2)
    with pytest.raises(DataError, match=message) as caught:
        read_table(path, features=["price", "stock"], **ROLES)
    assert str(path) in str(caught.value)
    assert "counted from 1, without the header" in str(caught.value)


def test_a_number_too_large_for_the_requested_type_raises_an_error(tmp_path: Path, ending: str) -> None:
    path = save(tmp_path / f"t{ending}", edited("price", 3, 1e39))
    with pytest.raises(DataError, match=r"column 'price', row 3 .*1e\+?39 is too large for torch.float32"):
        read_table(path, features=["price"], dtype=torch.float32, **ROLES)


@pytest.mark.parametrize("text", ["-nan(ind)", "nan(ind)", "NaN"])
def test_every_spelling_of_nan_raises_an_error(tmp_path: Path, text: str) -> None:
    path = save(tmp_path / "t.csv", as_text("price", 2, text))
    with pytest.raises(DataError, match=r"column 'price', row 2 .*is not finite"):
        read_table(path, features=["price"], **ROLES)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([[1.0], [2.0]]), r"column 'x', row 1 .*\[1.0\] is not a number but list"),
        (pa.array([date(2026, 1, 1), date(2026, 1, 2)]), r"column 'x', row 1 .*is not a number but date"),
        (pa.array([b"1", b"2"]), r"column 'x', row 1 .*b'1' is not a number but binary"),
        (pa.nulls(2), r"column 'x', row 1 .*missing"),
    ],
)
def test_types_that_are_not_numeric_raise_errors(tmp_path: Path, column: pa.Array, message: str) -> None:
    path = save(tmp_path / "t.parquet", {"s": [1, 1], "x": column})
    with pytest.raises(DataError, match=message):
        read_table(path, set_id="s", features=["x"])


def test_ids_that_cannot_be_compared_raise_errors(tmp_path: Path) -> None:
    path = save(tmp_path / "t.parquet", {"s": [[1], [1]], "f": [1.0, float("nan")], "x": [1.0, 2.0]})
    with pytest.raises(DataError, match=r"column 's', row 1 .*not list"):
        read_table(path, set_id="s", features=["x"])
    span = pa.array([(1, 2, 3)] * 2, pa.month_day_nano_interval())
    every_role: list[dict[str, Any]] = [{"set_id": "m"}, {"set_id": "x", "item_id": "m"}]
    for roles in every_role:
        with pytest.raises(DataError, match=r"column 'm', row 1 .*number or a text, not month"):
            read_table(save(tmp_path / "m.feather", {"m": span, "x": [1.0, 2.0], "y": [1.0, 2.0]}), **roles)
    with pytest.raises(DataError, match=r"column 'f', row 2 .*nan is not an id"):
        read_table(path, set_id="f", features=["x"])


def test_the_index_of_a_data_frame_is_not_a_feature(tmp_path: Path, ending: str) -> None:
    for name in ("", "__index_level_0__"):
        path = save(tmp_path / f"t{ending}", {name: [0, 1], "s": [1, 1], "x": [1.0, 2.0]})
        with pytest.raises(DataError, match=r"looks like the index of a data frame.*index=False"):
            read_table(path, set_id="s")
        assert read_table(path, set_id="s", features=["x"]).sets.values.tolist() == [[1.0], [2.0]]
    path = save(tmp_path / f"t{ending}", {"": [0, 1], "x": [1.0, 2.0]})
    with pytest.raises(DataError, match="column for set_id has no name"):
        read_table(path, set_id="", features=["x"])


def test_an_empty_column_raises_an_error_and_is_not_dropped(tmp_path: Path, ending: str) -> None:
    path = save(tmp_path / f"t{ending}", {"s": [1, 1], "x": [1.0, 2.0], "hole": pa.nulls(2)})
    with pytest.raises(DataError, match=r"column 'hole', row 1"):
        read_table(path, set_id="s")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"set_id": "baskets"},
            DataError,
            r"no column 'baskets' \(did you mean 'basket'\?\); the columns are: basket, sku",
        ),
        ({"features": [7]}, DataError, "there is no column 7; the columns"),
        ({"features": ["prize", "zzz"]}, DataError, r"'prize' \(did you mean 'price'\?\) or 'zzz'; the columns"),
        ({"chosen": "basket"}, DataError, r"column 'basket' is used as set_id and as chosen"),
        ({"features": ["price", "load"]}, DataError, r"column 'load' is used as weight and as features"),
        ({"features": ["price", "price"]}, DataError, r"column 'price' is used as features and as features"),
        ({"features": []}, DataError, "no numeric column for features"),
        ({"features": "price"}, OptionError, r"a list of columns; write \['price'\]"),
        ({"set_id": None}, OptionError, "set_id must be the name of a column, not None"),
        ({"dtype": torch.int64}, OptionError, r"torch.int64.*use torch\.float32"),
        ({"dtype": "float32"}, OptionError, r"use torch\.float32"),
        ({"dtype": float}, OptionError, r"use torch\.float32"),
    ],
)
def test_roles_are_checked_before_reading(
    tmp_path: Path, ending: str, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    path = save(tmp_path / f"t{ending}", VALID)
    with pytest.raises(error, match=message):
        read_table(path, **{**ROLES, **change})


def test_ambiguous_names_and_missing_features_raise_errors(tmp_path: Path, ending: str) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([1.0]), pa.array([2.0])], ["s", "x", "x"])
    if ending != ".feather" and ending != ".arrow":  # the Feather writer rejects such a table itself
        with pytest.raises(DataError, match="2 columns are called 'x'"):
            read_table(save(tmp_path / f"t{ending}", twice), set_id="s")
    with pytest.raises(DataError, match=r"no numeric column for features.*note \(string\)"):
        read_table(save(tmp_path / f"u{ending}", {"s": [1], "note": ["x"]}), set_id="s")


def test_unreadable_files_raise_errors(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"t{ending}"
    with pytest.raises(DataError, match=r"t\.\w+: there is no such file"):
        read_table(path, set_id="s")
    path.touch()
    with pytest.raises(DataError, match="the file is empty"):
        read_table(path, set_id="s")
    save(path, {"s": pa.array([], pa.int64()), "x": pa.array([], pa.float64())})
    with pytest.raises(DataError, match="no rows"):
        read_table(path, set_id="s")
    path.write_bytes(b"\xff\x00\x01 not a table \n" * 9)
    with pytest.raises(DataError, match=r"cannot be read as|are not UTF-8"):
        read_table(path, set_id="s")
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match="this folder holds no table"):
        read_table(path, set_id="s")


def test_damaged_files_raise_errors(tmp_path: Path, ending: str) -> None:
    path = save(tmp_path / f"t{ending}", {"s": list(range(1000)), "x": [float(i) for i in range(1000)]})
    whole = path.read_bytes()
    if ending == ".csv":
        path.write_bytes(whole[:500] + b"\n1,2,3\n" + whole[500:])
    else:
        path.write_bytes(whole[:40] + b"?" * 400 + whole[440:])
    with pytest.raises(DataError, match=r"cannot be read as (Parquet|CSV|Feather): .*; write the table again"):
        read_table(path, set_id="s")


def test_text_that_is_not_utf8_raises_an_error(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("s,x\ncafé,1\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"cannot be read as CSV: .*UTF8"):
        read_table(path, set_id="s")


def test_an_unknown_ending_raises_an_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    for name in ("t.xlsx", "t"):
        with pytest.raises(DataError, match=r"\.parquet, \.pq, \.csv, .* \.feather, \.arrow"):
            read_table(tmp_path / name, set_id="s")
        with pytest.raises(DataError, match=r"\.parquet, \.pq, \.csv, .* \.feather, \.arrow"):
            write_table(tmp_path / name, Sets.from_list([[True]]))
    with pytest.raises(DataError, match=r"save the sheet as CSV, or in Python pass pandas.read_excel\(path\)"):
        read_table(tmp_path / "Sales.XLSX", set_id="s")


def test_errors_mark_parameters_and_leave_the_names_of_columns_as_they_are(tmp_path: Path) -> None:
    path = save(tmp_path / "chosen.csv", {"set_id": [1], "x": [1.0]})
    with pytest.raises(DataError) as caught:
        read_table(path, set_id="set_id", chosen="set_id")
    assert str(caught.value) == f"{path}: column 'set_id' is used as set_id and as chosen; use it once"
    assert caught.value.as_flags() == f"{path}: column 'set_id' is used as --set-id and as --chosen; use it once"
