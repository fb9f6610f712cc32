"""Fits that end early: by Ctrl-C, by their time, and with a perfect score."""

import math
import signal
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import setgrad as sg
from setgrad.selector import SubsetSelector
from setgrad.selector._clock import Clock
from setgrad.selector._monitor import Monitor
from setgrad.selector._trainer import Trainer
from setgrad.sets import Choices, Sets
from tests.selector.conftest import TINY, make_choices


def fit(choices, **options) -> SubsetSelector:
    return SubsetSelector(**{**TINY, **options}).fit(*choices)


def same_weights(one, two):
    first, second = one.model_.state_dict(), two.model_.state_dict()
    return all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.fixture
def press(monkeypatch):
    """Return a function that lets Ctrl-C be pressed after batches with these numbers, counted from 1."""
    batch, count = Monitor.batch, 0
    # Tests that run in the background ignore Ctrl-C otherwise.
    old = signal.signal(signal.SIGINT, signal.default_int_handler)

    def at(*numbers):
        def told(self: Monitor, size: int, left: float | None) -> None:
            nonlocal count
            count += 1
            batch(self, size, left)
            for _ in range(numbers.count(count)):
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(Monitor, "batch", told)

    yield at
    signal.signal(signal.SIGINT, old)


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("number", [1, 7])
def test_ctrl_c_keeps_the_best_model_so_far(choices, press, number, members, tmp_path):
    """48 training sets are two batches."""
    press(number)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.warns(RuntimeWarning, match="the fit was stopped in epoch"):
        selector = fit(choices, members=members)
    assert signal.getsignal(signal.SIGINT) is handler
    assert selector.stopped_ and len(selector.history_) < TINY["max_epochs"]
    best = max(record["validation_jaccard"] for record in selector.history_)
    assert members > 1 or selector.history_[selector.best_epoch_ - 1]["validation_jaccard"] == best
    assert math.isfinite(selector.score(*choices))
    selector.save(tmp_path / "model")
    assert not sg.load(tmp_path / "model").stopped_


def test_a_second_ctrl_c_ends_at_once(choices, press):
    press(3, 3)
    with pytest.raises(KeyboardInterrupt):
        fit(choices)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_stopped_run_resumes_from_its_last_whole_epoch(choices, press, tmp_path, monkeypatch):
    whole = fit(choices)
    press(7)
    with pytest.warns(RuntimeWarning, match="stopped in epoch 4"):
        fit(choices, checkpoint=tmp_path / "state")
    monkeypatch.undo()
    resumed = fit(choices, checkpoint=tmp_path / "state")
    assert same_weights(whole, resumed) and not resumed.stopped_


def test_a_handler_of_the_user_stays(choices, press):
    pressed = []
    old = signal.signal(signal.SIGINT, lambda *_: pressed.append(1))
    try:
        press(3)
        assert not fit(choices, max_epochs=2).stopped_
    finally:
        signal.signal(signal.SIGINT, old)
    assert pressed == [1]


# ---- time


@pytest.fixture
def clock(monkeypatch):
    """A clock that a batch moves on by one second."""
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr("setgrad.selector._clock.time", SimpleNamespace(monotonic=lambda: now.seconds))
    step = Trainer._step

    def timed(self: Trainer, *arguments: Any) -> torch.Tensor:
        now.seconds += 1
        return step(self, *arguments)

    monkeypatch.setattr(Trainer, "_step", timed)
    return now


@pytest.mark.parametrize("limit", [1e-6, 9.0])
def test_a_fit_ends_in_time_also_within_an_epoch(choices, clock, limit):
    """Four fifths of the time are for training, so of 9 seconds 8 batches, and 2 batches are an epoch."""
    selector = fit(choices, max_time=limit, max_epochs=50)
    assert clock.seconds == (1 if limit < 1 else 8)
    assert len(selector.history_) == (1 if limit < 1 else 4)
    assert selector.best_epoch_ >= 1 and not selector.stopped_


def test_members_share_the_time(choices, clock):
    selector = fit(choices, max_time=80.0, members=3, max_epochs=50, patience=50)
    # For each of them 21.3 seconds.
    assert clock.seconds == 66
    assert len(selector.history_) == 11


def test_steps_become_smaller_towards_the_end(choices, clock, monkeypatch):
    rates: list[float] = []
    step = Trainer._step

    def noted(self: Trainer, *arguments: Any) -> torch.Tensor:
        rates.append(self.clock.factor)
        return step(self, *arguments)

    monkeypatch.setattr(Trainer, "_step", noted)
    fit(choices, max_time=16.0, max_epochs=50, patience=50)
    assert rates == pytest.approx([min(1, 2 * (1 - used / 12.8)) for used in range(13)])
    assert Clock(None).factor == 1 and Clock(1.0, used=0.8).factor == 0.02


def test_a_resumed_run_has_the_time_that_is_left(choices, clock, tmp_path):
    path = tmp_path / "state"
    whole = fit(choices, max_time=16.0, checkpoint=path, max_epochs=50)
    before = clock.seconds
    again = fit(choices, max_time=16.0, checkpoint=path, max_epochs=50)
    # The real seconds of the records are few, so it goes on; with all of them used it does not.
    assert clock.seconds > before
    assert len(again.history_) > len(whole.history_)


def test_a_run_whose_time_is_over_is_not_trained_further(choices, tmp_path, monkeypatch):
    path = tmp_path / "state"
    monkeypatch.setattr(Trainer, "_validate", lambda self: (0.5, -1.0))
    first = fit(choices, max_time=1e-6, checkpoint=path, max_epochs=50)
    monkeypatch.setattr(Trainer, "_step", None)
    second = fit(choices, max_time=1e-6, checkpoint=path, max_epochs=50)
    assert first.history_ == second.history_ and same_weights(first, second)


# ---- a perfect score


def test_a_perfect_score_ends_training_soon():
    """The one item above zero is chosen; 100 batches of 2 sets are an epoch."""
    x = torch.full((200, 4, 2), -1.0)
    x[torch.arange(200), torch.arange(200) % 4] = 1.0
    sets = Sets.from_lengths(x.flatten(0, 1), [4] * 200)
    easy = Choices(sets, sets.with_values(sets.values[:, 0] > 0))
    options = {"batch_size": 2, "max_epochs": 40, "learning_rate": 1e-2}
    selector = SubsetSelector(**{**TINY, **options}).fit(*easy, validation=tuple(easy))
    assert selector.score(*easy) == 1.0
    first = next(record["epoch"] for record in selector.history_ if record["validation_jaccard"] == 1)
    assert len(selector.history_) <= first + 6


def test_many_validation_sets_are_validated_by_some(choices, monkeypatch):
    monkeypatch.setattr("setgrad.selector._partial_validation._VALIDATION_GAINS", 0)
    monkeypatch.setattr("setgrad.selector._partial_validation._LEAST_SETS", 20)
    watched: list[int] = []
    validate = Trainer._validate

    def noted(self: Trainer) -> tuple[float, float]:
        watched.append(len(self.watched))
        return validate(self)

    monkeypatch.setattr(Trainer, "_validate", noted)
    held_out = make_choices(50, seed=9)
    SubsetSelector(**{**TINY, "max_epochs": 2, "relation": 0}).fit(*choices, validation=tuple(held_out))
    assert watched == [20, 20]
