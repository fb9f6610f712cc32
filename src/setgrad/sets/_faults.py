"""Faults of a table that are told together, not one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from setgrad.errors import DataError


@final
class Faults:
    """Collects errors of blocks of code."""

    def __init__(self) -> None:
        self.found: list[DataError] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Take up a DataError of the code inside, and leave that code."""
        try:
            yield
        except DataError as error:
            self.found.append(error)

    def check(self) -> None:
        """Raise one error with all that were collected, if there are any."""
        if self.found:
            raise DataError.joined(self.found)
