"""Tables: every format, read in chunks, and picks that can be read back."""

import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from setgrad.errors import DataError, OptionError, SetgradError, ShapeError
from setgrad.sets import Choices, Sets, Table, _formats, read_table, write_table
from tests.sets.tables import ROLES, VALID, save


def check_valid(choices: Choices) -> None:
    sets, subsets = choices
    assert sets.lengths.tolist() == [3, 1, 1]
    expected = np.column_stack([VALID["price"], VALID["stock"]]).astype(np.float32)
    np.testing.assert_array_equal(sets.values.numpy(), expected)
    assert subsets.values.tolist() == VALID["bought"]
    assert choices.set_ids == [10, 20, 15]
    assert choices.item_ids is not None
    assert list(choices.item_ids) == VALID["sku"]
    assert choices.sample_weight is not None
    assert choices.sample_weight.tolist() == VALID["load"]


def test_every_format_gives_the_same_sets(tmp_path: Path, ending: str) -> None:
    check_valid(read_table(save(tmp_path / f"t{ending}", VALID), **ROLES))


@pytest.mark.usefixtures("small_chunks")
def test_sets_may_span_chunks(tmp_path: Path, ending: str) -> None:
    check_valid(read_table(save(tmp_path / f"t{ending}", VALID, rows=2), **ROLES))


@pytest.mark.parametrize("ending", [".parquet", ".feather"])
def test_the_size_of_row_groups_does_not_matter(tmp_path: Path, ending: str) -> None:
    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 30, 40)
    columns = {
        "s": np.repeat(generator.permutation(40), sizes),
        "i": np.concatenate([generator.permutation(n) for n in sizes]),
        "x": generator.normal(size=sizes.sum()),
        "c": generator.random(sizes.sum()) < 0.3,
    }
    results = [
        read_table(save(tmp_path / f"{rows}{ending}", columns, rows=rows), set_id="s", item_id="i", chosen="c")
        for rows in (7, 10_000)
    ]
    for choices in results:
        assert choices.sets.layout.host_lengths.tolist() == sizes.tolist()
        assert choices.sets.values[:, 0].tolist() == columns["x"].astype(np.float32).tolist()
        assert choices.subsets.values.tolist() == columns["c"].tolist()
        assert list(choices.item_ids if choices.item_ids is not None else ()) == columns["i"].tolist()
    assert results[0].set_ids == results[1].set_ids


