"""Ctrl-C during `setgrad fit`: the folder holds the best model so far."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import setgrad as sg
from setgrad.selector._monitor import Monitor


@pytest.mark.parametrize("as_json", [True, False])
def test_a_fit_that_is_stopped_is_saved(
    run: Callable, table: Path, tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    monkeypatch.setattr(Monitor, "batch", lambda *_: signal.raise_signal(signal.SIGINT))
    words = ["--set-id", "basket", "--chosen", "bought", "-o", tmp_path / "m", *tiny]
    # Tests that run in the background ignore Ctrl-C otherwise.
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = run("fit", table, *words, *(["--json"] if as_json else []))
    finally:
        signal.signal(signal.SIGINT, old)
    assert result.code == 130
    assert "warning: the fit was stopped in epoch 1" in result.err
    assert len(sg.load(tmp_path / "m").history_) == 1
    if as_json:
        assert result.data["stopped"] is True
    else:
        assert "stopped: the folder holds the best model so far" in result.out


def test_a_time_limit_is_an_option(run: Callable, table: Path, tiny: list[str], tmp_path: Path) -> None:
    words = ["--set-id", "basket", "--chosen", "bought", "-o", tmp_path / "m", *tiny]
    assert run("fit", table, *words, "--max-time", "600").code == 0
    assert sg.load(tmp_path / "m").options_.max_time == 600
    assert "--max-time must be None or a number above 0" in run("fit", table, *words, "--max-time", "0").err
