"""Damaged and hostile table files: an error, never a crash or memory of somebody else; our own files have checksums."""

import gzip
import random

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from setgrad.errors import DataError
from setgrad.sets import Sets, read_table, write_table
from setgrad.sets._read import read_columns

TABLE = pa.table({"s": ["a"] * 5 + ["b"] * 5, "i": [str(k) for k in range(10)], "x": np.arange(10.0)})


def read(path):
    table = read_table(path, set_id="s", item_id="i", features=["x"])
    return table.set_ids, list(table.item_ids), table.sets.values.tolist()


@pytest.mark.parametrize("in_folder", [False, True])
def test_an_offset_beyond_the_texts_of_a_feather_file_is_an_error(tmp_path, in_folder):
    """Without a check it is read as memory of the process, or ends it."""
    path = tmp_path / "t.feather"
    feather.write_feather(TABLE, str(path), compression="uncompressed")
    whole = path.read_bytes()
    offsets = np.arange(11, dtype=np.int32)
    place = whole.index(offsets.tobytes())
    damaged = offsets.copy()
    damaged[7] = 2**30
    path.write_bytes(whole.replace(offsets.tobytes(), damaged.tobytes(), 1))
    assert place > 0
    with pytest.raises(DataError, match=r"cannot be read as Feather: .*; write the table again"):
        read(tmp_path if in_folder else path)


def test_random_changes_of_feather_files_raise_or_read(tmp_path):
    draw = random.Random(0)
    for compression in ("uncompressed", "lz4"):
        path = tmp_path / f"{compression}.feather"
        feather.write_feather(TABLE, str(path), compression=compression)
        whole = path.read_bytes()
        for _ in range(150):
            content = bytearray(whole)
            content[draw.randrange(len(content))] = draw.choice([0, 127, 255])
            path.write_bytes(content)
            try:
                read(path)
                read_columns(path, labels=["s", "i"])
            except DataError as error:
                assert str(path) in str(error)


@pytest.mark.parametrize("in_folder", [False, True])
def test_parquet_files_that_setgrad_writes_notice_changed_pages(tmp_path, in_folder):
    path = tmp_path / "p.parquet"
    picks = Sets.from_lengths(np.arange(20) % 3 == 0, [10, 10])
    probability = Sets.from_lengths(np.linspace(0, 1, 20), [10, 10])
    write_table(path, picks, set_ids=["first", "second"], item_ids=[*range(20)], probability=probability)
    whole = path.read_bytes()
    start = parquet.ParquetFile(path).metadata.row_group(0).column(2)
    first = start.dictionary_page_offset or start.data_page_offset
    damaged = bytearray(whole)
    damaged[first + start.total_compressed_size - 3] ^= 4
    path.write_bytes(damaged)
    with pytest.raises(DataError, match=r"could not verify page integrity|CRC"):
        read_table(tmp_path if in_folder else path, set_id="set_id", item_id="item_id", features=["probability"])


def test_a_table_that_needs_more_memory_than_allowed_is_an_error(tmp_path, monkeypatch):
    path = tmp_path / "t.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("s,x\n" + "a,0\n" * 100_000)
    monkeypatch.setenv("SETGRAD_MAX_TABLE_BYTES", "1e5")
    with pytest.raises(DataError, match=r"t\.csv\.gz: \d+ rows and more need above .* SETGRAD_MAX_TABLE_BYTES"):
        read_table(path, set_id="s")
    monkeypatch.setenv("SETGRAD_MAX_TABLE_BYTES", "1e6")
    assert len(read_table(path, set_id="s").sets.values) == 100_000
    monkeypatch.setenv("SETGRAD_MAX_TABLE_BYTES", "much")
    with pytest.raises(DataError, match="must be a number of bytes, not 'much'"):
        read_table(path, set_id="s")


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("ms", "Nowhere/X"), pa.date32(), pa.duration("s")])
def test_a_date_that_python_does_not_have_is_an_error(tmp_path, kind):
    """A changed byte makes it of a number."""
    integers = pa.int32() if kind.bit_width == 32 else pa.int64()
    dates = pa.array([1, 2**31 - 1 if kind.bit_width == 32 else 2**62], integers).view(kind)
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"s": dates, "i": ["a", "b"], "x": [1.0, 2.0]}), path)
    with pytest.raises(DataError, match=r"column 's', row \d .*Python has no such"):
        read(path)
    with pytest.raises(DataError, match=r"column 's', row 1 .* is not a number but"):
        read_table(path, set_id="i", features=["s"])
