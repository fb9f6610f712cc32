"""Checkpoints that are damaged or in use: the one before serves, no other weights are resumed, one fit at a time."""

import json
import threading
import warnings

import pytest
import torch

from setgrad._files import owned_file, previous_of, read_tensors, tensor_bytes
from setgrad.errors import DataError, FileFormatError
from setgrad.selector import SubsetSelector, load
from setgrad.selector._checkpoint import read_checkpoint
from tests.models import rewrite_config
from tests.selector.conftest import TINY, make_choices


@pytest.fixture
def fit(choices, tmp_path):
    def run(epochs, checkpoint=tmp_path / "run.ckpt", **options):
        options = {**TINY, "patience": 50, "max_epochs": epochs, "checkpoint": checkpoint, **options}
        return SubsetSelector(**options).fit(*choices)

    return run


def weights(selector):
    return torch.cat([value.flatten() for value in selector.model_.state_dict().values()])


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position // 8] ^= 1 << position % 8
    path.write_bytes(content)


@pytest.mark.parametrize("members", [1, 2])
def test_the_checkpoint_before_serves_if_the_last_is_damaged(fit, tmp_path, members):
    path, whole = tmp_path / "run.ckpt", fit(4, None, members=members)
    fit(3, members=members)
    flip(path, 8 * path.stat().st_size // 2)
    before = previous_of(path).read_bytes()
    with pytest.warns(RuntimeWarning, match=r"run.ckpt was changed or damaged .*continues from the checkpoint before"):
        resumed = fit(4, members=members)
    assert torch.equal(weights(resumed), weights(whole))
    # The damaged one did not take the place of the one before: epoch 2 is there until epoch 3 is.
    assert read_checkpoint(path).numbers != read_checkpoint(previous_of(path)).numbers
    assert before != previous_of(path).read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(weights(fit(4, members=members)), weights(whole))


def test_two_damaged_checkpoints_are_an_error(fit, tmp_path):
    path = tmp_path / "run.ckpt"
    fit(2)
    for one in (path, previous_of(path)):
        flip(one, 8 * one.stat().st_size - 1)
    with pytest.raises(FileFormatError, match=r"run.ckpt was changed or damaged .*delete it to start again"):
        fit(3)
    path.unlink()
    assert len(fit(3).history_) == 3, "without the file the run starts again"


def test_a_flipped_bit_anywhere_in_a_checkpoint_is_noticed(fit, tmp_path):
    path = tmp_path / "run.ckpt"
    fit(1)
    whole, generator = path.read_bytes(), torch.Generator().manual_seed(0)
    header = 8 * (8 + int.from_bytes(whole[:8], "little"))
    inside = torch.randint(header, 8 * len(whole), (20,), generator=generator).tolist()
    for position in [*range(0, header, 997), *inside]:
        flip(path, position)
        with pytest.raises(FileFormatError, match=r"run\.ckpt (was changed or damaged|cannot be read|holds)"):
            read_checkpoint(path)
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, n: t.popitem(), "does not fit this run"),
        (lambda t, n: n.update(numbers="[" * 10**5), "nested 100000 deep"),
        (lambda t, n: n.update(numbers="3"), "not a whole checkpoint"),
        (lambda t, n: n.pop("numbers"), "not a whole checkpoint"),
        (lambda t, n: n.update(numbers=n["numbers"].replace('"best_score"', '"x"')), "does not fit this run"),
        (lambda t, n: n.update(numbers=n["numbers"].replace('"loss"', '"x"')), "does not fit this run"),
        (lambda t, n: n.update(numbers=n["numbers"].replace('"members": 1', '"members": 2.5')), "whole number of memb"),
    ],
)
def test_a_checkpoint_that_was_made_up_is_refused(fit, tmp_path, change, message):
    path = tmp_path / "run.ckpt"
    fit(1, members=None)
    tensors, metadata = read_tensors(path, "setgrad.checkpoint", remedy="")
    del metadata["sha256"], metadata["format"]
    change(tensors, metadata)
    path.write_bytes(tensor_bytes(tensors, "setgrad.checkpoint", **metadata))
    with pytest.raises(FileFormatError, match=message):
        fit(2, members=None)


def test_a_second_fit_on_a_checkpoint_is_refused(fit, tmp_path, monkeypatch):
    from setgrad.selector._trainer import Trainer

    started, ends, run_epoch = threading.Event(), threading.Event(), Trainer.run_epoch

    def slow(self):
        started.set()
        assert ends.wait(60)
        return run_epoch(self)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "run_epoch", slow)
        first = threading.Thread(target=fit, args=(2,))
        first.start()
        assert started.wait(60)
        with pytest.raises(DataError, match=r"run.ckpt is in use by process \d+ on .* since .*; wait until that ends"):
            fit(2)
        ends.set()
        first.join()
    assert len(fit(2).history_) == 2
    with owned_file(tmp_path / "run.ckpt"):
        pass


def test_a_loaded_model_does_not_write_to_a_path_of_its_file(choices, tmp_path):
    SubsetSelector(**{**TINY, "max_epochs": 1}).fit(*choices).save(tmp_path / "model")

    def point(config):
        config["options"]["checkpoint"] = config["options_in_use"]["checkpoint"] = str(tmp_path / "elsewhere")

    rewrite_config(tmp_path / "model", point)
    loaded = load(tmp_path / "model")
    assert loaded.checkpoint is None and loaded.options_.checkpoint is None
    loaded.fit(*make_choices(20, seed=3))
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epoch": -1}, r"does not fit this run \(epoch is -1\)"),
        ({"gain_epoch": "\ud800" + "x" * 10_000}, "is not a whole checkpoint .*can't encode"),
    ],
)
def test_forged_numbers_are_an_error_of_a_few_lines(fit, tmp_path, change, message):
    path = tmp_path / "run.ckpt"
    fit(1)
    tensors, metadata = read_tensors(path, "setgrad.checkpoint", remedy="")
    numbers = json.dumps({**json.loads(metadata["numbers"]), **change})
    path.write_bytes(tensor_bytes(tensors, "setgrad.checkpoint", numbers=numbers))
    with pytest.raises(FileFormatError, match=message) as error:
        fit(2)
    assert len(str(error.value)) < 1000
