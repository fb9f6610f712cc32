"""Several processes at one file or folder: writers take turns, readers see whole versions, the dead hold nothing."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from setgrad._files import owned_file, read_folder, replace_file, write_folder
from setgrad.errors import DataError

START = "import sys; from pathlib import Path; from setgrad._files import *; path = Path(sys.argv[1])\n"


def start(code, path):
    return subprocess.Popen([sys.executable, "-c", START + code, str(path)], stdout=subprocess.PIPE, text=True)


def test_a_second_owner_is_refused_and_told_who_the_first_is(tmp_path):
    path = tmp_path / "run.ckpt"
    with owned_file(path) as target:
        for _ in range(2):
            message = rf"run.ckpt is in use by process {os.getpid()} on .*; wait until"
            with pytest.raises(DataError, match=message), owned_file(path):
                pass
        replace_file(target, b"mine", keep_previous=True)
    assert [other.name for other in tmp_path.iterdir()] == ["run.ckpt"]
    with owned_file(path):
        pass


def test_a_killed_process_holds_nothing(tmp_path):
    path = tmp_path / "run.ckpt"
    code = "with owned_file(path):\n  print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", START + code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "ready\n"
        with pytest.raises(DataError, match=rf"in use by process {child.pid} on "), owned_file(path):
            pass
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    with owned_file(path):
        pass
    assert not list(tmp_path.iterdir())


def test_writers_in_threads_take_turns(tmp_path):
    folder, seen = tmp_path / "m", []
    versions = [{"a": bytes([number]) * 1000, "b": bytes([number])} for number in range(4)]
    write_folder(folder, versions[0])
    done = threading.Event()

    def write(version):
        for _ in range(6):
            write_folder(folder, version)

    def look():
        while not done.is_set():
            seen.append(read_folder(folder, names=("a", "b"), remedy=""))

    writers = [threading.Thread(target=write, args=(version,)) for version in versions]
    reader = threading.Thread(target=look)
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert seen and all(found in versions for found in seen)
    assert {path.name for path in folder.iterdir()} == {"a", "b", "manifest.json"}


def test_a_reader_in_another_process_sees_whole_versions_of_a_writer_that_is_killed(tmp_path):
    """Two versions alternate: a reader that mixed them would find a wrong checksum."""
    folder = tmp_path / "m"
    versions = [{"a": letter * 50_000, "b": letter} for letter in (b"x", b"y")]
    write_folder(folder, versions[0])
    code = (
        "print('ready', flush=True)\n"
        "while True:\n"
        "  for letter in (b'x', b'y'): write_folder(path, {'a': letter * 50_000, 'b': letter})\n"
    )
    seen = []
    with start(code, folder) as child:
        assert child.stdout.readline() == "ready\n"
        ends = time.monotonic() + 1
        while time.monotonic() < ends:
            seen.append(read_folder(folder, names=("a", "b"), remedy=""))
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert all(found in versions for found in seen)
    assert versions[0] in seen and versions[1] in seen
    assert read_folder(folder, names=("a", "b"), remedy="") in versions
    write_folder(folder, versions[1])
    assert {path.name for path in folder.iterdir()} == {"a", "b", "manifest.json"}
