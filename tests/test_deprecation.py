"""Old names and strings still work, and the warning names the line that uses them and the new form."""

import importlib
import re
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from setgrad import discrete, encoders, inference
from setgrad._deprecation import deprecated_name, deprecated_string
from setgrad.discrete import AIMLE, LPGD, Envelope, Identity, TopK
from setgrad.errors import OptionError
from setgrad.functions import DeepSetFunction, Exact
from setgrad.selector import SubsetSelector
from setgrad.sets import Sets
from tests.discrete.oracles import draws


class New:
    def __repr__(self) -> str:
        return "New()"


def _module() -> types.ModuleType:
    module = types.ModuleType("shapes")
    module.__getattr__ = lambda name: deprecated_name("shapes", name, {"Old": New}, removed_in="9.0.0")  # type: ignore[method-assign]
    return module


def test_an_old_name_gives_the_new_object_and_warns_at_the_callers_line() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = _module().Old
    assert found is New
    assert str(caught[0].message) == "shapes.Old is now shapes.New; the old form will be removed in 9.0.0"
    assert (caught[0].category, caught[0].filename) == (DeprecationWarning, __file__)


def _takes(shape: object) -> object:
    return deprecated_string("shape", shape, {"new": New()}, removed_in="9.0.0")


def test_an_old_string_gives_the_object_and_warns_at_the_callers_line() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = _takes("new")
    assert isinstance(found, New)
    assert str(caught[0].message) == "shape='new' is now shape=New(); the old form will be removed in 9.0.0"
    assert caught[0].filename == __file__


def test_an_object_passes_without_a_warning_and_an_unknown_string_is_an_error() -> None:
    value = New()
    assert _takes(value) is value
    with pytest.raises(OptionError, match="unknown shape 'old'; choose one of: new"):
        _takes("old")


# ---- the old names and strings of all packages

NAMES = {
    "datasets": "load: load_task, names: task_names, Loader: TaskLoader",
    "discrete": "Solver: CombinatorialSolver, Solved: SolverResult, Estimator: GradientEstimator, "
    "Custom: CallableSolver, FromPyEPO: PyEPOSolver, HostPool: WorkerPool, MirroredNoise: PairedNoise, "
    "Temperature: ScheduledTemperature, hamming: hamming_loss, recall_at: recall_at_k",
    "functions": "DeepSet: DeepSetFunction, Direct: ItemScores, Estimator: ExtensionEstimator, Fresh: FreshNoise, "
    "Frozen: FrozenNoise, Horse: HorseFunction, Inset: InsetFunction, Noise: NoiseSource",
    "implicit": "OneStep: OneStepAdjoint, Solver: EquationSolver",
    "inference": "Implicit: ImplicitMeanField, OneStep: OneStepMeanField, Unrolled: UnrolledMeanField",
}


@pytest.mark.parametrize(
    ("package", "old", "new"),
    [(package, *pair.split(": ")) for package, pairs in NAMES.items() for pair in pairs.split(", ")],
)
def test_old_names_of_packages(package: str, old: str, new: str) -> None:
    module = importlib.import_module(f"setgrad.{package}")
    message = f"setgrad.{package}.{old} is now setgrad.{package}.{new}; the old form will be removed in 0.3.0"
    with pytest.warns(DeprecationWarning, match=re.escape(message)):
        assert getattr(module, old) is getattr(module, new)


@pytest.mark.parametrize("package", NAMES)
def test_unknown_names_are_attribute_errors(package: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'setgrad.{package}' has no attribute 'no_such_name'"):
        _ = importlib.import_module(f"setgrad.{package}").no_such_name


def test_the_old_name_of_preset() -> None:
    with pytest.warns(DeprecationWarning, match=r"SubsetSelector\.paper is now SubsetSelector\.preset"):
        old = SubsetSelector.paper("idiffmf-2", dim=8)
    assert old.get_params() == SubsetSelector.preset("idiffmf-2", dim=8).get_params()


SETS = Sets.from_lengths(draws(5, 2).float(), [3, 2])


def _gradient(layer: discrete.GradientEstimator) -> torch.Tensor:
    theta = draws(3, 5).requires_grad_()
    return torch.autograd.grad((layer(theta) * draws(3, 5, seed=1)).sum(), theta)[0]


def _function() -> DeepSetFunction:
    return DeepSetFunction(2, "mlp", dim=4, hidden=(4,))


# Functions that use the value of an argument, by the name of the argument and of what takes it.
USES: dict[str, Callable[[Any], torch.Tensor]] = {
    "projection of Identity": lambda value: _gradient(Identity(TopK(2), projection=value)),
    "mode of AIMLE": lambda value: _gradient(AIMLE(TopK(2), noise=None, mode=value)),
    "side of LPGD": lambda value: _gradient(LPGD(TopK(2), tau=2.0, side=value)),
    "scale of mean_field": lambda v: inference.mean_field(_function(), SETS, estimator=Exact(), scale=v).logits,
    "scale of contraction": lambda v: inference.contraction(_function(), SETS, estimator=Exact(), scale=v).factor,
    "activation of UMBC": lambda value: encoders.UMBC(2, 8, 4, activation=value)(SETS),
    "activation of DeepUMBC": lambda value: encoders.DeepUMBC(2, 8, 4, activation=value)(SETS),
    "normalize of UMBC": lambda value: encoders.UMBC(2, 8, 4, activation=encoders.SlotSigmoid(), normalize=value)(SETS),
}
STRINGS: dict[str, dict[str, object]] = {
    "projection": {
        "mean": discrete.MeanProjection(),
        "norm": discrete.NormProjection(),
        "std": discrete.StdProjection(),
    },
    "mode": {
        "default": discrete.PerInstanceRule(),
        "paper": discrete.PublishedRule(),
        "reference": discrete.ReferenceCodeRule(),
    },
    "side": {"lower": Envelope.LOWER, "upper": Envelope.UPPER, "average": Envelope.AVERAGE},
    "scale": {
        "l2": inference.L2Scale(),
        "frobenius-batch": inference.BatchFrobeniusScale(),
        "nuclear-batch": inference.BatchNuclearScale(),
    },
    "activation": {"slot-sigmoid": encoders.SlotSigmoid()},
    "normalize": {"set": True, "none": False},
}


@pytest.mark.parametrize(("use", "old"), [(use, old) for use in USES for old in STRINGS[use.split()[0]]])
def test_old_strings_of_arguments(use: str, old: str, seeded: Any) -> None:
    argument = use.split()[0]
    new = STRINGS[argument][old]
    message = f"{argument}={old!r} is now {argument}={new!r}; the old form will be removed in 0.3.0"
    with seeded(0), pytest.warns(DeprecationWarning, match=re.escape(message)):
        result = USES[use](old)
    with seeded(0):
        assert torch.equal(result, USES[use](new))


@pytest.mark.parametrize("use", USES)
def test_unknown_strings_of_arguments_are_errors(use: str, seeded: Any) -> None:
    argument = use.split()[0]
    with seeded(0), pytest.raises(OptionError, match=f"unknown {argument} 'magic'; choose one of: ") as caught:
        USES[use]("magic")
    assert all(old in str(caught.value) for old in STRINGS[argument])
