"""Files are written whole or not at all, and damaged tensors are found."""

from pathlib import Path

import pytest
import torch

from setgrad._files import atomic_write, check_writable, read_tensors, write_tensors
from setgrad.errors import DataError, FileFormatError

TENSORS = {"weight": torch.arange(6.0).reshape(2, 3), "count": torch.tensor(7)}


def test_an_error_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "note.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_write(path) as temporary:
        temporary.write_text("new")
        _ = 1 / 0
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_target_of_a_link_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    link = tmp_path / "link.txt"
    link.symlink_to(tmp_path / "real.txt")
    with atomic_write(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


def test_paths_that_take_no_file_are_errors(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, message in ((tmp_path, "is a folder"), (tmp_path / "file" / "below", "not a folder")):
        with pytest.raises(DataError, match=message):
            check_writable(path)
    with pytest.raises(DataError, match="a device or a pipe"):
        check_writable(Path("/dev/null"))


def test_tensors_and_metadata_come_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.safetensors"
    write_tensors(path, TENSORS, "test.state", note="seven")
    tensors, metadata = read_tensors(path, "test.state", remedy="write it again")
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert metadata["note"] == "seven"


def test_two_names_of_one_tensor_are_written_as_two(tmp_path: Path) -> None:
    shared = torch.ones(3)
    write_tensors(tmp_path / "s", {"a": shared, "b": shared[:2]}, "test.state")
    tensors, _ = read_tensors(tmp_path / "s", "test.state", remedy="")
    assert {name: len(tensor) for name, tensor in tensors.items()} == {"a": 3, "b": 2}


def test_every_flipped_bit_of_the_tensors_is_found(tmp_path: Path) -> None:
    path = tmp_path / "s"
    write_tensors(path, TENSORS, "test.state")
    content = path.read_bytes()
    size = sum(tensor.nbytes for tensor in TENSORS.values())
    for place in range(len(content) - size, len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError, match="changed or damaged since it was written; write it again"):
            read_tensors(path, "test.state", remedy="write it again")


def test_files_of_another_kind_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "s"
    write_tensors(path, TENSORS, "test.state")
    with pytest.raises(FileFormatError, match=r"holds test\.state, not test\.other; fit again"):
        read_tensors(path, "test.other", remedy="fit again")
    path.write_bytes(b"no safetensors")
    with pytest.raises(FileFormatError, match=r"cannot be read as test\.state"):
        read_tensors(path, "test.state", remedy="fit again")
