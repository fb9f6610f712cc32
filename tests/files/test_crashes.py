"""A process that dies at any moment leaves the old version or the new one, whole, and the next one cleans up."""

import errno
import os
import shutil
from functools import partial

import pytest

from benchmarks.attack.faults import count_operations, crash_before
from setgrad._files import MANIFEST, atomic_write, owned_file, previous_of, read_folder, replace_file, write_folder
from setgrad.errors import DataError, FileFormatError

OLD, NEW = {"a": b"old a", "b": b"old b"}, {"a": b"new a", "b": b"new b, longer"}


def read(folder):
    return read_folder(folder, names=("a", "b"), remedy="save it again") if folder.exists() else None


@pytest.mark.parametrize("before", ["nothing", "empty", "version"])
def test_a_folder_has_the_old_version_or_the_new_one(tmp_path, before):
    if before != "nothing":
        (tmp_path / "start").mkdir()
    if before == "version":
        write_folder(tmp_path / "start", OLD)
        (tmp_path / "start" / "note").write_text("mine")
        (tmp_path / "start" / "obsolete").touch()
    old, seen = read(tmp_path / "start"), []

    def fresh(name):
        if before != "nothing":
            shutil.copytree(tmp_path / "start", tmp_path / name)
        return tmp_path / name

    def save(folder):
        write_folder(folder, NEW, obsolete=["obsolete"])

    operations = count_operations(lambda: save(fresh("whole")))
    for number in range(operations):
        folder = fresh(f"dead-{number}")
        crash_before(number, partial(save, folder))
        seen.append(read(folder))
        assert seen[-1] in (old, NEW)
        # The next save is not held up by what is left, and removes it.
        save(folder)
        assert read(folder) == NEW
        assert {path.name for path in folder.iterdir()} == {"a", "b", MANIFEST} | ({"note"} if old else set())
    assert seen[0] == old and seen[-1] == NEW
    # One moment of replacement: never back to the old version.
    first = seen.index(NEW)
    assert seen == [old] * first + [NEW] * (operations - first)


def test_a_file_is_the_old_one_or_the_new_one(tmp_path):
    def save(path):
        with atomic_write(path) as draft:
            draft.write_bytes(b"new")

    seen = []
    for number in range(count_operations(lambda: save(tmp_path / "whole"))):
        path = tmp_path / str(number) / "file"
        path.parent.mkdir()
        path.write_bytes(b"old")
        crash_before(number, partial(save, path))
        seen.append(path.read_bytes())
        save(path)
        assert [other.name for other in path.parent.iterdir()] == ["file"]
    assert seen == sorted(seen, reverse=True) and set(seen) == {b"old", b"new"}


def test_a_link_in_the_place_of_a_draft_is_not_followed(tmp_path):
    (tmp_path / "of others").write_bytes(b"precious")
    (tmp_path / ".file.part").symlink_to(tmp_path / "of others")
    with atomic_write(tmp_path / "file") as draft:
        draft.write_bytes(b"new")
    assert (tmp_path / "of others").read_bytes() == b"precious"
    assert (tmp_path / "file").read_bytes() == b"new" and not (tmp_path / "file").is_symlink()


@pytest.mark.parametrize("has_links", [True, False])
def test_two_versions_of_a_file_are_kept(tmp_path, monkeypatch, has_links):
    if not has_links:
        monkeypatch.setattr("os.link", lambda *paths: (_ for _ in ()).throw(OSError(errno.EPERM, "no links here")))

    def save(path, content):
        with owned_file(path) as target:
            replace_file(target, content, keep_previous=True)

    save(tmp_path / "whole", b"1")
    for number in range(count_operations(lambda: save(tmp_path / "whole", b"2"))):
        path = tmp_path / str(number) / "file"
        save(path, b"1")
        save(path, b"2")
        assert previous_of(path).read_bytes() == b"1"
        crash_before(number, partial(save, path, b"3"))
        # The version before never has gaps: one of the two files is always the last whole one.
        assert (path.read_bytes(), previous_of(path).read_bytes()) in [(b"2", b"1"), (b"2", b"2"), (b"3", b"2")]
        save(path, b"4")
        assert sorted(other.name for other in path.parent.iterdir()) == ["file", "file.previous"]


def test_an_error_of_the_disk_leaves_the_old_version(tmp_path, monkeypatch):
    folder, write = tmp_path / "folder", os.write
    write_folder(folder, OLD)
    monkeypatch.setattr("os.write", lambda *args: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
    with pytest.raises(DataError, match="No space left; choose another folder"):
        write_folder(folder, NEW)
    with pytest.raises(DataError, match="No space left; choose another folder"):
        write_folder(tmp_path / "deep" / "new", NEW)
    monkeypatch.setattr("os.write", write)
    assert read(folder) == OLD
    assert {path.name for path in folder.iterdir()} == {*OLD, MANIFEST}
    assert not (tmp_path / "deep" / "new").exists()


def test_a_flipped_bit_of_any_byte_is_noticed(tmp_path):
    folder = tmp_path / "folder"
    write_folder(folder, NEW)
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for position in range(0, 8 * len(whole), 13):
            flipped = bytearray(whole)
            flipped[position // 8] ^= 1 << position % 8
            path.write_bytes(flipped)
            try:
                # White space of the manifest may change.
                assert read(folder) == NEW and path.name == MANIFEST
            except FileFormatError as error:
                assert "save it again" in str(error)
        path.write_bytes(whole)


def test_other_files_than_those_of_the_manifest_are_refused(tmp_path):
    write_folder(tmp_path / "m", {"a": b"1"})
    with pytest.raises(FileFormatError, match="does not list the files of this folder"):
        read(tmp_path / "m")
    write_folder(tmp_path / "m", NEW)
    (tmp_path / "m" / "b").unlink()
    with pytest.raises(FileFormatError, match="has no b"):
        read(tmp_path / "m")
