"""Where sets begin in Parquet files that are read range by range: for every type of id, and whatever the files are."""

import datetime
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from setgrad.errors import DataError
from setgrad.sets import _blocks
from setgrad.sets._blocks import SetBlocks
from setgrad.sets._parquet import ParquetTable
from setgrad.sets._set_index import SetIndex, _hashes

IDS = {
    "numbers": pa.array([3, -1, 2**62, 0]),
    "small numbers": pa.array([3, 1, 2, 0], pa.uint8()),
    "fractions": pa.array([0.5, -0.5, 1e300, 0.0]),
    "texts": pa.array(["", "a", "aa", "å"]),
    "bytes": pa.array([b"", b"\x00", b"\x00\x00", b"\xff"]),
    "dates": pa.array([datetime.date(2024, 1, day) for day in (1, 2, 3, 4)]),
    "times": pa.array([datetime.datetime(2024, 1, 1, hour) for hour in (1, 2, 3, 4)]),
    "decimals": pa.array([Decimal("1.50"), Decimal("1.51"), Decimal("-1.50"), Decimal("0.00")]),
    "categories": pa.array(["b", "a", "d", "c"]).dictionary_encode(),
}


def write(path, ids, order, group=3):
    chosen = pa.array(np.arange(len(order)) % 3 == 0)
    table = pa.table({"set": ids.take(pa.array(order)), "chosen": chosen})
    parquet.write_table(table, path, row_group_size=group)
    return ParquetTable.open(path)


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS.keys())
def test_sets_of_every_type_of_id_are_found(tmp_path, ids):
    order = np.repeat(np.arange(4), [4, 1, 5, 2])
    index = SetIndex.read(write(tmp_path / "rows.parquet", ids, order), "set", "chosen")
    assert index.starts.tolist() == [0, 4, 5, 10, 12] and index.lengths.tolist() == [4, 1, 5, 2]
    assert index.sizes is not None and index.sizes.tolist() == [2, 0, 2, 0]
    apart = write(tmp_path / "apart.parquet", ids, np.array([0, 0, 1, 2, 1, 3]))
    with pytest.raises(DataError, match=r"column 'set', row 5 .*appears again after other sets \(it began at row 3\)"):
        SetIndex.read(apart, "set", None)


def test_hashes_tell_ids_apart():
    numbers = np.random.default_rng(0).permutation(20_000)
    texts = [f"{number:0{1 + number % 7}}" for number in numbers.tolist()] + ["x" * length for length in range(1, 3000)]
    assert len(np.unique(_hashes(pa.array(texts)))) == len(set(texts))
    part = pa.array(["skipped", *texts])[1:]
    assert (_hashes(part) == _hashes(pa.array(texts))).all()


@pytest.mark.parametrize(("block", "large"), [(4, 100), (6, 100), (100, 100), (2, 2)])
def test_blocks_hold_every_set_once_and_whole(tmp_path, monkeypatch, block, large):
    monkeypatch.setattr(_blocks, "BLOCK_ROWS", block)
    monkeypatch.setattr(_blocks, "LARGE_ROWS", large)
    lengths = np.random.default_rng(0).integers(1, 9, 30)
    ids = np.repeat(np.arange(30), lengths)
    table = write(tmp_path / "rows.parquet", pa.array(np.arange(30)), ids, group=5)
    blocks = SetBlocks(table, SetIndex.read(table, "set", None))
    read = []
    for number in range(len(blocks)):
        first, end = blocks.row_range(number)
        part = table.read_range(first, end)
        read.append(np.concatenate([batch["set"].to_numpy() for batch in part.read_chunks(["set"])]))
        assert part.first_row == first and len(read[-1]) == blocks.rows[number]
    assert np.concatenate(read).tolist() == ids.tolist()
    assert all(not set(one) & set(other) for one, other in pairwise(read))
