"""What is explained: a set function, the choice that is made with it, and the columns of the items."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from setgrad.errors import DataError, OptionError, parameter
from setgrad.functions import BoundSetFunction
from setgrad.sets import Sets


@final
@dataclass(frozen=True)
class ItemColumn:
    """A column of the user, and the numbers of an item that hold it.

    Attributes:
        name: Its name.
        start: The first of its numbers.
        width: How many there are: several for a text, a vector, or a number with a flag for gaps.
        is_number: Whether the first of them is a quantity in the unit of the user.
    """

    name: str
    start: int
    width: int = 1
    is_number: bool = True

    @property
    def slice(self) -> slice:
        """Where its numbers are among those of an item."""
        return slice(self.start, self.start + self.width)


class AbstractSubject(abc.ABC):
    """A choice that can be explained.

    Attributes:
        columns: The columns of an item.
        batch_items: How many items are evaluated at once.
    """

    columns: tuple[ItemColumn, ...]
    batch_items: int

    @abc.abstractmethod
    def bind(self, sets: Sets, *, exact: bool = True) -> BoundSetFunction:
        """Return F for these sets, in double precision or in that of the sets."""

    @abc.abstractmethod
    def choose(self, sets: Sets, origin: np.ndarray, added: int = 0) -> Sets:
        """Return what would be chosen from changed sets.

        Args:
            sets: The changed sets.
            origin: The index of the set that each of them was.
            added: How many items were added at the end of each.
        """


def find_columns(columns: Sequence[ItemColumn], names: Iterable[str] | None, option: str) -> list[ItemColumn]:
    """Return the columns with these names; all for None.

    Args:
        columns: All columns.
        names: The names that were passed.
        option: The parameter that they were passed as.

    Raises:
        DataError: If there is no such column.
        OptionError: If a text was passed in place of a list of them.
    """
    if names is None:
        return list(columns)
    if isinstance(names, str):
        raise OptionError(f"{parameter(option)} must be a list of columns; write [{names!r}]")
    known = {column.name: column for column in columns}
    wanted = list(dict.fromkeys(names))
    missing = [name for name in wanted if name not in known]
    if missing:
        shown = ", ".join(list(known)[:20]) + (", ..." if len(known) > 20 else "")
        raise DataError(f"{parameter(option)} names {missing[0]!r}, which the model does not read; it reads {shown}")
    return [known[name] for name in wanted]
