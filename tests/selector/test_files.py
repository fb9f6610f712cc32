"""Saving and loading, damaged files and files of other programs, and runs that are interrupted and resumed."""

import copy
import errno
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import setgrad as sg
from setgrad.errors import DataError, FileFormatError, OptionError
from setgrad.selector import SubsetSelector, load
from setgrad.selector._model import ChoiceModel
from setgrad.selector._model_files import check_model_folder
from setgrad.selector._options import declared_options
from tests.models import MODEL_FILES, rewrite, rewrite_config
from tests.selector.conftest import TINY, first_member, make_choices


def test_load_accepts_a_phi_of_another_dtype(choices, tmp_path, seeded):
    with seeded(0):
        phi = nn.Linear(2, 8)
    fitted = SubsetSelector(**{**TINY, "phi": phi, "max_epochs": 1}).fit(*choices)
    fitted.save(tmp_path / "model")
    again = load(tmp_path / "model", phi=phi.double())
    assert {p.dtype for p in again.model_.parameters()} == {torch.float32}
    masks = choices.subsets.values[None]
    assert torch.equal(again.function_.value(choices.sets, masks), fitted.function_.value(choices.sets, masks))


@pytest.fixture
def folder(unrolled, tmp_path):
    unrolled.save(tmp_path / "deep" / "model")
    return tmp_path / "deep" / "model"


def test_a_loaded_selector_predicts_the_same(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    again = sg.load(tmp_path / "model")
    sets = make_choices(15, seed=9).sets
    assert torch.equal(fitted.predict_proba(sets).values, again.predict_proba(sets).values)
    assert torch.equal(fitted.predict(sets).values, again.predict(sets).values)
    assert again.history_ == fitted.history_
    portable = {k: v for k, v in fitted.get_params().items() if k != "device"}
    assert portable.items() <= again.get_params().items()


def test_saving_over_a_model_replaces_its_files_and_keeps_others(unrolled, folder):
    (folder / "notes.txt").write_text("mine")
    (folder / "plots").mkdir()
    (folder / "plots" / "a.png").write_text("mine too")
    # A model of format version 2 has this file.
    (folder / "table.json").write_text("{}")
    weights = (folder / "weights.safetensors").read_bytes()
    (folder / "weights.safetensors").write_bytes(b"old")
    unrolled.save(folder)
    assert {p.name for p in folder.iterdir()} == {*MODEL_FILES, "notes.txt", "plots"}
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "plots" / "a.png").read_text() == "mine too"
    assert (folder / "weights.safetensors").read_bytes() == weights
    assert [p.name for p in folder.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("name", ["thesis.tex", "config.json"])
def test_save_does_not_overwrite_other_files(unrolled, tmp_path, name):
    """A file config.json may belong to another library."""
    (tmp_path / name).write_text('{"model_type": "bert"}')
    (tmp_path / "weights.bin").touch()
    for place in (tmp_path, tmp_path / name):
        with pytest.raises(DataError, match="not a setgrad model"):
            unrolled.save(place)
    assert {p.name for p in tmp_path.iterdir()} == {name, "weights.bin"}
    assert (tmp_path / name).read_text() == '{"model_type": "bert"}'


@pytest.mark.parametrize("relative", [True, False])
def test_a_link_to_a_model_stays_a_link(unrolled, tmp_path, relative):
    target, link = tmp_path / "models" / "first", tmp_path / "current"
    unrolled.save(target)
    (target / "notes.txt").write_text("years of work")
    link.symlink_to("models/first" if relative else target)
    unrolled.save(link)
    assert link.is_symlink() and load(link).best_epoch_ == unrolled.best_epoch_
    assert (target / "notes.txt").read_text() == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "models"]


def test_save_writes_the_fitted_phi_and_plain_numbers(choices, tmp_path):
    """A phi that was replaced since the fit, and a number that JSON does not know, do not damage a saved model."""
    selector = SubsetSelector(**{**TINY, "max_epochs": 1, "validation_fraction": Fraction(1, 5)}).fit(*choices)
    before = selector.predict_proba(choices.sets).values
    selector.set_params(phi=torch.nn.Identity()).save(tmp_path / "model")
    assert torch.equal(load(tmp_path / "model").predict_proba(choices.sets).values, before)


