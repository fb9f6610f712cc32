"""A search for options: what it tries, what it keeps, and how it goes on."""

import itertools
import json
import multiprocessing

import numpy as np
import pandas as pd
import pytest
from torch import nn

import setgrad as sg
from setgrad.errors import DataError, OptionError, TrainingError
from setgrad.selector import SubsetSelector, _trials
from setgrad.selector._search_space import search_space
from setgrad.selector.tuning import _wait
from tests.selector.conftest import TINY, make_choices

optuna = pytest.importorskip("optuna", reason='the search needs Optuna: pip install "setgrad[tune]"')

QUICK = {**TINY, "max_epochs": 2}
SEARCH = {"dim": [8, 16], "hidden": [(8,), (16, 8)], "learning_rate": (1e-3, 1e-2)}


@pytest.fixture(scope="module")
def data():
    return make_choices(30)


def search(data, folder, **arguments):
    return sg.tune(SubsetSelector(**QUICK), *data, **{"folder": folder, "search": SEARCH, "trials": 4, **arguments})


def test_the_best_of_all_trials_is_saved(data, tmp_path):
    found = search(data, tmp_path / "model")
    assert [trial.number for trial in found.trials] == [0, 1, 2, 3]
    assert found.trials[0].options == {} and all(trial.options.keys() == SEARCH.keys() for trial in found.trials[1:])
    for trial in found.trials:
        options = {**QUICK, **trial.options}
        alone = SubsetSelector(**options).fit(*data)
        assert trial.score == alone.validation_score_
        assert trial.end == "" and trial.epochs == len(alone.history_)
    assert found.best.score == max(trial.score for trial in found.trials)
    saved = sg.load(tmp_path / "model", device="cpu")
    assert saved.history_ == found.selector.history_
    for name, value in found.best.options.items():
        assert getattr(saved, name) == (tuple(value) if isinstance(value, list) else value)
    kept = {path.name for path in (tmp_path / "model.tune").iterdir()}
    assert kept == {"journal.log", f"trial-{found.best.number}"}
    assert len(found.table().rows) == 4


def test_it_goes_on_where_it_was_interrupted(data, tmp_path, monkeypatch):
    fit, fits = SubsetSelector.fit, 0

    def die(self, *arguments, **named):
        nonlocal fits
        fits += 1
        if fits == 3:
            raise KeyboardInterrupt
        return fit(self, *arguments, **named)

    monkeypatch.setattr(SubsetSelector, "fit", die)
    with pytest.raises(KeyboardInterrupt):
        search(data, tmp_path / "model")
    found = search(data, tmp_path / "model")
    # Two trials before, the one that did not count, and two after it.
    assert [trial.number for trial in found.trials] == [0, 1, 3, 4] and fits == 5
    assert search(data, tmp_path / "model").best == found.best and fits == 5
    rates = [trial.options["learning_rate"] for trial in search(data, tmp_path / "model", trials=7).trials[1:]]
    assert len(set(rates)) == 6


def test_a_trial_that_a_killed_process_left_does_not_count(data, tmp_path):
    search(data, tmp_path / "model", trials=1)
    path = str(tmp_path / "model.tune" / "journal.log")
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(path))
    optuna.load_study(study_name="setgrad", storage=storage).ask()
    assert [trial.number for trial in search(data, tmp_path / "model", trials=2).trials] == [0, 2]


def test_two_processes_share_the_trials(data, tmp_path):
    found = search(data, tmp_path / "model", jobs=2, trials=3)
    assert len(found.trials) == 3 and [trial.options for trial in found.trials].count({}) == 1
    assert np.isfinite(found.selector.score(*data))


def test_an_error_in_another_process_is_that_of_fit(tmp_path):
    with pytest.raises(DataError, match="at least 2 sets"):
        search(make_choices(1), tmp_path / "model", jobs=2)


def test_a_process_that_is_killed_is_told():
    ours, theirs = multiprocessing.Pipe(duplex=False)
    theirs.close()
    assert isinstance(_wait(ours), TrainingError)
    ours.close()