def test_a_large_file_is_read(tmp_path: Path, ending: str) -> None:
    rows = 200_000
    columns = {
        "s": np.repeat(np.arange(rows // 40), 40),
        "i": np.tile(np.arange(40), rows // 40),
        "x": np.arange(rows, dtype=np.float64),
        "c": np.arange(rows) % 3 == 0,
    }
    path = save(tmp_path / f"t{ending}", columns, rows=30_000)
    choices = read_table(path, set_id="s", item_id="i", chosen="c", dtype=torch.float64)
    assert len(choices) == rows // 40
    assert torch.equal(choices.sets.values[:, 0], torch.arange(rows, dtype=torch.float64))
    assert torch.equal(choices.subsets.values, torch.arange(rows) % 3 == 0)


def test_without_chosen_the_result_is_a_table(tmp_path: Path, ending: str) -> None:
    table = read_table(save(tmp_path / f"t{ending}", VALID), set_id="basket", features=["stock"])
    assert isinstance(table, Table)
    assert table.sets.values.tolist() == [[1.0], [2.0], [3.0], [4.0], [5.0]]
    assert table.sample_weight is None
    assert table.item_ids is not None
    assert list(table.item_ids) == [0, 1, 2, 0, 0]


def test_features_default_to_the_numeric_columns_in_file_order(tmp_path: Path, ending: str) -> None:
    path = save(tmp_path / f"t{ending}", VALID)
    table = read_table(path, set_id="basket", chosen="bought")
    assert table.sets.values[0].tolist() == [1.5, 1.0, 1.0]  # price, stock, load; neither sku nor note
    named = read_table(path, set_id="basket", features=["stock", "price", "bought"], dtype=torch.float64)
    assert named.sets.values[0].tolist() == [1.0, 1.5, 1.0]
    assert named.sets.dtype == torch.float64


@pytest.mark.parametrize("form", [np.array, tuple, iter, dict.fromkeys])
def test_features_may_be_any_collection_of_names(tmp_path: Path, ending: str, form: Callable[[Any], Any]) -> None:
    path = save(tmp_path / f"t{ending}", VALID)
    table = read_table(path, set_id="basket", features=form(["stock", "price"]))
    assert table.features == ["stock", "price"]
    assert table.sets.values[0].tolist() == [1.0, 1.5]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2], pa.uint8()),
        pa.array([1.0, 2.0], pa.float32()),
        pa.array([1.0, 2.0], pa.float16()),
        pa.array([Decimal("1.00"), Decimal("2.00")]),
        pa.array([" 1", "2e0"]),
        pa.array(["1", "2"]).dictionary_encode(),
        pa.array(["1", "2"], pa.large_string()),
        pa.array(["1", "2"]).cast(pa.string_view()),
    ],
    ids=lambda column: str(column.type),
)
def test_columns_of_every_numeric_type_are_features(tmp_path: Path, column: pa.Array) -> None:
    path = save(tmp_path / "t.feather", {"s": [1, 1], "x": column})
    assert read_table(path, set_id="s", features=["x"]).sets.values.tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize(
    "column",
    [
        [True, False],
        [1, 0],
        [1.0, 0.0],
        ["1", "0"],
        ["1.0", "0.0"],
        ["true", "False"],
        ["yes", "No"],
        ["t", "f"],
        ["Y", "n"],
        ["on", "off"],
        [" TRUE", "0 "],
        pa.array(["1", "0"]).dictionary_encode(),
    ],
)
def test_chosen_may_be_booleans_integers_or_text(tmp_path: Path, column: Any) -> None:
    path = save(tmp_path / "t.feather", {"s": [1, 1], "x": [1.0, 2.0], "c": column})
    assert read_table(path, set_id="s", chosen="c").subsets.values.tolist() == [True, False]


@pytest.mark.parametrize(
    "values",
    [
        ["b", "b", "a"],
        [2.5, 2.5, -1.0],
        [b"q", b"q", b""],
        [True, True, False],
        [Decimal("1.1"), Decimal("1.1"), Decimal(0)],
    ],
    ids=str,
)
def test_ids_of_every_type_are_read_unchanged(tmp_path: Path, values: list[Any]) -> None:
    for column in (pa.array(values), pa.array(values).dictionary_encode()):
        path = save(tmp_path / "t.feather", {"s": column, "i": column.take(pa.array([0, 2, 1])), "x": [1.0, 2.0, 3.0]})
        table = read_table(path, set_id="s", item_id="i", features=["x"])
        assert table.set_ids == [values[0], values[2]]
        assert table.item_ids is not None
        assert list(table.item_ids) == [values[0], values[2], values[1]]


