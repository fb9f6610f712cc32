"""A seed decides everything, and nothing but the seed does."""

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
        pytest.importorskip("sklearn", reason="the images of digits come with scikit-learn")

    def small(seed: int = 0, n_train: int = 20) -> Task:
        return load_task(name, random_state=seed, n_train=n_train, n_validation=20, n_test=20)

    return small


def equal(a: Choices, b: Choices) -> bool:
    return torch.equal(a.sets.values, b.sets.values) and torch.equal(a.subsets.values, b.subsets.values)


def numpy_state() -> tuple[int, list[int]]:
    state = np.random.get_state(legacy=False)["state"]
    return state["pos"], state["key"].tolist()


@NAMES
def test_same_seed_same_data(make: Callable[..., Task]) -> None:
    one, two = make(), make()
    assert equal(one.train, two.train) and equal(one.validation, two.validation) and equal(one.test, two.test)


@NAMES
def test_other_seed_other_data(make: Callable[..., Task]) -> None:
    assert not equal(make().train, make(random_state=1).train)


@NAMES
def test_splits_differ(make: Callable[..., Task]) -> None:
    task = make()
    assert not equal(task.train, task.validation) and not equal(task.validation, task.test)


@NAMES
def test_size_of_training_leaves_the_test_split_alone(make: Callable[..., Task]) -> None:
    assert equal(make(n_train=5).test, make(n_train=20).test)


@NAMES
def test_global_random_states_are_neither_read_nor_changed(make: Callable[..., Task]) -> None:
    before = numpy_state(), random.getstate(), torch.get_rng_state()
    one = make()
    assert numpy_state() == before[0]
    assert random.getstate() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])
    kept = np.random.get_state()
    np.random.seed(77)
    two = make()
    np.random.set_state(kept)
    assert equal(one.train, two.train)
