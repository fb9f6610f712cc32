"""Whether float32 is wide enough for the columns of a table."""

from __future__ import annotations

from typing import final

import numpy as np

# A loss of so much of a column's whole range is more than rounding.
_SHARE = 1e-4


@final
class Digits:
    """Watches pieces of columns on their way to float32, and tells at the end whether too much was lost.

    It was if a number moved by 1/2 or more, as whole numbers above 2**24 do (times, counts, codes), or by more than a
    small share of the range of its column, as numbers with a small spread far from 0 do.

    Example:
        >>> digits = Digits(1)
        >>> digits.see(0, np.array([0.1, 1e6, 2.0**24]))
        >>> digits.lost
        False
        >>> digits.see(0, np.array([2**24 + 1]))
        >>> digits.lost
        True
    """

    def __init__(self, columns: int) -> None:
        self._moved = np.zeros(columns)
        self._low, self._high = np.full(columns, np.inf), np.full(columns, -np.inf)

    def see(self, number: int, values: np.ndarray) -> None:
        """Take in the next values of a column, all of them finite in float32 if the end is to mean anything."""
        if not len(values) or np.can_cast(values.dtype, np.float32):
            return
        exact = values.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            moved = np.abs(exact - exact.astype(np.float32)).max()
        self._moved[number] = max(self._moved[number], moved)
        self._low[number] = min(self._low[number], exact.min())
        self._high[number] = max(self._high[number], exact.max())

    @property
    def lost(self) -> bool:
        """Whether some column needs float64."""
        # One value alone has no range to compare with. A column that was not looked at, because its type fits, has a
        # range below 0.
        reach = self._high - self._low
        return bool((self._moved >= 0.5).any() or ((reach > 0) & (self._moved > _SHARE * reach)).any())
