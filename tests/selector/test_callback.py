"""A callback of `fit` gets the record of each epoch, and may end the fit."""

import numpy as np
import pandas as pd
import pytest
import torch

import setgrad as sg
from setgrad.errors import OptionError
from setgrad.selector import SubsetSelector
from tests.selector.conftest import TINY, make_choices


class StopNow(Exception):
    pass


@pytest.fixture(scope="module")
def data():
    return make_choices(40)


def fit(data, callback, **options):
    return SubsetSelector(**{**TINY, **options}).fit(*data, callback=callback)


@pytest.mark.parametrize("members", [1, 2])
def test_it_gets_each_record_and_changes_nothing(data, members):
    seen = []

    def log(record):
        seen.append(dict(record))
        record.clear()
        torch.manual_seed(1)
        return len(seen)  # true, but not True

    state = torch.get_rng_state()
    logged, plain = fit(data, log, members=members), fit(data, None, members=members)
    torch.set_rng_state(state)
    assert seen == logged.history_ and len(seen) == TINY["max_epochs"]
    pairs = zip(logged.model_.state_dict().values(), plain.model_.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("members", [1, 2])
def test_true_ends_training_without_a_warning(data, members):
    stopped = fit(data, lambda record: np.equal(record["epoch"], 2), members=members)
    assert len(stopped.history_) == 2 and stopped.stopped_
    assert np.isfinite(stopped.score(*data))


@pytest.mark.parametrize("error", [StopNow, StopIteration, KeyboardInterrupt])
def test_an_error_ends_the_fit_and_the_checkpoint_has_the_epoch(data, tmp_path, error):
    def fail(record):
        if record["epoch"] == 2:
            raise error

    options = {"checkpoint": tmp_path / "state"}
    with pytest.raises(error):
        fit(data, fail, **options)
    epochs = []
    resumed = fit(data, lambda record: epochs.append(record["epoch"]), **options)
    assert epochs == [3, 4, 5, 6]
    whole = fit(data, None)
    pairs = zip(resumed.model_.state_dict().values(), whole.model_.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_after_true_a_checkpoint_goes_on(data, tmp_path):
    fit(data, lambda record: True, checkpoint=tmp_path / "state")
    assert len(fit(data, None, checkpoint=tmp_path / "state").history_) == TINY["max_epochs"]


def test_it_is_called_for_tables_too():
    rng, epochs = np.random.default_rng(0), []
    table = pd.DataFrame({"s": np.arange(200) // 5, "x": rng.normal(size=200), "chosen": rng.random(200) < 0.4})
    selector = sg.SubsetSelector(**{**TINY, "max_epochs": 2})
    selector.fit(table, set_id="s", chosen="chosen", callback=lambda record: epochs.append(record["epoch"]))
    assert epochs == [1, 2]


def test_what_cannot_be_called_is_refused(data):
    with pytest.raises(OptionError, match="callback must be a function"):
        fit(data, "log.txt")
