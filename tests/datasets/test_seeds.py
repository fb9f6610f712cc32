"""The data depend on `random_state` and on nothing else."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from setgrad.datasets import Task, load_task
from setgrad.sets import Choices

NAMES = pytest.mark.parametrize("name", ["gaussian", "moons", "digits"])


@pytest.fixture
def make(name: str) -> Callable[..., Task]:
    if name == "digits":
        pytest.importorskip("sklearn", reason="needs scikit-learn")

    def small(random_state: int = 0, n_train: int = 20) -> Task:
        return load_task(name, random_state=random_state, n_train=n_train, n_validation=20, n_test=20)

    return small


def is_equal(a: Choices, b: Choices) -> bool:
    return torch.equal(a.sets.values, b.sets.values) and torch.equal(a.subsets.values, b.subsets.values)


def numpy_state() -> tuple[int, list[int]]:
    state = np.random.get_state(legacy=False)["state"]
    return state["pos"], state["key"].tolist()


@NAMES
def test_equal_seeds_give_equal_data(make: Callable[..., Task]) -> None:
    one, two = make(), make()
    assert is_equal(one.train, two.train) and is_equal(one.validation, two.validation) and is_equal(one.test, two.test)


@NAMES
def test_different_seeds_give_different_data(make: Callable[..., Task]) -> None:
    assert not is_equal(make().train, make(random_state=1).train)


@NAMES
def test_splits_are_different(make: Callable[..., Task]) -> None:
    task = make()
    assert not is_equal(task.train, task.validation) and not is_equal(task.validation, task.test)


@NAMES
def test_the_size_of_the_training_split_does_not_change_the_test_split(make: Callable[..., Task]) -> None:
    assert is_equal(make(n_train=5).test, make(n_train=20).test)


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
    assert is_equal(one.train, two.train)
