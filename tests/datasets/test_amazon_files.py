"""Damaged, unusual and missing registry files, on small generated files."""

from pathlib import Path

import numpy as np
import pytest

from setgrad.datasets import amazon
from setgrad.errors import DataError, FileFormatError, OptionError

REGISTRIES = "1_100_100_100_toys_regs.csv"
VECTORS = "minilm_l6_v2_item_embeddings.npz"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "amazon_baby_registry"
    folder.mkdir()
    vectors = np.random.default_rng(0).standard_normal((33, 4)).astype(np.float32)
    np.savez(folder / VECTORS, toys=vectors)
    (folder / REGISTRIES).write_bytes(b"1,2,3\r\n4\r\n5,6,7,33\r\n8,9,10\r\n")
    return folder


def test_a_small_file_is_split_into_thirds(folder: Path) -> None:
    task = amazon("toys", data_dir=folder.parent)
    assert [task.train.set_ids, task.validation.set_ids, task.test.set_ids] == [[1], [3], [4]]
    assert task.name == "amazon:toys:farthest"


def test_the_folder_may_come_from_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SETGRAD_DATA", str(folder.parent))
    assert len(amazon("toys").test) == 1


def test_blank_lines_are_skipped_and_repeated_products_count_once(folder: Path) -> None:
    (folder / REGISTRIES).write_text("1,2,2\n\n3,4,4,5\n6,7,8\n9,10,11\n")
    task = amazon("toys", data_dir=folder.parent)
    assert [task.train.set_ids, task.validation.set_ids, task.test.set_ids] == [[3], [4], [5]]
    assert int(task.train.subsets.values.sum()) == 3


@pytest.mark.parametrize("protocol", ["farthest", "random"])
def test_no_usable_registry_gives_empty_splits(folder: Path, protocol: str) -> None:
    (folder / REGISTRIES).write_text("1,2\n3\n")
    task = amazon("toys", protocol, data_dir=folder.parent)
    assert len(task.train) == len(task.validation) == len(task.test) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3\n4,x,5\n", "line 2: integers were expected, not '4,x,5'"),
        ("1,2,3\n4,,5\n", "line 2: integers were expected"),
        ("1,2,34\n", "line 1: product numbers run from 1 to 33, not '1,2,34'"),
        ("5,6,7\n0,1,2\n", "line 2: product numbers run from 1 to 33"),
        ("1,2,\xff\n", "line 1: integers"),
    ],
)
def test_damaged_registries_raise_errors(folder: Path, text: str, message: str) -> None:
    (folder / REGISTRIES).write_text(text, encoding="latin-1")
    with pytest.raises(FileFormatError, match=message):
        amazon("toys", data_dir=folder.parent)


def test_damaged_vectors_raise_errors(folder: Path) -> None:
    path = folder / VECTORS
    whole = path.read_bytes()
    for content in (b"", b"not an archive", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match="cannot be read"):
            amazon("toys", data_dir=folder.parent)
    with path.open("wb") as file:
        np.save(file, np.ones((40, 4)))
    with pytest.raises(FileFormatError, match="cannot be read"):
        amazon("toys", data_dir=folder.parent)
    np.savez(path, bath=np.ones((40, 4)))
    with pytest.raises(FileFormatError, match="no array named 'toys'"):
        amazon("toys", data_dir=folder.parent)
    np.savez(path, toys=np.full((40, 4), np.nan))
    with pytest.raises(FileFormatError, match="finite vectors of at least 30 products"):
        amazon("toys", data_dir=folder.parent)
    np.savez(path, toys=np.ones((29, 4)))
    with pytest.raises(FileFormatError, match="at least 30 products"):
        amazon("toys", data_dir=folder.parent)


def test_pickled_vectors_raise_an_error(folder: Path) -> None:
    np.savez(folder / VECTORS, toys=np.array([{"a": 1}], dtype=object))
    with pytest.raises(FileFormatError, match="cannot be read"):
        amazon("toys", data_dir=folder.parent)


@pytest.mark.parametrize("name", [REGISTRIES, VECTORS])
def test_a_missing_file_raises_an_error(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(DataError, match=f"{name} is missing"):
        amazon("toys", data_dir=folder.parent)


def test_a_missing_folder_raises_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"there is no folder .*SETGRAD_DATA"):
        amazon("toys", data_dir=tmp_path)
    monkeypatch.delenv("SETGRAD_DATA", raising=False)
    with pytest.raises(DataError, match="set the environment variable SETGRAD_DATA, or pass data_dir"):
        amazon("toys")


def test_unknown_categories_and_protocols_raise_errors(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="unknown Amazon category 'decor'; choose one of: apparel, bath"):
        amazon("decor", data_dir=tmp_path)
    with pytest.raises(OptionError, match="unknown Amazon protocol 'nearest'; choose one of: farthest, random"):
        amazon("toys", "nearest", data_dir=tmp_path)
