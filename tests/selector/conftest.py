"""Small fitted selectors that the tests of the package share."""

import copy
from typing import Any

import pytest
import torch

from setgrad.selector import SubsetSelector
from setgrad.selector._tables import SOLVERS
from setgrad.selector.sizes import StopBelow
from setgrad.sets import Choices, Sets

TINY: dict[str, Any] = {
    "dim": 16,
    "hidden": (16,),
    "layers": 1,
    "max_epochs": 6,
    "random_state": 0,
    "verbose": 0,
    "device": "cpu",
}


def make_choices(count, seed=0):
    """Return sets of 3 to 7 items; chosen are the items above the mean of their set in the first of two features."""
    generator = torch.Generator().manual_seed(seed)
    items, masks = [], []
    for number in range(count):
        x = torch.randn(3 + number % 5, 2, generator=generator)
        items.append(x)
        masks.append(x[:, 0] > x[:, 0].mean())
    return Choices(Sets.from_list(items), Sets.from_list(masks))


def first_member(selector: SubsetSelector) -> Any:
    """Return the first member of a fitted selector, whose modules have no static types."""
    return selector.model_.each()[0]


@pytest.fixture(scope="module", autouse=True)
def grow_few_trees(few_trees):
    """Only tests/trees is about how much trees learn."""
    with few_trees():
        yield


@pytest.fixture(scope="session")
def choices():
    return make_choices(60)


FITTED: dict[str, dict[str, Any]] = {
    "unrolled": {},
    "one-step": {"method": "one-step", "steps": 3},
    "direct": {"method": "direct"},
    "paper": {"method": "unrolled", "phi": "paper", "loss": "negatives"},
    "gaussian": {"method": "unrolled", "estimator": "gaussian", "steps": 2},
    "implicit": {"method": "implicit"},
    "implicit, scaled": {"method": "implicit", "estimator": "pathwise", "scale": "l2"},
    "amortised": {"method": "amortised"},
    "copula": {"method": "copula", "function": "inset"},
    "horse": {"function": "horse"},
    "mlp and context": {"phi": "mlp+context"},
    "three members": {"members": 3},
    "two copula members": {"members": 2, "method": "copula"},
    "conditional": {"method": "conditional"},
    "two conditional members": {"members": 2, "method": "conditional", "function": "inset"},
}


@pytest.fixture(scope="session", params=FITTED)
def fitted(request, choices):
    """A fitted selector of each method."""
    return SubsetSelector(**{**TINY, **FITTED[request.param]}).fit(*choices)


@pytest.fixture(scope="session")
def unrolled():
    """The method "unrolled", whose choice follows the logits, fitted long enough to be good."""
    options = {**TINY, "max_epochs": 40, "learning_rate": 1e-2, "method": "unrolled"}
    return SubsetSelector(**options).fit(*make_choices(300))


@pytest.fixture(scope="session", params=SOLVERS)
def quick(request, choices):
    """A selector of each method after two epochs."""
    return SubsetSelector(**{**TINY, "max_epochs": 2, "method": request.param}).fit(*choices)


@pytest.fixture(scope="session")
def conditional():
    """The method "conditional", fitted long enough to be good."""
    options = {**TINY, "max_epochs": 40, "learning_rate": 1e-2, "method": "conditional"}
    return SubsetSelector(**options).fit(*make_choices(300))


@pytest.fixture(scope="session")
def stopping(conditional):
    """The same, with a rule for sizes that stops where no gain exceeds a cut."""
    selector = copy.deepcopy(conditional)
    selector.size_rule_ = selector.completion_rule_ = StopBelow(0.2)
    return selector
