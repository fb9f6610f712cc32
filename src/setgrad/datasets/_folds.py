"""Cross-validation of a task: the splits are pooled, shuffled and cut anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from setgrad.datasets._task import Task, generators
from setgrad.errors import OptionError
from setgrad.sets import Choices, Sets

_FEWEST = 3


def folds(task: Task, count: int = 5, *, random_state: int = 0) -> list[Task]:
    """Cut a task into `count` tasks, each of which tests on another part of the sets.

    The three splits are pooled and the sets shuffled. Task k tests on part k, validates on part k + 1 (the first
    after the last) and trains on the rest. Every set is tested on once. Items stay in their sets, in their order.

    Only sets are kept apart. Where the splits of a task also keep people, images or customers apart (`anomaly`,
    `digits`, `celeba`, `bundles`), folds undo that, and scores are too good: repeat such a task with several seeds
    instead.

    Args:
        task: What to cut.
        count: Number of parts, at least 3.
        random_state: Seed of the shuffling.

    Example:
        >>> from setgrad.datasets import load_task
        >>> folds(load_task("moons", n_train=5, n_validation=3, n_test=2), 5)[0]
        Task('moons': 6 training, 2 validation, 2 test sets)
    """
    # At least once, so that an impossible count is refused and not answered by an empty list.
    return [fold(task, number, count, random_state=random_state) for number in range(max(1, count))]


def fold(task: Task, number: int, count: int = 5, *, random_state: int = 0) -> Task:
    """Make one task of `folds`, without the memory of the others.

    Example:
        >>> from setgrad.datasets import load_task
        >>> task = load_task("moons", n_train=5, n_validation=3, n_test=2)
        >>> fold(task, 4).test.sets.values.equal(folds(task)[4].test.sets.values)
        True
    """
    pooled = _pool([task.train, task.validation, task.test])
    total = len(pooled)
    if not _FEWEST <= count <= total:
        raise OptionError(
            f"{total} sets can be cut into {_FEWEST} to {total} folds, not {count}: one to test on, one to validate on "
            "and the rest to train on"
        )
    if not 0 <= number < count:
        raise OptionError(f"the folds have numbers 0 to {count - 1}, not {number}")
    pieces = np.array_split(generators(random_state, 1)[0].permutation(total), count)
    after = (number + 1) % count
    rest = np.concatenate([piece for place, piece in enumerate(pieces) if place not in (number, after)])
    train, validation, test = (_take(pooled, numbers) for numbers in (rest, pieces[after], pieces[number]))
    return replace(task, train=train, validation=validation, test=test)


def _pool(parts: Sequence[Choices]) -> Choices:
    set_ids = [part.set_ids for part in parts if part.set_ids is not None]
    item_ids = [np.asarray(part.item_ids) for part in parts if part.item_ids is not None]
    weights = [part.sample_weight for part in parts if part.sample_weight is not None]
    return Choices(
        Sets.cat([part.sets for part in parts]),
        Sets.cat([part.subsets for part in parts]),
        # What only some parts have says nothing about all sets.
        set_ids=[name for ids in set_ids for name in ids] if len(set_ids) == len(parts) else None,
        item_ids=np.concatenate(item_ids) if len(item_ids) == len(parts) else None,
        sample_weight=torch.cat(weights) if len(weights) == len(parts) else None,
        features=parts[0].features,
    )


def _take(choices: Choices, numbers: np.ndarray) -> Choices:
    rows = choices.sets.with_values(torch.arange(choices.sets.layout.total)).take(numbers).values
    return Choices(
        choices.sets.take(numbers),
        choices.subsets.take(numbers),
        set_ids=None if choices.set_ids is None else [choices.set_ids[number] for number in numbers],
        item_ids=None if choices.item_ids is None else np.asarray(choices.item_ids)[rows.numpy()],
        sample_weight=None if choices.sample_weight is None else choices.sample_weight[rows],
        features=choices.features,
    )
