"""Members that are trained by themselves: nothing of one depends on the others, nor on an interruption."""

import math

import pytest
import torch

from setgrad.errors import FileFormatError
from setgrad.selector import SizeRange, SubsetSelector
from setgrad.selector._separate_members import SeparateMembers
from tests.selector.conftest import TINY

OPTIONS = {"method": "conditional", "max_epochs": 60, "patience": 2, "batch_size": 16, "learning_rate": 1e-2}


@pytest.fixture
def runs(monkeypatch):
    """The trainers of the members of the fits of a test, fit by fit; fits of members together are not among them."""
    found = []
    build = SeparateMembers.__init__

    def noted(self, *arguments):
        build(self, *arguments)
        found.append(self.trainers)

    monkeypatch.setattr(SeparateMembers, "__init__", noted)
    return found


def fit(choices, constraint=None, **options):
    return SubsetSelector(**{**TINY, **OPTIONS, "members": 3, **options}).fit(*choices, constraint=constraint)


def test_members_stop_by_themselves_and_keep_their_own_best_epoch(choices, runs):
    selector, (trainers,) = fit(choices), runs
    assert len({trainer.seed for trainer in trainers}) == len(trainers)
    assert len({len(trainer.history) for trainer in trainers}) > 1
    assert len({trainer.best_epoch for trainer in trainers}) > 1
    for member, trainer in zip(selector.model_.each(), trainers, strict=True):
        scores = [record["validation_jaccard"] for record in trainer.history]
        assert scores[trainer.best_epoch - 1] == max(scores)
        for name, value in member.state_dict().items():
            assert torch.equal(value, trainer.best[f"members.0.{name}"])


def test_more_members_leave_the_others_as_they_are(choices):
    one, two, three = (fit(choices, members=count).model_.each() for count in (1, 2, 3))
    for member, same in zip([*one, *two], [three[0], three[0], three[1]], strict=True):
        assert all(torch.equal(value, same.state_dict()[name]) for name, value in member.state_dict().items())


def test_records_are_means_of_the_members_and_of_the_best_epoch_of_those_that_ended(choices, runs):
    selector, (trainers,) = fit(choices), runs
    histories = [trainer.history for trainer in trainers]
    ends = [len(history) for history in histories]
    assert [record["epoch"] for record in selector.history_] == list(range(1, max(ends) + 1))
    for number in range(max(ends)):
        parts = [
            history[number] if number < end else history[trainer.best_epoch - 1]
            for history, end, trainer in zip(histories, ends, trainers, strict=True)
        ]
        for name in ("loss", "validation_jaccard", "validation_loss", "converged"):
            assert math.isclose(selector.history_[number][name], sum(part[name] for part in parts) / 3)
        spent = sum(history[number]["seconds"] for history in histories if number < len(history))
        assert math.isclose(selector.history_[number]["seconds"], spent)
    assert selector.best_epoch_ == max(trainer.best_epoch for trainer in trainers)


def test_a_run_that_is_resumed_after_some_members_ended_gives_the_same_result(choices, runs, tmp_path):
    whole, (trainers,) = fit(choices), runs
    ends = sorted(len(trainer.history) for trainer in trainers)
    path = tmp_path / "state"
    for epochs in (ends[0] + 1, OPTIONS["max_epochs"]):
        resumed = fit(choices, max_epochs=epochs, checkpoint=path)
    first, second = ([{**record, "seconds": 0} for record in part.history_] for part in (whole, resumed))
    assert first == second
    assert resumed.best_epoch_ == whole.best_epoch_
    for name, value in whole.model_.state_dict().items():
        assert torch.equal(value, resumed.model_.state_dict()[name])
    # The members that had ended did not go on.
    assert sorted(len(trainer.history) for trainer in runs[-1]) == ends


@pytest.mark.parametrize(
    ("options", "limit"),
    [({"members": 1}, 800), ({"method": "unrolled"}, 800), ({"constraint": SizeRange(1, 6)}, 800), ({}, 48)],
    ids=["one member", "another method", "a constraint", "many training sets"],
)
def test_other_fits_train_their_members_together(choices, runs, monkeypatch, options, limit):
    # 48 of the 60 sets are for training.
    monkeypatch.setattr("setgrad.selector._defaults.FEW_SETS", limit)
    fit(choices, **{"max_epochs": 1, **options})
    assert not runs


def test_members_that_read_pixels_are_trained_by_themselves_with_many_sets_too(choices, runs, monkeypatch):
    monkeypatch.setattr("setgrad.selector._defaults.FEW_SETS", 0)
    fit(choices, max_epochs=1)
    assert not runs
    monkeypatch.setattr("setgrad.selector._defaults._MANY_FEATURES", 2)
    fit(choices, max_epochs=1)
    assert len(runs) == 1


def test_a_checkpoint_of_members_together_is_not_resumed_apart(choices, tmp_path, monkeypatch):
    path = tmp_path / "state"
    monkeypatch.setattr("setgrad.selector._defaults.FEW_SETS", 0)
    options = {"max_epochs": 1, "checkpoint": path, "relation": 0, "pairs": False, "half": False}
    fit(choices, **options)
    monkeypatch.undo()
    with pytest.raises(FileFormatError, match="belongs to other data or other options"):
        fit(choices, **options)
