"""`Task`, which every loader returns, and the checks of arguments that all loaders share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import OptionError, parameter
from setgrad.sets import Choices, Sets

# Requested numbers of training, validation and test sets; None for the default.
Counts = tuple[int | None, int | None, int | None]


@final
@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """A task: three splits of sets with the subsets to find. Each split unpacks into `(sets, subsets)`.

    Attributes:
        name: The name with which `load_task` loads the same task.
        description: What the subsets are, and the score of simple baselines.
        train: Training split.
        validation: Validation split.
        test: Test split.
        source: Where the data come from, and under which licence.
    """

    name: str
    description: str
    train: Choices
    validation: Choices
    test: Choices
    source: str

    def __repr__(self) -> str:
        sizes = f"{len(self.train)} training, {len(self.validation)} validation, {len(self.test)} test sets"
        return f"Task({self.name!r}: {sizes})"


def spawn_generators(random_state: int, count: int) -> list[np.random.Generator]:
    """Return independent generators, so that the size of one split does not change the others.

    Raises:
        OptionError: If `random_state` is not an integer of at least 0.
    """
    _check_integer("random_state", random_state)
    return [np.random.default_rng(child) for child in np.random.SeedSequence(random_state).spawn(count)]


def resolve_counts(requested: Counts, defaults: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the numbers of training, validation and test sets, with the default where None was requested.

    Raises:
        OptionError: If a number is not an integer of at least 0.
    """
    train, validation, test = (d if r is None else r for r, d in zip(requested, defaults, strict=True))
    for name, count in (("n_train", train), ("n_validation", validation), ("n_test", test)):
        _check_integer(name, count)
    return train, validation, test


def equal_size_choices(
    values: Tensor, mask: np.ndarray, *, set_ids: list[int] | None = None, item_ids: np.ndarray | None = None
) -> Choices:
    """Return choices for sets of equal size.

    Args:
        values: The items of all sets, one set after the other, `(count * size, ...)`.
        mask: Which items are chosen, `(count, size)`.
        set_ids: One id for each set.
        item_ids: One id for each item.
    """
    sets = Sets.from_lengths(values, np.full(*mask.shape))
    return Choices(sets, sets.with_values(torch.from_numpy(mask.reshape(-1))), set_ids=set_ids, item_ids=item_ids)


def _check_integer(name: str, value: object) -> None:
    if not isinstance(value, (int, np.integer)) or value < 0:
        raise OptionError(f"{parameter(name)} must be an integer of at least 0, not {value!r}")
