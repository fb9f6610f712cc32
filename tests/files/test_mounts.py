"""File systems that cannot replace a file as a whole are refused; a model may be a mount point."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from benchmarks.attack.faults import count_operations, crash_before
from setgrad._files import _mounts, atomic_write, read_folder, write_folder
from setgrad._files._mounts import file_system_of
from setgrad.errors import DataError
from setgrad.selector._model_files import check_model_folder

TABLE = """\
/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
user@host: {place}/over\\040ssh fuse.sshfs rw 0 0
bucket {place}/bucket fuse.gcsfuse rw 0 0
/dev/vdb {place}/bucket/local xfs rw 0 0
//server/share {place}/hidden cifs rw 0 0
tmpfs {place}/hidden tmpfs rw 0 0
a line that is damaged
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "mounts").write_text(TABLE.format(place=tmp_path))
    monkeypatch.setattr(_mounts, "_TABLE", tmp_path / "mounts")
    for name in ("over ssh", "bucket/local", "hidden", "plain"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def test_the_longest_mount_point_above_a_path_counts(place):
    assert file_system_of(place / "plain" / "model") == "ext4"
    assert file_system_of(Path("/home/me/model")) == "nfs4"
    assert file_system_of(Path("/homes")) == "ext4"
    assert file_system_of(place / "over ssh" / "deep" / "model") == "fuse.sshfs"
    assert file_system_of(place / "bucket") == "fuse.gcsfuse"
    assert file_system_of(place / "bucket" / "local" / "model") == "xfs"
    assert file_system_of(place / "hidden" / "model") == "tmpfs"


@pytest.mark.parametrize("name", ["over ssh", "bucket"])
def test_folders_without_a_whole_replacement_are_refused_before_any_work(place, name):
    kind = file_system_of(place / name)
    with pytest.raises(DataError, match=rf"is on {kind}, which cannot replace a file as a whole; write to a folder of"):
        check_model_folder(place / name / "model")
    with pytest.raises(DataError, match=kind), atomic_write(place / name / "picks.csv"):
        pass
    assert not (place / name / "picks.csv").exists()


def test_other_folders_are_taken_and_so_are_all_where_the_system_does_not_say(place, monkeypatch):
    for name in ("plain", "hidden", "bucket/local"):
        check_model_folder(place / name / "model")
    monkeypatch.setattr(_mounts, "_TABLE", place / "nothing")
    assert file_system_of(place / "bucket") == ""
    check_model_folder(place / "bucket" / "model")


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this system mounts nothing for tests: {done.stderr.strip()[:80]}")


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mount") is None, reason="mounts need the root user"
)
@pytest.mark.parametrize("kind", ["tmpfs", "bind"])
def test_a_mount_point_has_the_old_version_or_the_new_one(tmp_path, kind):
    old, new = {"a": b"old a", "b": b"old b"}, {"a": b"new a", "b": b"new b, longer"}
    (tmp_path / "source").mkdir()
    folder = tmp_path / "model"
    folder.mkdir()
    mount(*(["-t", "tmpfs", "none"] if kind == "tmpfs" else ["--bind", str(tmp_path / "source")]), str(folder))
    try:
        write_folder(folder, old)
        operations = count_operations(lambda: write_folder(folder, new))
        seen = []
        for number in range(operations):
            write_folder(folder, old)
            crash_before(number, partial(write_folder, folder, new))
            seen.append(read_folder(folder, names=("a", "b"), remedy=""))
            write_folder(folder, new)
            assert read_folder(folder, names=("a", "b"), remedy="") == new
        assert operations > 10 and seen[0] == old and seen[-1] == new and all(one in (old, new) for one in seen)
        assert {path.name for path in folder.iterdir()} == {"a", "b", "manifest.json"}
    finally:
        subprocess.run(["umount", str(folder)], check=True)
