"""The declarations of the options: one source for the estimator, the command line and the saved file."""

import inspect
from dataclasses import FrozenInstanceError, replace

import numpy as np
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
    # Every default is allowed.
    SelectorOptions()
    with pytest.raises(TypeError, match="no_such"):
        SubsetSelector(no_such=1)  # type: ignore[call-arg]


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
        ({"batch_size": True}, "batch_size must be None or a whole number of at least 1, not True"),
        ({"standardize": 1}, "standardize must be True or False, not 1"),
        ({"hidden": (8, 0)}, r"hidden must be a tuple such as \(256,\), in which every entry is a whole number of at"),
        ({"scale": True}, "unknown scale True; choose one of: none, l2, .*, a number above 0"),
        ({"checkpoint": "run.ckpt", "random_state": None}, "checkpoint needs random_state"),
        ({"method": "magic"}, "unknown method 'magic'; choose one of: implicit, unrolled, one-step, amortised, copula"),
        ({"function": "magic"}, "unknown function 'magic'; choose one of: deepset, inset, horse"),
        ({"phi": "cnn"}, "unknown phi 'cnn'; choose one of: context, umbc, mlp, paper"),
        ({"loss": "hinge"}, "unknown loss"),
        ({"estimator": "gibbs"}, "unknown estimator"),
        ({"attention": "flash"}, "unknown attention"),
        ({"scale": "l3"}, "unknown scale"),
        ({"scale": -1.0}, "scale must be .*a number above 0"),
        ({"dim": 10}, "multiple of heads"),
        ({"dim": 0}, "dim must be a whole number of at least 1"),
        ({"samples": 2.5}, "samples must be None or a whole number"),
        ({"predict_samples": 0}, "predict_samples must be None or a whole number of at least 1"),
        ({"predict_samples": 2**14}, "predict_samples must be None or a whole number of at least 1 and below 16384"),
        ({"verbose": None}, "verbose must be a whole number, not None"),
        ({"learning_rate": 0}, "learning_rate must be None or a number above 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be None or a number above 0"),
        ({"average": 1.0}, "average must"),
        ({"validation_fraction": 1}, "between 0 and 1"),
        ({"hidden": ()}, "hidden must be a tuple such as"),
        ({"hidden": 256}, "hidden must be a tuple such as"),
        ({"scale": [1.0]}, "unknown scale"),
        ({"method": ["implicit"]}, "unknown method"),
        ({"phi": ["mlp"]}, "unknown phi"),
        ({"random_state": -1}, "random_state must be None or a whole number"),
        ({"random_state": 2**64}, "below 2\\*\\*64"),
        ({"device": "abacus"}, "unknown device 'abacus'"),
        ({"device": "meta"}, "runs on .cpu. and .cuda."),
        ({"method": "unrolled", "steps": 2}, "needs a smooth estimator"),
        ({"method": "direct", "scale": "l2"}, "no scale and no set function"),
        ({"method": "direct", "function": "inset"}, "no scale and no set function"),
        ({"method": "implicit", "estimator": "bernoulli"}, "needs a smooth estimator"),
        ({"method": np.array(["direct"])}, "unknown method"),
        ({"checkpoint": 3}, "checkpoint must be the path of a file"),
        ({"members": 0}, "members must be None or a whole number of at least 1"),
        ({"relation": -1}, "relation must be None or a whole number of at least 0"),
        ({"relation": 2.5}, "relation must be None or a whole number"),
        ({"relation": 4, "function": "inset"}, "function='inset' has no relation"),
        ({"phi": "context+context"}, r"unknown phi .*mlp\+context"),
        ({"phi": "mlp+mlp"}, r"unknown phi .*mlp\+context"),
        ({"phi": "mlp+"}, r"unknown phi .*mlp\+context"),
        ({"phi": "+context"}, r"unknown phi .*mlp\+context"),
    ],
)
def test_wrong_options_raise(choices, options, message):
    with pytest.raises(OptionError, match=message):
        SubsetSelector(**{**TINY, **options}).fit(*choices)


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