@pytest.mark.parametrize("place", ["model", "."])
def test_a_folder_that_cannot_be_moved_is_no_obstacle(unrolled, tmp_path, monkeypatch, place):
    """A mount point in a container, or the current folder."""
    folder = tmp_path / "model"
    folder.mkdir()
    folder.chmod(0o750)
    tmp_path.chmod(0o550)
    monkeypatch.chdir(tmp_path if place == "model" else folder)
    unrolled.save(place)
    (folder / "notes.txt").write_text("mine")
    unrolled.save(place)
    assert {path.name for path in folder.iterdir()} == {*MODEL_FILES, "notes.txt"}
    assert os.path.samefile(".", tmp_path if place == "model" else folder)
    assert folder.stat().st_mode & 0o777 == 0o750
    assert load(place).best_epoch_ == unrolled.best_epoch_
    tmp_path.chmod(0o750)


def test_check_model_folder_rejects_a_path_that_takes_no_files(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        check_model_folder(tmp_path / "file" / "deep" / "model")
    if not Path("/proc/self").exists():
        pytest.skip("there is no /proc")
    with pytest.raises(DataError, match="cannot be written, because /proc takes no files"):
        check_model_folder("/proc/model")


def test_save_rejects_options_that_could_not_be_loaded(choices, tmp_path):
    selector = SubsetSelector(**{**TINY, "max_epochs": 1}).fit(*choices)
    for options in ({"hidden": 32}, {"samples": 0}, {"method": "magic"}):
        changed = copy.deepcopy(selector).set_params(**options)
        with pytest.raises(OptionError):
            changed.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_check_model_folder_rejects_a_checkpoint_inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for state in ("m", "m/run.ckpt", tmp_path / "m" / "deep" / "run.ckpt"):
        with pytest.raises(DataError, match="put it elsewhere"):
            check_model_folder("m", checkpoint=state)
    with pytest.raises(DataError, match="put it elsewhere"):
        check_model_folder("run/m", checkpoint="run")
    check_model_folder("m", checkpoint="m.ckpt")


def test_numpy_options_are_saved_as_plain_numbers(choices, tmp_path):
    options = {**TINY, "dim": np.int64(16), "hidden": (np.int32(16),), "learning_rate": np.float32(1e-3)}
    SubsetSelector(**{**options, "random_state": np.int64(0), "max_epochs": 1}).fit(*choices).save(tmp_path / "model")
    assert load(tmp_path / "model").get_params()["dim"] == 16


class _Shared(nn.Module):
    """A module with one layer under two names."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = self.first

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def test_a_phi_with_shared_weights_is_trained_and_saved(choices, tmp_path, seeded):
    with seeded(0):
        phi = _Shared()
    selector = SubsetSelector(**{**TINY, "phi": phi, "max_epochs": 2, "checkpoint": tmp_path / "state"}).fit(*choices)
    trained = first_member(selector).function.phi.module
    assert not torch.equal(trained.first.weight, phi.first.weight)
    selector.save(tmp_path / "model")
    again = load(tmp_path / "model", phi=phi)
    assert torch.equal(again.predict_proba(choices.sets).values, selector.predict_proba(choices.sets).values)


def test_load_does_not_change_the_global_generator(folder):
    before = torch.get_rng_state()
    load(folder)
    assert torch.equal(before, torch.get_rng_state())


def test_load_builds_the_model_once(folder, monkeypatch):
    built = []
    build = ChoiceModel.__init__

    def record(self, *arguments):
        built.append(self)
        build(self, *arguments)

    monkeypatch.setattr(ChoiceModel, "__init__", record)
    load(folder)
    assert len(built) == 1


def edit(folder, **changes):
    rewrite_config(folder, lambda config: config.update(changes))


def edit_in(folder, part, **changes):
    rewrite_config(folder, lambda config: config[part].update(changes))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "has no config.json"),
        (lambda f: (f / "weights.safetensors").unlink(), "has no weights.safetensors"),
        (lambda f: (f / "manifest.json").unlink(), "has no manifest.json"),
        (lambda f: (f / "manifest.json").write_text("{}"), "does not list the files"),
        (lambda f: (f / "config.json").write_text("{"), "config.json was changed or damaged"),
        (lambda f: rewrite(f, "config.json", b"{"), "is damaged"),
        (lambda f: rewrite(f, "config.json", b"[" * 10**6), "nested 1000000 deep"),
        (lambda f: rewrite(f, "config.json", b"[1]"), "not written by setgrad"),
        (lambda f: rewrite(f, "config.json", b'{"a": "\\ud800"}'), "is damaged"),
        # In UTF-16 the limits of size and depth would mean nothing.
        (lambda f: rewrite(f, "config.json", "{}".encode("utf-16")), "is damaged"),
        (lambda f: edit(f, format="other"), "not written by setgrad"),
        (lambda f: edit(f, version=99), "format version 99"),
        (lambda f: edit(f, options_in_use={"method": "direct"}), "do not fit together"),
        (lambda f: edit(f, size_rule={"name": "dice"}), "size rule"),
        (lambda f: edit(f, size_rule=[1]), "do not fit together"),
        (lambda f: edit(f, size_rule={"name": "threshold", "cut": 10**400}), "size rule"),
        (lambda f: edit(f, size_rule={"name": "threshold", "cut": True}), "size rule"),
        (lambda f: edit_in(f, "options_in_use", samples=None), "samples has no value"),
        (lambda f: edit_in(f, "options_in_use", steps=None), "steps has no value"),
        (lambda f: edit_in(f, "options_in_use", hidden=None), "hidden has no value"),
        (lambda f: edit(f, min_size="x"), "min_size is 'x'"),
        (lambda f: edit(f, min_size=None), "min_size is None"),
        (lambda f: edit(f, min_size=10**30), "min_size is 1000"),
        (lambda f: edit(f, history=3), "history is not"),
        (lambda f: edit(f, history=[]), "history is not"),
        (lambda f: edit(f, history=[{}]), "history is not"),
        (lambda f: edit(f, history=[{"epoch": 1, "loss": "x", "validation_jaccard": 1}]), "history is not"),
        (lambda f: edit(f, best_epoch=10**6), "best_epoch is 1000000"),
        (lambda f: edit(f, stop_logit="x"), "stop_logit is not"),
        (lambda f: edit(f, start_weight=0.3), "start_weight is not"),
        (lambda f: edit(f, size_scores={"magic": 1.0}), "size_scores are not"),
        (lambda f: edit(f, slots=-1), "slots is -1"),
        (lambda f: edit_in(f, "options_in_use", dim=32), "has shape"),
        (lambda f: edit_in(f, "options_in_use", dim=10**6), "a size is 1000000"),
        (lambda f: edit_in(f, "options_in_use", relation=10**8), "a size is 100000000"),
        (lambda f: edit_in(f, "options_in_use", layers=10**5), "100000 layers"),
        (lambda f: edit_in(f, "options_in_use", members=10**9), "1000000000 members"),
        (lambda f: edit(f, size_scores=[1]), "size_scores are not"),
        (lambda f: edit_in(f, "options_in_use", heads=0), "heads must be"),
        (lambda f: edit_in(f, "options_in_use", steps="x"), "steps must be"),
        (lambda f: edit_in(f, "options_in_use", steps=10**6), "steps must be"),
        (lambda f: edit_in(f, "options_in_use", samples=10**6), "samples must be"),
        (lambda f: edit_in(f, "options_in_use", predict_samples=10**6), "samples must be"),
        (lambda f: edit_in(f, "options", verbose=None), "verbose must be a whole number"),
        (lambda f: edit_in(f, "options_in_use", method="magic"), "unknown method"),
        (lambda f: edit_in(f, "options_in_use", estimator="gaussian", scale="l3"), "unknown scale"),
        (lambda f: edit(f, item_shape=2), "item_shape is 2"),
        (lambda f: edit_in(f, "options", samples="x"), "samples must be"),
        (lambda f: edit_in(f, "options", hidden=3), "hidden must be"),
        (lambda f: (f / "weights.safetensors").write_bytes(b"12"), "changed or damaged"),
        (lambda f: (f / "weights.safetensors").write_bytes((f / "weights.safetensors").read_bytes()[:-1]), "damaged"),
    ],
)
def test_load_rejects_damaged_models(folder, damage, message):
    damage(folder)
    with pytest.raises(FileFormatError, match=message):
        load(folder)


def test_no_path_in_a_file_is_used(folder, tmp_path):
    """The next fit would write to it."""
    paths = [option.name for option in declared_options() if Path in option.kinds]
    assert "checkpoint" in paths
    for part in ("options", "options_in_use"):
        edit_in(folder, part, **dict.fromkeys(paths, str(tmp_path / "chosen by a stranger")))
    selector = load(folder)
    assert [getattr(selector, name) for name in paths] == [None] * len(paths)
    assert [getattr(selector.options_, name) for name in paths] == [None] * len(paths)


def test_load_needs_the_phi_of_the_user(choices, tmp_path, seeded):
    with seeded(0):
        phi, blank = (nn.Sequential(nn.Linear(2, 8), nn.Tanh()) for _ in range(2))
        other = nn.Linear(2, 9)
    selector = SubsetSelector(**{**TINY, "phi": phi, "max_epochs": 1}).fit(*choices)
    selector.save(tmp_path / "model")
    with pytest.raises(FileFormatError, match="fitted with a module as phi"):
        load(tmp_path / "model")
    with pytest.raises(FileFormatError, match="pass the phi that it was fitted with"):
        load(tmp_path / "model", phi=other)
    again = load(tmp_path / "model", phi=blank)
    assert torch.equal(again.predict_proba(choices.sets).values, selector.predict_proba(choices.sets).values)


@pytest.mark.parametrize("case", ["plain", "weights", "dropout", "start", "conditional"])
def test_a_resumed_run_gives_the_same_result(choices, tmp_path, seeded, case):
    options, data = {**TINY, "patience": 50}, dict[str, Any]()
    with seeded(0):
        if case == "weights":
            data["sample_weight"] = torch.linspace(0.5, 1, len(choices))
        elif case == "conditional":
            options["method"] = "conditional"
        elif case == "dropout":
            options["phi"] = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5))
        elif case == "start":
            # The batch counter of the normalisation has no axis.
            options.update(phi=nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8)), method="copula")
            data["start"] = SubsetSelector(**{**options, "max_epochs": 1}).fit(*choices)

    def fit(epochs, checkpoint, **changed):
        return SubsetSelector(**{**options, "max_epochs": epochs, "checkpoint": checkpoint}).fit(
            *choices, **{**data, **changed}
        )

    whole, path = fit(5, None), tmp_path / "run" / "state.safetensors"
    fit(2, path)
    resumed = fit(5, path)
    assert [h["loss"] for h in resumed.history_] == [h["loss"] for h in whole.history_]
    assert torch.equal(resumed.predict_proba(choices.sets).values, whole.predict_proba(choices.sets).values)
    assert sorted(p.name for p in path.parent.iterdir()) == ["state.safetensors", "state.safetensors.previous"]
    if case == "start":
        with pytest.raises(FileFormatError, match="belongs to other data"):
            fit(5, path, start=whole)


def test_a_checkpoint_with_more_epochs_raises(choices, tmp_path):
    options = {**TINY, "checkpoint": tmp_path / "state", "patience": 50}
    SubsetSelector(**{**options, "max_epochs": 3}).fit(*choices)
    with pytest.raises(OptionError, match="has 3 epochs, more than max_epochs=2"):
        SubsetSelector(**{**options, "max_epochs": 2}).fit(*choices)
    assert len(SubsetSelector(**{**options, "max_epochs": 3}).fit(*choices).history_) == 3


def test_a_full_disk_raises_a_data_error(choices, tmp_path, monkeypatch):
    def fail(descriptor, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.write", fail)
    with pytest.raises(DataError, match="No space left on device; choose a path"):
        SubsetSelector(**{**TINY, "max_epochs": 1, "checkpoint": tmp_path / "state"}).fit(*choices)


def test_a_checkpoint_of_another_run_raises(choices, tmp_path, seeded):
    with seeded(0):
        small, large = nn.Linear(2, 4), nn.Linear(2, 8)
    options = {**TINY, "checkpoint": tmp_path / "state", "max_epochs": 1, "phi": small}
    SubsetSelector(**options).fit(*choices)
    for changed in ({"samples": 2}, {"phi": large}):
        with pytest.raises(FileFormatError, match="other data or other options"):
            SubsetSelector(**{**options, **changed}).fit(*choices)
    with pytest.raises(FileFormatError, match="other data or other options"):
        SubsetSelector(**options).fit(*make_choices(60, seed=1))
    (tmp_path / "state").write_bytes(b"not a checkpoint at all")
    with pytest.raises(FileFormatError, match=r"cannot be read as setgrad\.checkpoint"):
        SubsetSelector(**options).fit(*choices)
    with pytest.raises(FileFormatError, match=r"cannot be read as setgrad\.checkpoint"):
        SubsetSelector(**{**options, "checkpoint": tmp_path}).fit(*choices)
    with pytest.raises(OptionError, match="needs random_state"):
        SubsetSelector(**{**options, "random_state": None}).fit(*choices)