def test_text_ids_become_integers_only_without_loss(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("s,i,x\nNA,007,1\nNA,7,2\n12,1,3\n")
    table = read_table(path, set_id="s", item_id="i")
    assert table.set_ids == ["NA", "12"]
    assert table.item_ids is not None
    assert list(table.item_ids) == ["007", "7", "1"]


@pytest.mark.usefixtures("small_chunks")
def test_csv_types_do_not_depend_on_the_first_block(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("s,x,c,text\n" + 'a,1,0,"two\nlines"\n' * 40 + 'b,2.5,true,"x,y"\n')
    choices = read_table(path, set_id="s", chosen="c")
    assert choices.sets.values[-1].tolist() == [2.5]
    assert choices.sets.lengths.tolist() == [40, 1]
    assert choices.subsets.values.tolist() == [False] * 40 + [True]


@pytest.mark.parametrize(
    "values",
    [
        [2**24, 2**24 + 1, 0],
        [1_700_000_000, 1_700_000_001, 1_700_100_000],
        [1_700_000_001] * 3,  # in another table the times may differ
        [1_700_000_000.25, 1_700_000_000.5, 1_700_000_009.0],
        [1000.0001, 1000.00011, 1000.0002],
        [Decimal("16777216"), Decimal("16777217"), Decimal(0)],
    ],
    ids=str,
)
def test_numbers_that_float32_cannot_distinguish_are_read_in_float64(
    tmp_path: Path, ending: str, values: list[Any]
) -> None:
    path = save(tmp_path / f"t{ending}", {"s": [1, 1, 2], "x": values, "y": [0.5, 1.5, 2.5], "c": [True, False, True]})
    choices = read_table(path, set_id="s", chosen="c", weight="y")
    assert choices.sets.values[:, 0].tolist() == [float(x) for x in values]
    assert choices.sets.dtype == torch.float64
    assert choices.features == ["x"]
    assert choices.subsets.values.tolist() == [True, False, True]
    assert read_table(path, set_id="s", features=["x"], dtype=torch.float32).sets.dtype == torch.float32


def test_numbers_too_large_for_float32_are_read_in_float64(tmp_path: Path, ending: str) -> None:
    path = save(tmp_path / f"t{ending}", {"s": [1, 1, 2], "x": [1e39, -1e300, 0.5]})
    assert read_table(path, set_id="s").sets.values[:, 0].tolist() == [1e39, -1e300, 0.5]


@pytest.mark.usefixtures("small_chunks")
def test_a_number_in_the_last_chunk_may_need_float64(tmp_path: Path, ending: str) -> None:
    path = save(tmp_path / f"t{ending}", {"s": [1] * 5, "x": [0.1, 1.0, 2.0, 3.0, 2.0**24 + 1]}, rows=2)
    assert read_table(path, set_id="s").sets.values[:, 0].tolist() == [0.1, 1.0, 2.0, 3.0, 2.0**24 + 1]


@pytest.mark.parametrize("values", [[0.1, 0.1, 0.1], [0.1, 3.14, -1e6], [2**24, 2**30, -(2**40)], [1e-30, 2e-30, 1.0]])
def test_other_numbers_are_read_in_float32(tmp_path: Path, ending: str, values: list[Any]) -> None:
    table = read_table(save(tmp_path / f"t{ending}", {"s": [1, 1, 2], "x": values}), set_id="s")
    assert table.sets.dtype == torch.float32
    assert table.sets.values[:, 0].tolist() == np.array(values, np.float32).tolist()


def test_uint64_and_float16_ids_are_read_and_written(tmp_path: Path) -> None:
    big, short = pa.array([2**63, 2**64 - 1], pa.uint64()), pa.array([0.5, 1.5], pa.float16())
    path = save(tmp_path / "t.parquet", {"s": big, "h": short, "x": [1.0, 2.0]})
    for name, values in (("s", big), ("h", short)):
        other = "h" if name == "s" else "s"
        table = read_table(path, set_id=name, item_id=other, features=["x"])
        assert table.set_ids == [float(v) if name == "h" else v for v in values.to_pylist()]
        picks = table.sets.with_values(torch.tensor([True, False]))
        write_table(tmp_path / "p.parquet", picks, set_ids=table.set_ids, item_ids=table.item_ids)
        written = pa.parquet.read_table(tmp_path / "p.parquet")
        assert written["set_id"].to_pylist() == table.set_ids


@pytest.mark.parametrize(
    "kind", [pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.time64("ns"), pa.duration("ns")], ids=str
)
def test_times_as_ids_keep_their_digits_or_raise_an_error(tmp_path: Path, kind: pa.DataType) -> None:
    for fine in (False, True):
        values = pa.array([1000, 2000, 2001 if fine else 3000]).cast(kind)
        path = save(tmp_path / "t.parquet", {"s": values, "one": [1, 1, 1], "x": [1.0, 2.0, 3.0]})
        every_role: list[dict[str, Any]] = [{"set_id": "s"}, {"set_id": "one", "item_id": "s"}]
        for roles in every_role:
            if fine:
                with pytest.raises(DataError, match=r"column 's', row 3 .*finer than a microsecond.*whole numbers"):
                    read_table(path, features=["x"], **roles)
            else:
                table = read_table(path, features=["x"], **roles)
                kept = table.set_ids if roles["set_id"] == "s" else table.item_ids
                assert kept is not None
                assert pa.array(list(kept)).cast(pa.int64()).to_pylist() == [1, 2, 3]


PICKS = Sets.from_list([[True, False], [], [False, False, True]])


def test_picks_are_read_back_by_read_table(tmp_path: Path, ending: str) -> None:
    probability = PICKS.with_values(torch.tensor([0.9, 0.1, 1 / 3, 1e-9, 1.0]))
    path = tmp_path / "new" / "folder" / f"picks{ending}"
    for _ in range(2):  # the second write replaces the first file
        ids: dict[str, Any] = {"set_ids": ["u", "v", "w"], "item_ids": np.array([3, 1, 4, 1, 5])}
        write_table(path, PICKS, **ids, probability=probability, names=("basket", "sku"))
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    back = read_table(path, set_id="basket", item_id="sku", features=["probability"], chosen="chosen")
    assert back.set_ids == ["u", "w"]  # a set without items has no rows
    assert back.item_ids is not None
    assert list(back.item_ids) == [3, 1, 4, 1, 5]
    assert torch.equal(back.subsets.values, PICKS.values)
    assert torch.equal(back.sets.values[:, 0], probability.values)


def test_ids_default_to_numbers(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"picks{ending}"
    probability = PICKS.with_values(torch.rand(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    write_table(path, PICKS, probability=probability)
    roles: dict[str, Any] = {"set_id": "set_id", "item_id": "item_id", "chosen": "chosen"}
    back = read_table(path, **roles, features=["probability"], dtype=torch.float64)
    assert back.set_ids == [0, 2]
    assert back.item_ids is not None
    assert list(back.item_ids) == [0, 1, 0, 1, 2]
    assert torch.equal(back.sets.values[:, 0], probability.values)
    assert torch.equal(back.subsets.values, PICKS.values)


def test_uuids_are_read_and_written_as_text(tmp_path: Path, ending: str) -> None:
    uuids = [UUID(int=number) for number in range(5)]
    path = tmp_path / f"picks{ending}"
    write_table(path, PICKS, set_ids=uuids[:3], item_ids=uuids)
    back = read_table(path, set_id="set_id", item_id="item_id", features=["chosen"])
    assert back.set_ids == [str(uuids[0]), str(uuids[2])]
    typed = save(tmp_path / "t.parquet", {"s": pa.array(uuids[:2], pa.uuid()), "x": [1.0, 2.0]})
    assert read_table(typed, set_id="s").set_ids == [str(uuids[0]), str(uuids[1])]


def test_utf8_bytes_are_written_in_every_format(tmp_path: Path, ending: str) -> None:
    write_table(tmp_path / f"p{ending}", PICKS, set_ids=[b"u", b"v", b"w"])
    set_ids = read_table(tmp_path / f"p{ending}", set_id="set_id", features=["chosen"]).set_ids
    assert set_ids == (["u", "w"] if ending == ".csv" else [b"u", b"w"])


def test_ids_that_a_format_cannot_hold_raise_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"p\.csv: this cannot be written: .*use another format, such as \.parquet"):
        write_table(
            tmp_path / "p.csv", PICKS, set_ids=pa.array([(1, 2, n) for n in range(3)], pa.month_day_nano_interval())
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"picks": [[True, False]]}, ShapeError, "picks must be Sets, not list; convert lists with Sets.from_list"),
        ({"probability": [0.5] * 5}, ShapeError, "probability must be Sets, not list"),
        ({"set_ids": ["a"]}, ShapeError, "set_ids has 1 entries for 3 sets"),
        ({"item_ids": [1]}, ShapeError, "item_ids has 1 entries for 5 items"),
        ({"set_ids": ["a", "b", "a"]}, DataError, "two sets have the same id"),
        ({"set_ids": ["a", None, "b"]}, DataError, "set_ids has no value at entry 1"),
        ({"set_ids": ["a", 1, "b"]}, DataError, "set_ids cannot be written"),
        ({"set_ids": [1, 2, 2**64]}, DataError, "set_ids cannot be written"),
        ({"set_ids": [-1, 2, 2**63]}, DataError, "set_ids cannot be written"),
        ({"set_ids": [(1, 2)] * 3}, DataError, "number or a text, not list"),
        ({"set_ids": [{"a": 1}] * 3}, DataError, "number or a text, not struct"),
        ({"item_ids": [b"\xff"] * 5}, DataError, "item_ids holds bytes that are not UTF-8"),
        ({"names": ("chosen", "i")}, OptionError, "names="),
        ({"names": ("i", "i")}, OptionError, "names="),
        ({"picks": PICKS.to(torch.float32)}, ShapeError, "one boolean"),
        ({"probability": PICKS[:2].to(torch.float32)}, ShapeError, "one number"),
    ],
)
def test_invalid_picks_raise_an_error_and_write_no_file(
    tmp_path: Path, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        write_table(tmp_path / "picks.csv", **{"picks": PICKS, **arguments})
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "picks.csv"
    write_table(path, PICKS)
    before = path.read_bytes()

    def fail_halfway(table: pa.Table, draft: Path) -> None:
        draft.write_bytes(b"half")
        raise OSError("no space left")

    broken = _formats.Format("CSV", False, _formats.CSV.schema, _formats.CSV.batches, fail_halfway)
    monkeypatch.setitem(_formats.FORMATS, ".csv", broken)
    with pytest.raises(DataError, match=r"picks\.csv: this cannot be written: no space left"):
        write_table(path, PICKS)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["picks.csv"]


def test_a_path_that_cannot_be_written_raises_an_error(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match=r"folder\.csv: this is a folder; name a file"):
        write_table(tmp_path / "folder.csv", PICKS)
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(DataError, match=r"pipe\.csv: this cannot be written: it is a device or a pipe"):
        write_table(tmp_path / "pipe.csv", PICKS)
    (tmp_path / "file").touch()
    with pytest.raises(SetgradError, match="cannot be written"):
        write_table(tmp_path / "file" / "picks.csv", PICKS)


def test_a_symbolic_link_is_kept(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "picks.csv", tmp_path / "link.csv"
    target.write_text("old")
    link.symlink_to(target)
    write_table(link, Sets.from_list([[True]]))
    assert link.is_symlink() and "set_id" in target.read_text()


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_missing_ids_are_not_written(tmp_path: Path, ending: str) -> None:
    path, picks = tmp_path / f"picks{ending}", Sets.from_list([[True], [False]])
    for ids in ([1.0, float("nan")], ["a", None]):
        with pytest.raises(DataError, match="has no value at entry 1"):
            write_table(path, picks, set_ids=ids)
    if ending == ".csv":
        with pytest.raises(DataError, match="has no value at entry 1"):
            write_table(path, picks, set_ids=["a", ""])
    else:  # typed formats can hold empty texts
        write_table(path, picks, set_ids=["a", ""])
        assert pyarrow.parquet.read_table(path)["set_id"].to_pylist() == ["a", ""]
