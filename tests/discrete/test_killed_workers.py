"""Killed worker processes are an error that the next call survives; a killed parent leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CODE = """
import multiprocessing, os, signal, sys, time
from setgrad.discrete import WorkerPool
from setgrad.errors import SolverError

def double(number):
    return 2 * number

if __name__ == "__main__":
    pool = WorkerPool(2, processes=True)
    assert pool.map(double, range(4)) == [0, 2, 4, 6]
    os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
    try:
        while True:
            pool.map(double, range(4))
    except SolverError as error:
        assert "a worker process ended" in str(error)
    assert pool.map(double, range(4)) == [0, 2, 4, 6]
    print("ready", flush=True)
    time.sleep(1000)
"""


def children(parent: int) -> set[int]:
    """Return the processes that a process started."""
    return {int(pid) for path in Path(f"/proc/{parent}/task").glob("*/children") for pid in path.read_text().split()}


def is_there(pid: int) -> bool:
    try:
        # A dead process stays until somebody asks for its exit code.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads the processes as Linux shows them")
def test_killed_processes_leave_nothing_behind(tmp_path):
    (tmp_path / "work.py").write_text(CODE)
    parent = subprocess.Popen([sys.executable, tmp_path / "work.py"], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None and parent.stdout.readline() == "ready\n"
        # Two workers, and the process that removes shared memory.
        left = children(parent.pid)
        assert len(left) >= 3
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
    ends = time.monotonic() + 60
    while any(map(is_there, left)) and time.monotonic() < ends:
        time.sleep(0.05)
    assert not any(map(is_there, left))
