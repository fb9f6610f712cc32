"""Bags for multiple-instance learning: small generated files, and the real ones if available."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from setgrad.datasets import MIL_DATASETS, Bags, bag_folds, mil
from setgrad.errors import DataError, FileFormatError, OptionError
from setgrad.sets import Sets


def write_table(folder: Path, rows: list[list[float]], name: str = "protein.csv.gz") -> Path:
    (folder / "mil").mkdir(exist_ok=True)
    path = folder / "mil" / name
    text = "\n".join(",".join(map(str, row)) for row in rows)
    path.write_bytes(gzip.compress(text.encode()))
    return path


def row(label: int, bag: int, value: float) -> list[float]:
    return [label, bag, *(value + np.arange(9) / 10)]


def make_bags(labels: list[bool], groups: list[int]) -> Bags:
    sets = Sets.from_list([torch.zeros(1, 1)] * len(labels))
    return Bags("generated", sets, torch.tensor(labels), np.array(groups), "generated")


def test_rows_of_a_bag_may_be_in_any_order(tmp_path: Path) -> None:
    write_table(tmp_path, [row(0, 7, 1.0), row(1, 2, 2.0), row(0, 7, 3.0), row(1, 5, 4.0)])
    bags = mil("protein", data_dir=tmp_path)
    assert bags.labels.tolist() == [True, True, False]
    assert [bag[:, 0].tolist() for bag in bags.sets.to_list()] == [[2.0], [4.0], [1.0, 3.0]]
    assert bags.sets.dtype == torch.float32 and "3 bags, 2 positive, 4 instances" in repr(bags)


def test_npz_archives_are_read(tmp_path: Path) -> None:
    (tmp_path / "mil").mkdir()
    x = np.arange(690, dtype=np.float32).reshape(3, 230)
    np.savez(tmp_path / "mil" / "fox_mat.npz", X=x, bag=np.array([1, 1, 2]), y=np.array([1, 1, 0], np.uint8))
    bags = mil("fox", data_dir=tmp_path)
    assert bags.labels.tolist() == [True, False] and torch.equal(bags.sets.values, torch.from_numpy(x))


def test_bags_that_share_an_instance_are_in_one_group(tmp_path: Path) -> None:
    # Bag 1 shares an instance with 3, and 3 with 4: all three are in one group.
    rows = [row(1, 1, 0.0), row(0, 2, 1.0), row(0, 3, 0.0), row(0, 3, 2.0), row(1, 4, 2.0), row(0, 5, 3.0)]
    write_table(tmp_path, rows)
    assert mil("protein", data_dir=tmp_path).groups.tolist() == [0, 1, 0, 0, 4]


@pytest.mark.parametrize("seed", range(5))
def test_folds_are_stratified_and_split_no_group(seed: int) -> None:
    labels = [number % 4 == 0 for number in range(83)]
    groups = [number if number > 12 else number // 4 for number in range(83)]
    bags = make_bags(labels, groups)
    folds = bag_folds(bags, 7, random_state=seed)
    assert sorted(np.concatenate([test for _, test in folds])) == list(range(83))
    for train, test in folds:
        assert sorted([*train, *test]) == list(range(83))
        assert not set(bags.groups[train]) & set(bags.groups[test])
        assert 2 <= sum(labels[number] for number in test) <= 4
    other = bag_folds(bags, 7, random_state=seed + 1)
    assert any(not np.array_equal(a[1], b[1]) for a, b in zip(folds, other, strict=True))


def test_impossible_folds_raise_an_error() -> None:
    for count in (1, 4):
        with pytest.raises(OptionError, match="3 groups of bags cannot be split"):
            bag_folds(make_bags([True, False, True, False], [0, 1, 2, 2]), count)


def test_missing_and_damaged_files_raise_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder"):
        mil("protein", data_dir=tmp_path)
    path = write_table(tmp_path, [row(1, 1, 0.0), row(0, 1, 1.0)])
    with pytest.raises(FileFormatError, match="different labels"):
        mil("protein", data_dir=tmp_path)
    write_table(tmp_path, [[1, 1, 0.5], [0, 2, 0.5]])
    with pytest.raises(FileFormatError, match="9 features"):
        mil("protein", data_dir=tmp_path)
    write_table(tmp_path, [row(1, 1, float("nan"))])
    with pytest.raises(FileFormatError, match="not finite"):
        mil("protein", data_dir=tmp_path)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(FileFormatError, match="cannot be read"):
        mil("protein", data_dir=tmp_path)
    path.unlink()
    with pytest.raises(DataError, match="is missing"):
        mil("protein", data_dir=tmp_path)


# Published numbers of bags, positive bags and instances.
COUNTS = {
    "musk1": (92, 47, 476),
    "musk2": (102, 39, 6598),
    "elephant": (200, 100, 1391),
    "fox": (200, 100, 1320),
    "tiger": (200, 100, 1220),
    "protein": (193, 25, 26611),
    "birds": (548, 197, 10232),
    "dogs": (2000, 100, 7947),
}


@pytest.mark.parametrize("name", MIL_DATASETS)
def test_real_files_have_the_published_counts(name: str, data_dir: Path) -> None:
    bags = mil(name, data_dir=data_dir)
    assert (len(bags), int(bags.labels.sum()), len(bags.sets.values)) == COUNTS[name]
    assert (len(np.unique(bags.groups)) < len(bags)) == (name == "protein")
