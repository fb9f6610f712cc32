"""What the tests of all data sets share."""

import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

from setgrad.datasets import Task
from setgrad.sets import Choices


def splits(task: Task) -> tuple[Choices, Choices, Choices]:
    return task.train, task.validation, task.test


def is_equal(a: Task, b: Task) -> bool:
    return a.name == b.name and all(
        torch.equal(x.sets.values, y.sets.values)
        and torch.equal(x.subsets.values, y.subsets.values)
        and np.array_equal(x.item_ids, y.item_ids)
        for x, y in zip(splits(a), splits(b), strict=True)
    )


def check_seeds(make: Callable[..., Task]) -> None:
    """Check that the data depend on the seed, and the test sets not on the number of training sets."""
    task, other, few = make(), make(random_state=1), make(n_train=3)
    assert is_equal(task, make())
    assert not torch.equal(task.train.sets.values, other.train.sets.values)
    assert torch.equal(task.test.sets.values, few.test.sets.values)
    assert torch.equal(task.test.subsets.values, few.test.subsets.values)
    assert np.array_equal(task.test.item_ids, few.test.item_ids)


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Make imports of a package fail."""
    for name in {package, *(name for name in sys.modules if name.startswith(f"{package}."))}:
        monkeypatch.setitem(sys.modules, name, None)
