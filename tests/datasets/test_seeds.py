"""The data depend on `random_state` and on nothing else."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from setgrad.datasets import Task, load_task
from tests.datasets.helpers import check_seeds, is_equal, splits

NAMES = pytest.mark.parametrize("name", ["gaussian", "moons", "digits", "clusters"])


@pytest.fixture
def make(name: str) -> Callable[..., Task]:
    if name == "digits":
        pytest.importorskip("sklearn", reason="needs scikit-learn")

    def small(random_state: int = 0, n_train: int = 20) -> Task:
        return load_task(name, random_state=random_state, n_train=n_train, n_validation=20, n_test=20)

    return small


def numpy_state() -> tuple[int, list[int]]:
    state = np.random.get_state(legacy=False)["state"]
    return state["pos"], state["key"].tolist()


@NAMES
def test_data_depend_on_the_seed(make: Callable[..., Task]) -> None:
    check_seeds(make)


@NAMES
def test_splits_are_different(make: Callable[..., Task]) -> None:
    train, validation, test = (part.sets.values for part in splits(make()))
    assert not torch.equal(train, validation) and not torch.equal(validation, test)


@NAMES
def test_global_random_states_are_neither_read_nor_changed(make: Callable[..., Task]) -> None:
    before = numpy_state(), random.getstate(), torch.get_rng_state()
    one = make()
    assert numpy_state() == before[0]
    assert random.getstate() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])
    state = np.random.get_state()
    np.random.seed(77)
    two = make()
    np.random.set_state(state)
    assert is_equal(one, two)
