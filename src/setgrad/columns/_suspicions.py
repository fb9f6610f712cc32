"""What looks wrong in a table: labels among the features, sets that teach nothing, equal items."""

from __future__ import annotations

from typing import final

import numpy as np

from setgrad.columns._column import FittedColumn
from setgrad.columns._encoded import Encoded

# A column that separates what was chosen in this share of the sets is hardly known before the choice.
_SEPARATED = 0.99
# Fewer sets than this do not show a pattern.
_FEW_SETS = 20
# Codes that occur less often than this on average separate by chance.
_ROWS_A_CODE = 5


@final
class TableSuspicions:
    """Looks at the columns of a table one after the other, and collects warnings.

    Args:
        lengths: Number of rows of each set.
        chosen: Whether the item of each row was chosen; None if that is not known.
    """

    def __init__(self, lengths: np.ndarray, chosen: np.ndarray | None) -> None:
        filled = lengths[lengths > 0]
        self._lengths, self._starts = filled, np.cumsum(filled) - filled
        self._chosen = chosen
        self._first = np.zeros(int(filled.sum()), dtype=bool)
        self._first[self._starts] = True
        # A number for each row that equal rows share.
        self._rows = np.zeros(len(self._first))
        self._rng = np.random.default_rng(0)
        self._separating: list[str] = []

    def fingerprints(self, encoded: Encoded) -> np.ndarray:
        """Return a number for each row that rows with equal numbers share."""
        return encoded.fingerprints(self._rng.random((encoded.values.shape[1],)))

    def is_constant(self, fingerprints: np.ndarray, is_training: np.ndarray) -> bool:
        """Return whether every set has one value, and some have others, in training rows.

        Args:
            fingerprints: Those of the rows of a column.
            is_training: Whether each row is trained on `(rows,)`.
        """
        same = fingerprints[1:] == fingerprints[:-1]
        inside = ~self._first[1:] & is_training[1:]
        known = fingerprints[is_training]
        return bool(inside.any() and same[inside].all() and (known[1:] != known[:-1]).any())

    def look_at(self, column: FittedColumn, encoded: Encoded, fingerprints: np.ndarray) -> None:
        """Look at the numbers of a column."""
        if column.context:
            return
        self._rows += fingerprints
        if self._chosen is not None and column.width <= 2:
            first = Encoded(encoded.values[:, :1], encoded.rows).block[:, 0]
            if self._separates(column, first):
                self._separating.append(column.name)

    def _separates(self, column: FittedColumn, values: np.ndarray) -> bool:
        chosen = self._chosen
        assert chosen is not None
        mixed = np.add.reduceat(chosen, self._starts, dtype=np.int64)
        mixed_sets = (mixed > 0) & (mixed < self._lengths)
        if mixed_sets.sum() < _FEW_SETS:
            return False
        if column.parts[0].codes:
            counts = np.bincount(values.astype(np.int64))
            hits = np.bincount(values.astype(np.int64), weights=chosen)
            wrong, chosen_rows = np.minimum(hits, counts - hits).sum(), int(chosen.sum())
            # Where few items are chosen, all values together are right about most rows.
            most = (1 - _SEPARATED) * 2 * min(chosen_rows, len(values) - chosen_rows)
            return bool(wrong <= most and len(values) >= _ROWS_A_CODE * (counts > 0).sum())
        low, high = (
            (
                np.minimum.reduceat(np.where(chosen, values, np.inf), self._starts),
                np.maximum.reduceat(np.where(chosen, -np.inf, values), self._starts),
            ),
            (
                np.minimum.reduceat(np.where(chosen, np.inf, values), self._starts),
                np.maximum.reduceat(np.where(chosen, values, -np.inf), self._starts),
            ),
        )
        shares = [(least > most)[mixed_sets].mean() for least, most in (low, high)]
        # Within a set a quantity may decide by itself, as a price does. The label has the same border in every set.
        return bool(max(shares) >= _SEPARATED and self._has_border(values, chosen))

    def _has_border(self, values: np.ndarray, chosen: np.ndarray) -> bool:
        """Return whether nearly all chosen items are on one side of a number, and nearly all others on the other."""
        order = np.argsort(values, kind="stable")
        below = np.append(0, np.cumsum(chosen[order]))
        # Chosen items and others below each place between two different values.
        ends = np.flatnonzero(np.append(np.diff(values[order], prepend=np.nan) != 0, True))
        hits, others = below[ends], ends - below[ends]
        total, rest = below[-1], len(values) - below[-1]
        wrong = np.minimum(hits + rest - others, total - hits + others).min()
        return bool(wrong <= (1 - _SEPARATED) * min(total, rest))

    def warnings(self) -> tuple[str, ...]:
        """Return what looks wrong."""
        found = []
        if self._separating:
            names = ", ".join(self._separating)
            found.append(
                f"{names}: tells nearly by itself what was chosen; leave it out if it is not known before the choice"
            )
        if len(self._lengths) < _FEW_SETS:
            found.append(f"there are only {len(self._lengths)} sets with items; expect little")
        if self._chosen is not None:
            found += self._about_chosen(self._chosen)
        sets = np.repeat(np.arange(len(self._lengths)), self._lengths)
        order = np.lexsort((self._rows, sets))
        equal = (np.diff(sets[order]) == 0) & (np.diff(self._rows[order]) == 0)
        if equal.any():
            found.append(
                f"{int(equal.sum())} items are equal to another item of their set in all features; they get the same "
                "probability"
            )
        return tuple(found)

    def _about_chosen(self, chosen: np.ndarray) -> list[str]:
        counts = np.add.reduceat(chosen, self._starts, dtype=np.int64)
        if not counts.any():
            return ["nothing was chosen from any set, so there is nothing to learn; check the column of the choices"]
        if (counts == self._lengths).all():
            return ["everything was chosen from every set, so there is nothing to learn; add the items that were not"]
        trivial = int(((counts == 0) | (counts == self._lengths)).sum())
        if 2 * trivial > len(counts):
            return [f"from {trivial} of {len(counts)} sets nothing or everything was chosen; these teach little"]
        return []
