"""Cross-validation of a task: the splits are pooled, shuffled and split again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from setgrad.datasets._task import Task, spawn_generators
from setgrad.errors import OptionError
from setgrad.sets import Choices, Sets

_MIN_FOLDS = 3


def folds(task: Task, count: int = 5, *, random_state: int = 0, keep_test: bool = False) -> list[Task]:
    """Return `count` tasks for cross-validation, each with another part of the sets as its test split.

    The three splits are pooled and the sets shuffled. Task k tests on part k, validates on part k + 1 (the first part
    after the last) and trains on the rest. Every set is in one test split. Items keep their sets and their order.

    Only sets are separated. Where the splits of a task also separate people, images or customers (`anomaly`,
    `digits`, `celeba`, `bundles`), folds undo that, and scores are too good: repeat such a task with several seeds
    instead.

    Args:
        task: The task to split again.
        count: Number of parts, at least 3.
        random_state: Seed of the shuffling.
        keep_test: Whether the test split stays as it is. The other two are pooled, task k validates on part k and
            trains on all others.

    Raises:
        OptionError: If the sets cannot be split into `count` parts.

    Examples:
        >>> from setgrad.datasets import load_task
        >>> folds(load_task("moons", n_train=5, n_validation=3, n_test=2), 5)[0]
        Task('moons': 6 training, 2 validation, 2 test sets)
    """
    # At least one call of `fold`, so that an invalid count raises an error instead of returning an empty list.
    return [
        fold(task, number, count, random_state=random_state, keep_test=keep_test) for number in range(max(1, count))
    ]


def fold(task: Task, number: int, count: int = 5, *, random_state: int = 0, keep_test: bool = False) -> Task:
    """Return one task of `folds` without building the others.

    Args:
        task: The task to split again.
        number: Index of the fold, from 0.
        count: Number of parts, at least 3.
        random_state: Seed of the shuffling.
        keep_test: As in `folds`.

    Raises:
        OptionError: If the sets cannot be split into `count` parts, or there is no such fold.

    Examples:
        >>> from setgrad.datasets import load_task
        >>> task = load_task("moons", n_train=5, n_validation=3, n_test=2)
        >>> fold(task, 4).test.sets.values.equal(folds(task)[4].test.sets.values)
        True
    """
    pooled = _pool([task.train, task.validation] if keep_test else [task.train, task.validation, task.test])
    total = len(pooled)
    if not _MIN_FOLDS <= count <= total:
        raise OptionError(
            f"{total} sets can be split into {_MIN_FOLDS} to {total} folds, not {count}: one for testing, one for "
            "validation and the rest for training"
        )
    if not 0 <= number < count:
        raise OptionError(f"the folds have numbers 0 to {count - 1}, not {number}")
    parts = np.array_split(spawn_generators(random_state, 1)[0].permutation(total), count)
    validating = number if keep_test else (number + 1) % count
    rest = np.concatenate([part for index, part in enumerate(parts) if index not in (number, validating)])
    train, validation = _take(pooled, rest), _take(pooled, parts[validating])
    return replace(
        task, train=train, validation=validation, test=task.test if keep_test else _take(pooled, parts[number])
    )


def _pool(parts: Sequence[Choices]) -> Choices:
    set_ids = [part.set_ids for part in parts if part.set_ids is not None]
    item_ids = [np.asarray(part.item_ids) for part in parts if part.item_ids is not None]
    weights = [part.sample_weight for part in parts if part.sample_weight is not None]
    return Choices(
        Sets.cat([part.sets for part in parts]),
        Sets.cat([part.subsets for part in parts]),
        # Ids and weights need an entry for each set or item, so all parts must have them.
        set_ids=[set_id for ids in set_ids for set_id in ids] if len(set_ids) == len(parts) else None,
        item_ids=np.concatenate(item_ids) if len(item_ids) == len(parts) else None,
        sample_weight=torch.cat(weights) if len(weights) == len(parts) else None,
        features=parts[0].features,
    )


def _take(choices: Choices, indices: np.ndarray) -> Choices:
    rows = choices.sets.with_values(torch.arange(choices.sets.layout.total)).take(indices).values
    return Choices(
        choices.sets.take(indices),
        choices.subsets.take(indices),
        set_ids=None if choices.set_ids is None else [choices.set_ids[index] for index in indices],
        item_ids=None if choices.item_ids is None else np.asarray(choices.item_ids)[rows.numpy()],
        sample_weight=None if choices.sample_weight is None else choices.sample_weight[rows],
        features=choices.features,
    )
