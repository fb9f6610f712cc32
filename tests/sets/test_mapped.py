"""Items that stay in a `.npy` file."""

import re

import numpy as np
import pytest
import torch

from setgrad.errors import DataError, FileFormatError, ShapeError
from setgrad.sets import Sets, as_sets, write_npy


def test_chunks_are_written_as_one_array(tmp_path):
    path = tmp_path / "items.npy"
    items = np.arange(30, dtype=np.float32).reshape(10, 3)
    assert write_npy([items[:4], torch.from_numpy(items[4:9]), items[9:]], path) == 10
    np.testing.assert_array_equal(np.load(path), items)
    sets = Sets.from_npy(path, [7, 0, 3])
    assert sets.lengths.tolist() == [7, 0, 3]
    assert torch.equal(sets.values, torch.from_numpy(items))


def test_items_stay_in_the_file(tmp_path):
    path = tmp_path / "items.npy"
    np.save(path, np.zeros((5, 2), np.float32))
    sets = as_sets(Sets.from_npy(path))
    assert sets.layout.total == 5
    # A change of the file is seen, because nothing was copied; a change of the values does not reach the file.
    file = np.load(path, mmap_mode="r+")
    file[3] = 7
    file.flush()
    assert sets[0:1].values[3].tolist() == [7.0, 7.0]
    sets.values[0] = 1
    assert np.load(path)[0].tolist() == [0.0, 0.0]


def test_files_that_hold_no_items_are_refused(tmp_path):
    with pytest.raises(DataError, match="there is no file"):
        Sets.from_npy(tmp_path / "none.npy")
    (tmp_path / "text.npy").write_text("no array")
    with pytest.raises(FileFormatError, match="cannot be mapped"):
        Sets.from_npy(tmp_path / "text.npy")
    np.save(tmp_path / "number.npy", np.float32(3))
    with pytest.raises(FileFormatError, match="one item in each row"):
        Sets.from_npy(tmp_path / "number.npy")
    np.save(tmp_path / "big.npy", np.zeros((2, 2), ">f4"))
    with pytest.raises(FileFormatError, match="torch cannot read"):
        Sets.from_npy(tmp_path / "big.npy")
    np.save(tmp_path / "items.npy", np.zeros((2, 2)))
    with pytest.raises(ShapeError):
        Sets.from_npy(tmp_path / "items.npy", [3])
    with pytest.raises(DataError, match="there is no chunk"):
        write_npy([], tmp_path / "items.npy")
    with pytest.raises(DataError, match=re.escape("items (3,) of float64, the first one (2,) of float32")):
        write_npy([np.zeros((1, 2), np.float32), np.zeros((1, 3))], tmp_path / "items.npy")
