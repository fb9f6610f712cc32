"""The declarations of the options: one source for the estimator, the command line and the saved file."""

import inspect
from dataclasses import FrozenInstanceError, replace

import pytest
import torch

from setgrad.errors import OptionError
from setgrad.selector import SelectorOptions, SubsetSelector
from setgrad.selector._options import declared_options
from tests.selector.conftest import TINY


def test_the_constructors_have_the_declared_arguments():
    names = [declared.name for declared in declared_options()]
    for kind in (SubsetSelector, SelectorOptions):
        parameters = inspect.signature(kind).parameters
        assert list(parameters) == names
        assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in parameters.values())
        assert [p.default for p in parameters.values()] == [declared.default for declared in declared_options()]
    with pytest.raises(TypeError, match="no_such"):
        SubsetSelector(no_such=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("declared", declared_options(), ids=lambda declared: declared.name)
def test_every_default_is_allowed(declared):
    declared.check(declared.default)


def test_options_cannot_be_changed():
    options = SelectorOptions(hidden=[8, 8])
    with pytest.raises(FrozenInstanceError, match="replace"):
        options.dim = 3
    with pytest.raises(FrozenInstanceError):
        options.new = 3
    assert options.hidden == (8, 8)
    assert replace(options, dim=3) == SelectorOptions(hidden=(8, 8), dim=3)
    assert len({options, replace(options), replace(options, dim=3)}) == 2
    with pytest.raises(OptionError, match="dim must be a whole number of at least 1, not 0"):
        replace(options, dim=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"average": -0.1}, "average must be a number of at least 0 and below 1, not -0.1"),
        ({"clip": float("inf")}, "clip must be a number above 0, not inf"),
        ({"batch_size": True}, "batch_size must be a whole number of at least 1, not True"),
        ({"standardize": 1}, "standardize must be True or False, not 1"),
        ({"hidden": (8, 0)}, r"hidden must be a tuple such as \(256,\), in which every entry is a whole number of at"),
        ({"scale": True}, "unknown scale True; choose one of: none, l2, .*, a number above 0"),
        ({"checkpoint": "run.ckpt"}, "checkpoint needs random_state"),
    ],
)
def test_wrong_values_raise(options, message):
    with pytest.raises(OptionError, match=message):
        SelectorOptions(**options)


def test_messages_mark_parameters_but_not_values():
    with pytest.raises(OptionError) as caught:
        SelectorOptions(method="unrolled", steps=3)
    assert caught.value.as_flags().startswith("--method='unrolled' with --steps=3 needs a smooth estimator")
    with pytest.raises(OptionError) as caught:
        SelectorOptions(phi="my_batch_size")
    assert "'my_batch_size'" in caught.value.as_flags()


def test_options_are_validated_once_for_each_fit(choices, tmp_path, monkeypatch):
    checked = []
    validate = SelectorOptions.__post_init__

    def record(self):
        checked.append(self)
        validate(self)

    monkeypatch.setattr(SelectorOptions, "__post_init__", record)
    selector = SubsetSelector(**{**TINY, "max_epochs": 1}).fit(*choices)
    # The options as passed, and the options in use.
    assert len(checked) == 2 and checked[1] is selector.options_
    selector.save(tmp_path / "model")
    assert len(checked) == 2
    selector.set_params(samples=0)
    with pytest.raises(OptionError, match="samples"):
        selector.save(tmp_path / "model")


def test_a_device_of_torch_is_an_option(choices):
    selector = SubsetSelector(**{**TINY, "max_epochs": 1, "device": torch.device("cpu")}).fit(*choices)
    assert selector.options_.device == "cpu"
