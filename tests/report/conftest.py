"""A tiny fitted selector and its results, for pages to be about."""

import pytest

from setgrad import Choices, SubsetSelector, datasets
from setgrad.report import Evaluation, evaluate


@pytest.fixture(scope="session")
def selector() -> SubsetSelector:
    task = datasets.load_task("moons", n_train=24, n_validation=8, n_test=0)
    options = SubsetSelector(dim=8, heads=1, max_epochs=3, random_state=0, verbose=0, device="cpu")
    return options.fit(*task.train, validation=task.validation)


@pytest.fixture(scope="session")
def test_sets() -> Choices:
    return datasets.load_task("moons", n_train=0, n_validation=0, n_test=12).test


@pytest.fixture(scope="session")
def evaluation(selector: SubsetSelector, test_sets: Choices) -> Evaluation:
    return evaluate(selector, test_sets)