def test_the_time_ends_the_search_in_a_fit(data, tmp_path, monkeypatch):
    """The search asks for the time before each trial and after each epoch; here it is over at the third time."""
    asked = itertools.count(1)
    monkeypatch.setattr(_trials.Search, "is_late", property(lambda self: next(asked) >= 3))
    found = sg.tune(SubsetSelector(**TINY), *data, folder=tmp_path / "model", max_time=3600, search=SEARCH)
    assert [(trial.options, trial.epochs) for trial in found.trials] == [({}, 2)] and TINY["max_epochs"] > 2
    assert sg.load(tmp_path / "model").history_ == found.selector.history_


def test_trials_that_optuna_gives_up_end_early(data, tmp_path, monkeypatch):
    monkeypatch.setattr(optuna.pruners.MedianPruner, "prune", lambda self, study, trial: trial.number == 2)
    found = search(data, tmp_path / "model")
    assert [trial.end for trial in found.trials] == ["", "", "ended early", ""]
    assert found.trials[2].score is None and found.trials[2].epochs == 1
    assert "ended early" in found.table().rows[3]


def test_a_table_is_read_once_and_its_columns_are_kept(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"s": np.arange(200) // 5, "x": rng.normal(size=200), "y": rng.normal(size=200)})
    table["chosen"] = table["x"] + table["y"] > 0
    reads, read = itertools.count(), SubsetSelector.read_to_fit
    monkeypatch.setattr(SubsetSelector, "read_to_fit", lambda *a, **k: (next(reads), read(*a, **k))[1])
    found = sg.tune(
        SubsetSelector(**QUICK),
        table,
        set_id="s",
        chosen="chosen",
        columns={"y": "ignore"},
        folder=tmp_path / "model",
        trials=2,
        search=["layers"],
    )
    assert next(reads) == 1 and found.selector.table_.features == ("x",)
    assert found.selector.origin_.training.sets + found.selector.origin_.validation.sets == 40


def test_another_search_in_the_same_place_is_refused(data, tmp_path):
    search(data, tmp_path / "model", trials=1)
    with pytest.raises(OptionError, match="holds a search on other data"):
        search(make_choices(30, seed=1), tmp_path / "model", trials=2)
    with pytest.raises(OptionError, match="holds a search with other options"):
        search(data, tmp_path / "model", search=["dim"])


def test_errors_of_the_data_are_those_of_fit(tmp_path):
    with pytest.raises(DataError, match="at least 2 sets"):
        search(make_choices(1), tmp_path / "model")


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, {"dim", "layers", "relation", "pairs", "half", "learning_rate"}),
        ({"dim": 32, "learning_rate": 1e-3}, {"layers", "relation", "pairs", "half"}),
        ({"method": "direct"}, {"dim", "layers", "relation", "learning_rate"}),
        ({"phi": "mlp"}, {"dim", "half", "learning_rate"}),
        ({"phi": nn.Identity(), "function": "inset"}, {"half", "learning_rate"}),
        ({"samples": 2}, {"dim", "layers", "relation", "pairs", "learning_rate"}),
    ],
)
def test_only_options_that_apply_and_are_not_given_are_searched(options, names):
    assert search_space(SubsetSelector(**options), None).keys() == names


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"search": ["dime"]}, "unknown search 'dime'"),
        ({"search": ["device"]}, "device"),
        ({"search": ["clip"]}, "no usual values of clip"),
        ({"search": {"dim": [0]}}, "dim must be a whole number"),
        ({"search": {"dim": (64, 32)}}, "lower end first"),
        ({"search": {"dim": 64}}, "a list of values"),
        ({"search": []}, "names no option"),
        ({"trials": 0}, "trials must be a whole number"),
        ({"max_time": -1}, "max_time must be"),
        ({"jobs": 1.5}, "jobs must be"),
        ({"start": None}, "has no argument 'start'"),
    ],
)
def test_wrong_arguments_are_refused_before_any_work(data, tmp_path, arguments, error):
    with pytest.raises(OptionError, match=error):
        search(data, tmp_path / "model", **arguments)
    assert not list(tmp_path.iterdir())


def test_the_journal_has_no_pickle(data, tmp_path):
    search(data, tmp_path / "model", trials=1)
    lines = (tmp_path / "model.tune" / "journal.log").read_text().splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines)
