"""A short run of the attacks: nothing is lost or silently wrong; and the harness notices what it looks for."""

import os
import random
import signal
import sys
import time
from collections import Counter

import pytest

from benchmarks.__main__ import main
from benchmarks.attack.faults import count_operations, crash_before
from benchmarks.attack.mutations import mutate_bytes, mutate_value
from benchmarks.attack.verdicts import CRASH, ERROR, HANG, MEMORY, OTHER, SAME, TRACEBACK, judge
from setgrad.errors import DataError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="children are limited as Linux does")


def fail(error):
    raise error


@pytest.mark.parametrize(
    ("read", "verdict"),
    [
        (lambda: "right", SAME),
        (lambda: "wrong", OTHER),
        (lambda: fail(DataError("the cause; the remedy")), ERROR),
        (lambda: fail(KeyError("x")), TRACEBACK),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), CRASH),
        (lambda: str(len(bytearray(2**33))), MEMORY),
    ],
)
def test_verdicts(read, verdict):
    assert judge(read, "right") == verdict


def test_a_hang_is_noticed_and_a_traceback_is_noted(monkeypatch):
    monkeypatch.setattr("benchmarks.attack.verdicts._SECONDS", 1)
    assert judge(lambda: time.sleep(60), "right") == HANG
    notes = Counter[str]()
    judge(lambda: fail(KeyError("x")), "right", notes)
    assert notes == {"KeyError: 'x'": 1}


def test_a_simulated_crash_does_no_later_operation(tmp_path):
    def work():
        for number in range(3):
            (tmp_path / str(number)).mkdir()

    assert count_operations(work) == 3
    for path in tmp_path.iterdir():
        path.rmdir()
    crash_before(2, work)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_mutations_change_what_they_are_given():
    draw, content, value = random.Random(0), bytes(range(100)), {"a": [1, {"b": "c"}], "d": 2.5}
    assert sum(mutate_bytes(content, draw) != content for _ in range(200)) > 190
    assert sum(repr(mutate_value(value, draw)) != repr(value) for _ in range(200)) > 180
    assert value == {"a": [1, {"b": "c"}], "d": 2.5}


def test_a_short_run_finds_nothing(capsys):
    assert main(["attack", "--quick", "--only", "model"]) == 0
    assert "model: crash at every file operation" in capsys.readouterr().out
