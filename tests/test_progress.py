"""Bars, lines and the logger that tell how far a long piece of work is."""

import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from setgrad._progress import progress_bar, showing, slow_bar


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands still until a test moves it."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr("setgrad._progress.time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def test_without_a_terminal_there_is_a_line_every_ten_seconds(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_bar("fitting", 400, unit="sets") as progress:
        for done in range(0, 110, 10):
            progress.update(done, f"step {done}")
            clock.seconds += 2
    lines = capsys.readouterr().err.splitlines()
    # The first at once, then every fifth update, and the last one.
    assert [line.split("step ")[1].split(",")[0] for line in lines] == ["0", "50", "100"]
    assert lines[1] == "fitting: 12 %, step 50, 5 sets/s, at most 1:10 left"


def test_time_that_is_left_may_be_told(clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("fitting", 100) as progress:
        clock.seconds += 1
        progress.update(50, left=3725)
    assert capsys.readouterr().err == "fitting: 50 %, at most 1 h 02 min left\n"


def test_nothing_is_left_at_the_end(clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("fitting", 100, unit="sets") as progress:
        clock.seconds += 5
        progress.update(100)
    assert capsys.readouterr().err == "fitting: 100 %, 20 sets/s\n"


def test_what_was_done_before_does_not_count_in_the_rate(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_bar("fitting", 100, unit="sets", start=50) as progress:
        clock.seconds += 5
        progress.update(60)
    assert capsys.readouterr().err == "fitting: 60 %, 2 sets/s, at most 0:20 left\n"


@pytest.mark.parametrize("shown", [True, False])
def test_short_work_shows_nothing(clock: SimpleNamespace, capsys: pytest.CaptureFixture[str], shown: bool) -> None:
    for seconds in (1, 4):
        with showing("choosing", shown), slow_bar(2, "sets") as progress:
            for done in (1, 2):
                clock.seconds += seconds
                progress.update(done)
        assert capsys.readouterr().err.count("choosing") == (2 if shown and seconds == 4 else 0)


def test_where_the_end_is_not_known_the_steps_are_counted(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    with showing("choosing", True), slow_bar(None, "rows", "reading x") as progress:
        clock.seconds += 4
        progress.update(8_000)
    assert capsys.readouterr().err == "reading x: 8,000 rows, 2,000 rows/s\n"


def test_only_those_who_ask_for_it_see_slow_work(clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    with slow_bar(2, "sets") as progress:
        clock.seconds += 60
        progress.update(1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("enabled", [True, False])
def test_a_handler_of_logging_gets_the_lines_instead(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, enabled: bool
) -> None:
    with caplog.at_level(logging.INFO, "setgrad"), progress_bar("fitting", 2, enabled=enabled) as progress:
        progress.update(1, "half")
    assert [record.getMessage() for record in caplog.records] == ["fitting: 50 %, half"]
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar("fitting", 2) as progress:
        progress.update(2, "loss 1")
    assert "loss 1" in capsys.readouterr().err
    assert progress.bar is not None and progress.bar.finished


def test_without_rich_a_terminal_gets_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing: Any = None
    monkeypatch.setitem(sys.modules, "rich.console", missing)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar("fitting", 2) as progress:
        progress.update(2, "loss 1")
    assert "fitting: 100 %, loss 1" in capsys.readouterr().err
