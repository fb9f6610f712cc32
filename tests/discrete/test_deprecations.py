"""Old names and strings still work, and warn."""

import re

import pytest
import torch

from setgrad import discrete
from setgrad.discrete import AIMLE, LPGD, Envelope, Identity, TopK
from setgrad.errors import OptionError
from tests.discrete.oracles import draws

NAMES = {
    "Solver": "CombinatorialSolver",
    "Solved": "SolverResult",
    "Estimator": "GradientEstimator",
    "Custom": "CallableSolver",
    "FromPyEPO": "PyEPOSolver",
    "HostPool": "WorkerPool",
    "MirroredNoise": "PairedNoise",
    "Temperature": "ScheduledTemperature",
    "hamming": "hamming_loss",
    "recall_at": "recall_at_k",
}


@pytest.mark.parametrize("name", NAMES)
def test_old_names_warn(name: str) -> None:
    message = f"setgrad.discrete.{name} is now setgrad.discrete.{NAMES[name]}; the old form will be removed in 0.3.0"
    with pytest.warns(DeprecationWarning, match=re.escape(message)):
        assert getattr(discrete, name) is getattr(discrete, NAMES[name])


def test_unknown_names_raise() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Counter'"):
        _ = discrete.Counter  # type: ignore[attr-defined]


ESTIMATORS = {
    "projection": lambda value: Identity(TopK(2), projection=value),
    "mode": lambda value: AIMLE(TopK(2), noise=None, mode=value),
    "side": lambda value: LPGD(TopK(2), tau=2.0, side=value),
}
STRINGS = [
    ("projection", "mean", discrete.MeanProjection()),
    ("projection", "norm", discrete.NormProjection()),
    ("projection", "std", discrete.StdProjection()),
    ("mode", "default", discrete.PerInstanceRule()),
    ("mode", "paper", discrete.PublishedRule()),
    ("mode", "reference", discrete.ReferenceCodeRule()),
    ("side", "lower", Envelope.LOWER),
    ("side", "upper", Envelope.UPPER),
    ("side", "average", Envelope.AVERAGE),
]


def gradient(layer: discrete.GradientEstimator) -> torch.Tensor:
    theta = draws(3, 5).requires_grad_()
    return torch.autograd.grad((layer(theta) * draws(3, 5, seed=1)).sum(), theta)[0]


@pytest.mark.parametrize(("argument", "old", "new"), STRINGS)
def test_old_strings_warn_and_mean_the_same(argument: str, old: str, new: object) -> None:
    with pytest.warns(DeprecationWarning, match=re.escape(f"{argument}={old!r} is now {argument}={new!r}")):
        layer = ESTIMATORS[argument](old)
    assert getattr(layer, argument) == new
    assert torch.equal(gradient(layer), gradient(ESTIMATORS[argument](new)))


@pytest.mark.parametrize(
    ("argument", "choices"),
    [("projection", "mean, norm, std"), ("mode", "default, paper, reference"), ("side", "lower, upper, average")],
)
def test_unknown_strings_raise(argument: str, choices: str) -> None:
    with pytest.raises(OptionError, match=f"'magic'; choose one of: {choices}"):
        ESTIMATORS[argument]("magic")
