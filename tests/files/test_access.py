"""Owner, group and permissions: the umask for what is new, those of the file before for what replaces it."""

import os
import stat

import pytest

from setgrad._files import atomic_write, owned_file, replace_file, write_folder


@pytest.fixture
def umask():
    before = os.umask(0o027)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def write(path):
    with atomic_write(path) as draft:
        # What is private is not open to others while it is written either.
        assert not path.exists() or mode(draft) == 0o600
        draft.write_text("new")


def write_checkpoint(path):
    with owned_file(path) as target:
        replace_file(target, b"new", keep_previous=True)


@pytest.mark.parametrize("save", [write, write_checkpoint])
def test_a_file_keeps_its_permissions(tmp_path, umask, save):
    save(tmp_path / "new")
    assert mode(tmp_path / "new") == 0o640
    for permissions in (0o600, 0o664, 0o444):
        (tmp_path / "old").touch()
        (tmp_path / "old").chmod(permissions)
        save(tmp_path / "old")
        assert mode(tmp_path / "old") == permissions
        assert (tmp_path / "old").read_text() == "new"


def test_a_folder_keeps_its_permissions(tmp_path, umask):
    folder = tmp_path / "model"
    write_folder(folder, {"a": b"1", "b": b"1"})
    assert [mode(path) for path in (folder, *sorted(folder.iterdir()))] == [0o750, 0o640, 0o640, 0o640]
    folder.chmod(0o700)
    (folder / "a").chmod(0o604)
    write_folder(folder, {"a": b"2", "b": b"2"})
    assert [mode(path) for path in (folder, *sorted(folder.iterdir()))] == [0o700, 0o604, 0o640, 0o640]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may change owners")
def test_a_file_keeps_its_owner_and_group(tmp_path):
    path = tmp_path / "old"
    path.touch()
    os.chown(path, 1234, 5678)
    write(path)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 5678)


def test_a_group_that_cannot_be_kept_gives_no_rights_to_another(tmp_path, monkeypatch):
    path = tmp_path / "old"
    path.touch()
    path.chmod(0o664)
    real, refused = os.stat, []

    def other_group(target, *args, **options):
        found = real(target, *args, **options)
        if str(target) != str(path):
            return found
        return os.stat_result((*found[:5], found.st_gid + 1, *found[6:10]))

    def refuse(*args):
        refused.append(args)
        raise PermissionError

    monkeypatch.setattr("os.stat", other_group)
    monkeypatch.setattr("os.chown", refuse)
    write(path)
    monkeypatch.undo()
    assert refused and mode(path) == 0o644
