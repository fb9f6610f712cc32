"""What every loader returns, and the small things that all loaders share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from setgrad.errors import OptionError
from setgrad.sets import Choices

# Numbers of training, validation and test sets that a caller asked for; None for the usual number.
Counts = tuple[int | None, int | None, int | None]


@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """Three splits of one problem; each unpacks into `(sets, subsets)`.

    `name` is what `setgrad.datasets.load_task` takes to make the same task again, `description` says what is to be
    found and how well chance does, and `source` says where the data come from and under which licence.
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


def generators(random_state: int, count: int) -> list[np.random.Generator]:
    """Return independent generators, so that the size of one split never changes what another holds."""
    if not _is_whole(random_state) or random_state < 0:
        raise OptionError(f"random_state must be a whole number, 0 or more, not {random_state!r}")
    return [np.random.default_rng(child) for child in np.random.SeedSequence(random_state).spawn(count)]


def fill_counts(wanted: Counts, usual: tuple[int, int, int]) -> tuple[int, int, int]:
    """Put the usual number of sets where none was asked for, and refuse what is no number of sets."""
    train, validation, test = (u if w is None else w for w, u in zip(wanted, usual, strict=True))
    if not all(_is_whole(count) and count >= 0 for count in (train, validation, test)):
        raise OptionError(f"the numbers of sets must be whole, 0 or more, not {train}, {validation} and {test}")
    return train, validation, test


def _is_whole(number: object) -> bool:
    return isinstance(number, (int, np.integer))
