"""Chunks from files, read ahead and with a progress bar: the same in every pass, and clear errors."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from setgrad.encoders import UMBC, NpyChunks, ParquetChunks, stream
from setgrad.encoders.sources import prefetched, reads_disk
from setgrad.errors import DataError, FileFormatError, OptionError
from setgrad.sets import Sets

ROWS = 25


@pytest.fixture(scope="module")
def items() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)


@pytest.fixture
def table(items: np.ndarray, tmp_path: Path) -> Path:
    path = tmp_path / "items.parquet"
    columns = {name: items[:, i] for i, name in enumerate("xyz")} | {"name": [f"item {i}" for i in range(ROWS)]}
    parquet.write_table(pa.table(columns), path, row_group_size=4)
    return path


@pytest.fixture
def encoder(seeded) -> UMBC:
    with seeded(0):
        return UMBC(3, 8, 4, heads=2).eval()


def chunk(number: int) -> Sets:
    return Sets.from_list([torch.full((2, 1), float(number))])


def numbers(chunks) -> list[float]:
    return [float(c.values[0, 0]) for c in chunks]


def threads() -> int:
    return sum(thread.name == "setgrad reads ahead" for thread in threading.enumerate())


# --- files


@pytest.mark.parametrize("row_groups", [1, 3, 100])
def test_row_groups_are_chunks(table, items, row_groups):
    source = ParquetChunks(table, columns=["x", "y", "z"], row_groups=row_groups)
    for _ in range(2):
        chunks = list(source)
        assert len(chunks) == len(source) == -(-7 // row_groups)
        np.testing.assert_array_equal(np.concatenate(chunks), items)


def test_columns_have_the_requested_order(table, items):
    np.testing.assert_array_equal(np.concatenate(list(ParquetChunks(table, ["z", "x"]))), items[:, [2, 0]])


@pytest.mark.parametrize("dtype", [pa.list_(pa.float64()), pa.list_(pa.float32(), 3), pa.large_list(pa.float32())])
def test_lists_are_features(items, tmp_path, dtype):
    path = tmp_path / "lists.parquet"
    rows = pa.array(items.tolist(), type=dtype)
    parquet.write_table(pa.table({"features": rows, "more": np.arange(ROWS)}), path, row_group_size=10)
    features = np.concatenate(list(ParquetChunks(path)))
    np.testing.assert_array_equal(features, np.column_stack([items, np.arange(ROWS, dtype=np.float32)]))
    assert features.dtype == np.float32


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float32(), 3)])
def test_row_groups_without_rows_have_the_number_of_features_of_the_others(items, encoder, tmp_path, kind):
    path, none = tmp_path / "lists.parquet", tmp_path / "none.parquet"
    whole = pa.table({"x": pa.array(items[:, :2].tolist(), type=pa.list_(pa.float32())), "y": items[:, 2]})
    if pa.types.is_fixed_size_list(kind):
        whole = pa.table({"x": pa.array(items.tolist(), type=kind)})
    with parquet.ParquetWriter(path, whole.schema) as writer:
        for part in (whole.slice(0, 0), whole.slice(0, 10), whole.slice(0, 0), whole.slice(10)):
            writer.write_table(part)
    assert [x.shape for x in ParquetChunks(path)] == [(0, 3), (10, 3), (0, 3), (15, 3)]
    code = stream(encoder, ParquetChunks(path))
    torch.testing.assert_close(code, encoder(Sets.from_list([torch.from_numpy(items)])), rtol=1e-5, atol=1e-5)
    with parquet.ParquetWriter(none, whole.schema) as writer:
        writer.write_table(whole.slice(0, 0))
    if pa.types.is_fixed_size_list(kind):
        assert torch.equal(stream(encoder, ParquetChunks(none)), encoder(Sets.from_list([torch.zeros(0, 3)])))
    else:
        with pytest.raises(DataError, match="has no rows, so the length of the lists in column 'x' is unknown"):
            stream(encoder, ParquetChunks(none))


class Rows(torch.utils.data.Dataset):
    """A data set for a DataLoader, at module level so that its workers can import it."""

    def __init__(self, items: np.ndarray) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> np.ndarray:
        return self.items[number]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_is_a_source(encoder, items, workers, seeded):
    """Also one with persistent workers, which returns the same iterator at every call after a reset."""
    options: dict[str, Any] = {"persistent_workers": True, "multiprocessing_context": "spawn"} if workers else {}
    with seeded(0):
        loader = torch.utils.data.DataLoader(Rows(items), batch_size=6, num_workers=workers, **options)
        code, whole = stream(encoder, loader), encoder(Sets.from_list([torch.from_numpy(items)]))
        torch.testing.assert_close(code, whole, rtol=1e-5, atol=1e-5)
        actual, expected = (torch.autograd.grad(c.square().sum(), encoder.read_items.weight) for c in (code, whole))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_a_function_that_loads_all_chunks_is_called_once_in_each_pass(encoder, items):
    calls = []

    def load() -> list[np.ndarray]:
        calls.append(1)
        return np.split(items, 5)

    code = stream(encoder, load)
    assert len(calls) == 1
    code.sum().backward()
    assert len(calls) == 2


@pytest.mark.parametrize("ranks", [1, 3, 9])
def test_shards_partition_the_row_groups(table, items, ranks):
    shards = [ParquetChunks(table, ["x"]).shard(rank, ranks) for rank in range(ranks)]
    chunks = [list(shard) for shard in shards]
    assert [len(part) for part in chunks] == [len(shard) for shard in shards]
    assert sum(len(part) for part in chunks) == 7
    values = np.concatenate([x for part in chunks for x in part])[:, 0]
    np.testing.assert_array_equal(np.sort(values), np.sort(items[:, 0]))


def test_a_shard_can_be_divided_again(table):
    whole = [chunk[:, 0].tolist() for chunk in ParquetChunks(table, ["x"])]
    shard = ParquetChunks(table, ["x"]).shard(1, 2)
    parts = [[chunk[:, 0].tolist() for chunk in shard.shard(rank, 2)] for rank in range(2)]
    assert parts == [whole[1::4], whole[3::4]]


def test_an_array_file_is_read_in_chunks(items, tmp_path):
    np.save(tmp_path / "items.npy", items)
    source = NpyChunks(tmp_path / "items.npy", chunk_size=10)
    assert [len(c) for c in source] == [10, 10, 5] and len(source) == 3
    np.testing.assert_array_equal(np.concatenate(list(source)), items)
    np.save(tmp_path / "none.npy", items[:0])
    assert [c.shape for c in NpyChunks(tmp_path / "none.npy")] == [(0, 3)]


def test_arrays_of_any_memory_and_byte_order_are_read(items, tmp_path):
    for number, array in enumerate((np.asfortranarray(items), items.astype(">f4"), items.reshape(ROWS, 3, 1))):
        np.save(tmp_path / f"{number}.npy", array)
        for _ in range(2):
            chunks = list(NpyChunks(tmp_path / f"{number}.npy", chunk_size=10))
            np.testing.assert_array_equal(np.concatenate(chunks), array)
            assert [len(c) for c in chunks] == [10, 10, 5] and all(c.dtype.isnative for c in chunks)


def test_a_file_that_is_truncated_while_it_is_read_is_rejected(items, tmp_path):
    np.save(tmp_path / "items.npy", items)
    chunks = iter(NpyChunks(tmp_path / "items.npy", chunk_size=10))
    next(chunks)
    whole = (tmp_path / "items.npy").read_bytes()
    (tmp_path / "items.npy").write_bytes(whole[:-100])
    with pytest.raises(FileFormatError, match="was truncated while it was read"):
        list(chunks)


@pytest.mark.parametrize("prefetch", [None, False, True])
@pytest.mark.parametrize("kind", ["npy", "parquet", "function"])
def test_streams_of_files_give_the_code_of_the_whole_set(encoder, items, table, tmp_path, kind, prefetch):
    np.save(tmp_path / "items.npy", items)
    sources = {
        "npy": NpyChunks(tmp_path / "items.npy", chunk_size=7),
        "parquet": ParquetChunks(table, ["x", "y", "z"]),
        "function": lambda: iter(np.split(items, 5)),
    }
    assert reads_disk(sources[kind]) == (kind != "function")
    code = stream(encoder, sources[kind], prefetch=prefetch)
    whole = encoder(Sets.from_list([torch.from_numpy(items)]))
    torch.testing.assert_close(code, whole, rtol=1e-5, atol=1e-5)
    actual, expected = (torch.autograd.grad(c.square().sum(), encoder.read_items.weight) for c in (code, whole))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert threads() == 0


def test_invalid_tables_are_rejected(table, tmp_path):
    with pytest.raises(DataError, match="there is no file"):
        list(ParquetChunks(tmp_path / "none.parquet"))
    with pytest.raises(DataError, match="no column 'w'; it has: x, y, z, name"):
        list(ParquetChunks(table, ["x", "w"]))
    with pytest.raises(DataError, match=r"column 'name' of .* holds string, not numbers"):
        list(ParquetChunks(table))
    with pytest.raises(OptionError, match="row_groups must be at least 1"):
        ParquetChunks(table, row_groups=0)
    with pytest.raises(OptionError, match="3 of 3"):
        ParquetChunks(table).shard(3, 3)
    whole = table.read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[:-20])
    with pytest.raises(FileFormatError, match="cannot be read as Parquet"):
        len(ParquetChunks(tmp_path / "cut.parquet"))
    # The footer is intact, but the pages of the first row group are not.
    (tmp_path / "holes.parquet").write_bytes(whole[:4] + b"\xff" * 200 + whole[204:])
    with pytest.raises(FileFormatError, match=r"row groups \[0\] of"):
        list(ParquetChunks(tmp_path / "holes.parquet", ["x"]))
    parquet.write_table(pa.table({"x": [1.0, None]}), tmp_path / "null.parquet")
    with pytest.raises(DataError, match=r"column 'x' of .* has missing values"):
        list(ParquetChunks(tmp_path / "null.parquet"))
    parquet.write_table(pa.table({"x": [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]]}), tmp_path / "ragged.parquet")
    with pytest.raises(DataError, match="differ in length"):
        list(ParquetChunks(tmp_path / "ragged.parquet"))


def test_invalid_arrays_are_rejected(items, tmp_path):
    with pytest.raises(DataError, match="there is no file"):
        list(NpyChunks(tmp_path / "none.npy"))
    np.save(tmp_path / "items.npy", items)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "items.npy").read_bytes()[:-5])
    (tmp_path / "text.npy").write_text("x,y\n1,2\n")
    for name in ("cut", "text"):
        with pytest.raises(FileFormatError, match="cannot be mapped as an array"):
            list(NpyChunks(tmp_path / f"{name}.npy"))
    np.save(tmp_path / "words.npy", np.array(["a", "b"]))
    np.savez(tmp_path / "many.npz", items)
    for name in ("words.npy", "many.npz"):
        with pytest.raises(FileFormatError, match="must hold one array of numbers"):
            list(NpyChunks(tmp_path / name))
    with pytest.raises(OptionError, match="chunk_size must be at least 1"):
        NpyChunks(tmp_path / "items.npy", chunk_size=0)


# --- reading ahead


def test_the_next_chunk_is_read_ahead():
    second = threading.Event()

    def source():
        yield chunk(0)
        second.set()
        yield chunk(1)

    chunks = iter(prefetched(source)())
    assert float(next(chunks).values[0, 0]) == 0.0
    assert second.wait(10), "nothing was read ahead"
    assert numbers(chunks) == [1.0] and threads() == 0


def test_prefetched_chunks_keep_their_order_and_can_be_read_again():
    chunks = prefetched(lambda: map(chunk, range(50)))
    assert numbers(chunks()) == numbers(chunks()) == list(range(50))


def test_an_error_is_raised_in_place_of_the_chunk():
    def source():
        yield chunk(0)
        raise OSError("the disk is gone")

    chunks = iter(prefetched(source)())
    assert float(next(chunks).values[0, 0]) == 0.0
    with pytest.raises(OSError, match="the disk is gone"):
        next(chunks)
    assert threads() == 0


@pytest.mark.parametrize("taken", [1, 2, 5])
def test_the_thread_ends_when_reading_stops_early(taken):
    produced = []

    def source():
        for number in range(10**6):
            produced.append(number)
            yield chunk(number)

    chunks: Any = prefetched(source)()
    for _ in range(taken):
        next(chunks)
    assert threads() == 1
    chunks.close()
    assert threads() == 0
    # Never more than one ahead.
    assert taken <= len(produced) <= taken + 1


# --- the progress bar


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("verbose", [0, 1])
def test_a_stream_shows_a_progress_bar_on_a_terminal(encoder, items, monkeypatch, capsys, terminal, verbose):
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    whole = stream(encoder, items)
    for source in (items, lambda: (x for x in np.split(items, 5))):
        code = stream(encoder, source, chunk_size=5, verbose=verbose)
        assert ("reading chunks" in capsys.readouterr().err) == (terminal and verbose > 0)
        torch.testing.assert_close(code, whole, rtol=1e-5, atol=1e-5)
