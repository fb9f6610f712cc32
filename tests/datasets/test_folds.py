"""Folds: every set is in one test split, and ids and weights follow their sets and items."""

import numpy as np
import pytest
import torch

from setgrad.datasets import Task, fold, folds, load_task
from setgrad.errors import OptionError
from setgrad.sets import Choices, Sets

LENGTHS = (1, 4, 2, 3, 1, 5, 2)


def _choices(first: int, lengths: tuple[int, ...]) -> Choices:
    """Return sets whose items encode their set and their position; every second item is chosen."""
    values = [[[10.0 * (first + n) + i] for i in range(length)] for n, length in enumerate(lengths)]
    sets = Sets.from_list([torch.tensor(v) for v in values])
    items = sets.values[:, 0]
    return Choices(
        sets,
        sets.with_values(items % 2 == 0),
        set_ids=[f"s{first + n}" for n in range(len(lengths))],
        item_ids=items.numpy().astype(np.int64),
        sample_weight=items + 0.5,
    )


@pytest.fixture
def task() -> Task:
    parts = (_choices(0, LENGTHS[:4]), _choices(4, LENGTHS[4:6]), _choices(6, LENGTHS[6:]))
    return Task("generated", "generated", *parts, "generated")


@pytest.mark.parametrize("count", [3, 5, 7])
def test_every_set_is_in_one_test_split_and_no_set_in_two_splits(task: Task, count: int) -> None:
    tasks = folds(task, count)
    assert sorted(name for one in tasks for name in one.test.set_ids or ()) == [f"s{n}" for n in range(7)]
    for number, one in enumerate(tasks):
        names = [name for part in (one.train, one.validation, one.test) for name in part.set_ids or ()]
        assert sorted(names) == [f"s{n}" for n in range(7)]
        assert one.validation.set_ids == tasks[(number + 1) % count].test.set_ids


def test_a_test_split_that_is_kept_is_in_no_fold(task: Task) -> None:
    tasks = folds(task, 3, keep_test=True)
    assert sorted(name for one in tasks for name in one.validation.set_ids or ()) == [f"s{n}" for n in range(6)]
    for one in tasks:
        assert one.test is task.test
        names = [*(one.train.set_ids or ()), *(one.validation.set_ids or ())]
        assert sorted(names) == [f"s{n}" for n in range(6)]


def test_items_ids_weights_and_choices_stay_together(task: Task) -> None:
    for one in folds(task, 4, random_state=3):
        for part in (one.train, one.validation, one.test):
            assert part.set_ids is not None and part.item_ids is not None and part.sample_weight is not None
            lengths = [LENGTHS[int(name[1:])] for name in part.set_ids]
            wanted = [10 * int(name[1:]) + i for name, n in zip(part.set_ids, lengths, strict=True) for i in range(n)]
            assert part.sets.layout.host_lengths.tolist() == lengths
            assert part.sets.values[:, 0].tolist() == wanted
            assert list(part.item_ids) == wanted
            assert part.sample_weight.tolist() == [number + 0.5 for number in wanted]
            assert part.subsets.values.tolist() == [number % 2 == 0 for number in wanted]


def test_fold_returns_one_of_folds_and_depends_on_the_seed(task: Task) -> None:
    assert fold(task, 2).test.set_ids == folds(task)[2].test.set_ids
    assert any(a.test.set_ids != b.test.set_ids for a, b in zip(folds(task), folds(task, random_state=1), strict=True))


def test_sets_without_ids_are_split_too() -> None:
    one = fold(load_task("moons", n_train=4, n_validation=1, n_test=1), 0, 3)
    assert (len(one.train), len(one.validation), len(one.test)) == (2, 2, 2)
    assert one.test.item_ids is None


@pytest.mark.parametrize("count", [0, 2, 8])
def test_impossible_counts_raise_an_error(task: Task, count: int) -> None:
    with pytest.raises(OptionError, match="7 sets can be split into 3 to 7 folds"):
        folds(task, count)


def test_an_unknown_fold_raises_an_error(task: Task) -> None:
    with pytest.raises(OptionError, match="numbers 0 to 4, not 5"):
        fold(task, 5)
